"""Certified attestation keys of a real TPM vouch for the AK: by handle, and by template (TPM.md §§2.1, 2.4)."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from attestation.device import NodeTPM
from attestation.device.certified_aks import PLACES, Place, loaded_ak
from attestation.endorsements.ak_certificate import AKAnchors
from attestation.endorsements.certificate import parse_certificate
from attestation.errors import AKCertificateRejected, DeviceError, MalformedEvidence, TPMResponseError
from attestation.evidence import ak_certificate
from attestation.tpm import Attr, Public, commands, parse_public
from attestation.tpm.commands import NVAttr
from attestation.tpm.sessions import Password
from attestation_testing import CertificateAuthority, SoftwareTPM, ak_template
from attestation_testing.ak_certificates import make_ak_certificate
from attestation_testing.software_tpm import certify_ak_of, iak_template, write_nv
from tests.fixtures.tpm import MakeTPM

pytestmark = pytest.mark.swtpm

AT = datetime(2026, 11, 23, tzinfo=UTC)
CA = CertificateAuthority("Provider", seed=1)
ANCHORS = AKAnchors([parse_certificate(CA.certificate)])
BINDING = ak_certificate.binding(machine_id="m", challenge_id="c", proof=bytes(32))
IAK = PLACES["iak"]


def sealed(public: Public) -> Public:
    """Return it with its TPMT written from the fields."""
    return dataclasses.replace(public, tpmt=public.serialise())


def install(tpm: SoftwareTPM, name: str, template: Public) -> Public:
    """Put a certified key where the maker or provider *name* does."""
    place = PLACES[name]
    with tpm.client() as client:
        return certify_ak_of(
            client,
            CA,
            template,
            certificate_index=place.certificate,
            handle=place.handle,
            template_index=place.template,
            at=AT,
        )


def vouched(node: NodeTPM, **how: Any) -> ak_certificate.VouchedAK:
    """Have the first certified key vouch for the AK, and verify it."""
    certified, *_ = node.certified_aks()
    stated = node.vouch(certified, BINDING)
    statement = certified.public, stated.certify_info, stated.signature
    return ak_certificate.verify(
        ak_certificate.parse(certified.certificate, statement),
        **{
            "ak": parse_public(node.ak_public()),
            "binding": BINDING,
            "anchors": ANCHORS,
            "chain": (),
            "at": AT,
            **how,
        },
    )


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("iak", iak_template()),
        ("azure", ak_template(rsa_bits=2048)),
        ("google-ecc", ak_template(unique=b"google")),
        ("google-rsa", ak_template(rsa_bits=2048, unique=b"google")),
    ],
)
def test_a_certified_key_is_found_and_vouches(software_tpm: SoftwareTPM, name: str, template: Public) -> None:
    """An IAK by its own template and authPolicy, an AK at a handle, AKs by a template in NV; padding and all."""
    public = install(software_tpm, name, sealed(template))
    with software_tpm.node() as node:
        (found,) = node.certified_aks()
        assert (found.name, found.public) == (name, public.tpm2b())
        assert vouched(node).certificate.spki == public.spki_der()
        assert node.certified_aks() == (found,), "nothing stays loaded"


def test_a_tpm_without_certified_keys_has_none(software_tpm: SoftwareTPM) -> None:
    """Most have none."""
    with software_tpm.node() as node:
        assert node.certified_aks() == ()


def test_what_is_not_there_or_not_ours_is_passed_over(software_tpm: SoftwareTPM) -> None:
    """Another key's certificate, a certificate without its key, templates that derive nothing, NV that is not read."""
    stranger = make_ak_certificate(ak_spki(), CA, at=AT)
    other = sealed(ak_template(unique=b"other"))
    install(software_tpm, "iak", iak_template())
    with software_tpm.client() as client:
        write_nv(client, IAK.certificate, stranger)
        write_nv(client, PLACES["azure"].certificate, stranger)
        write_nv(client, PLACES["google-ecc"].certificate, stranger)
        write_nv(client, PLACES["google-ecc"].template or 0, b"no template")
        hidden = int(NVAttr.PP_WRITE | NVAttr.PP_READ | NVAttr.PLATFORM_CREATE)
        write_nv(client, PLACES["google-rsa"].certificate, stranger, attributes=hidden)
    with software_tpm.node() as node:
        assert node.certified_aks() == ()
    with software_tpm.client() as client:
        write_nv(client, PLACES["google-rsa"].certificate, stranger)
        write_nv(client, PLACES["google-rsa"].template or 0, other.tpmt, attributes=hidden)
    with software_tpm.node() as node:
        assert node.certified_aks() == ()


def ak_spki() -> bytes:
    """Return the key of nobody's TPM."""
    from attestation_testing import SoftwareAK

    return SoftwareAK(seed=99).public.spki_der()


def test_a_key_that_changed_does_not_vouch(software_tpm: SoftwareTPM) -> None:
    """What stands at the place now is another key than the one that was found."""
    install(software_tpm, "google-ecc", sealed(ak_template(unique=b"one")))
    with software_tpm.node() as node:
        (found,) = node.certified_aks()
        changed = dataclasses.replace(found, public=found.public[:-1] + bytes([found.public[-1] ^ 1]))
        with pytest.raises(DeviceError, match="not the one"):
            node.vouch(changed, BINDING)
    with software_tpm.client() as client:
        with pytest.raises(DeviceError, match="neither"), loaded_ak(client, Place(certificate=1)):
            pass
        with (
            pytest.raises(TPMResponseError),
            loaded_ak(client, Place(certificate=1, template=0x01C10001)),
        ):
            pass
        with pytest.raises(TPMResponseError), loaded_ak(client, Place(certificate=1, handle=0x81020001)):
            pass


def test_an_ak_of_another_tpm_that_is_only_loaded_is_not_certified(make_tpm: MakeTPM) -> None:
    """TPM2_LoadExternal takes a stranger's public area, fixedTPM and all; TPM2_Certify wants its authorisation."""
    good, bad = make_tpm(), make_tpm()
    with bad.node() as node:
        stranger = parse_public(node.ak_public())
    install(good, "iak", iak_template())
    with good.client() as client, client.scope():
        loaded = client.execute(commands.load_external(stranger.tpm2b()))
        assert loaded.name == stranger.name
        with loaded_ak(client, IAK) as (key, _), pytest.raises(TPMResponseError, match="0x12f"):
            client.execute(commands.certify(loaded, key, BINDING), Password(), Password())


def test_an_idevid_vouches_for_nothing(software_tpm: SoftwareTPM) -> None:
    """It is not restricted, whatever its certificate says."""
    bare = iak_template()
    idevid = sealed(dataclasses.replace(bare, attributes=bare.attributes & ~int(Attr.RESTRICTED)))
    install(software_tpm, "iak", idevid)
    with software_tpm.node() as node, pytest.raises(AKCertificateRejected) as refused:
        vouched(node)
    assert refused.value.check == ak_certificate.KEY


def test_an_old_statement_is_stale(software_tpm: SoftwareTPM) -> None:
    """It is over another activation."""
    install(software_tpm, "iak", iak_template())
    other = ak_certificate.binding(machine_id="m", challenge_id="d", proof=bytes(32))
    with software_tpm.node() as node, pytest.raises(AKCertificateRejected) as refused:
        vouched(node, binding=other)
    assert refused.value.check == ak_certificate.FRESH


def test_a_template_that_is_none_is_malformed(software_tpm: SoftwareTPM) -> None:
    """And said so where somebody asks for the key."""
    with software_tpm.client() as client:
        write_nv(client, 0x01C10003, b"none")
        with pytest.raises(MalformedEvidence), loaded_ak(client, PLACES["google-ecc"]):
            pass
