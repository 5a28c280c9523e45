"""The second protocol in real TPM behaviour (swtpm): the EK vouches for AK, clock and firmware."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from attestation.device import AKType
from attestation.errors import AttestationError, TPMResponseError
from attestation.evidence import ek_key_attestation
from attestation.tpm import PCRSelection, commands, parse_attest, parse_public
from attestation.tpm.duplicate import HMAC_KEY_ATTRIBUTES
from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.tpm import MakeTPM

pytestmark = pytest.mark.swtpm

NONCE = bytes(range(32))


@pytest.mark.parametrize("template", ["L-1", "L-2", "H-1", "H-2", "H-3", "H-4"])
@pytest.mark.parametrize("ak", AKType)
def test_the_ek_vouches(
    blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, template: str, ak: AKType
) -> None:
    """Import, Load, Certify with low- and high-range EKs: firmware and counters as in a quote of the AK."""
    blank_tpm.manufacture(tpm_ca, template=template)
    with blank_tpm.node(ek_templates=(template,), ak=ak) as node:
        identity = node.identify()
        ek, attestation_key = parse_public(identity.ek_public), parse_public(node.ak_public())
        secret = secrets.token_bytes(64)
        offered = ek_key_attestation.offer(ek, secret)
        made = node.certify_ak(offered.object_public, offered.duplicate, offered.in_sym_seed, NONCE)
        parsed = ek_key_attestation.parse(made.certify_info, made.signature)
        claims = ek_key_attestation.verify(parsed, secret=secret, challenge=NONCE, ek=ek, ak=attestation_key)
        assert claims.firmware_version == identity.firmware_version
        assert claims.ak_name == attestation_key.name
        quoted = parse_attest(node.quote(NONCE, PCRSelection.from_names({"sha256": [0]})).attest)
        assert (claims.reset_count, claims.restart_count) == (quoted.reset_count, quoted.restart_count)
        assert claims.clock_ms <= quoted.clock_ms
        # N77 and its like: another offer's secret, another challenge, another key.
        right: dict[str, Any] = {"secret": secret, "challenge": NONCE, "ek": ek, "ak": attestation_key}
        for member, wrong in (("secret", secrets.token_bytes(64)), ("challenge", NONCE[::-1]), ("ak", ek)):
            with pytest.raises(AttestationError):
                ek_key_attestation.verify(parsed, **{**right, member: wrong})


def test_nothing_is_left_in_the_tpm(software_tpm: SoftwareTPM) -> None:
    """After ten offers the TPM holds the AK and nothing else: no slot is lost."""
    with software_tpm.node() as node:
        ek = parse_public(node.identify().ek_public)
        for _ in range(10):
            offered = ek_key_attestation.offer(ek, secrets.token_bytes(64))
            node.certify_ak(offered.object_public, offered.duplicate, offered.in_sym_seed, NONCE)
        assert len(node._tpm.handles(commands.TRANSIENT_FIRST)) == 1
        assert node._tpm.handles(commands.LOADED_SESSION_FIRST) == []


@pytest.mark.threat("T78")
def test_another_tpm_refuses_the_offer(make_tpm: MakeTPM, tpm_ca: CertificateAuthority) -> None:
    """An offer that was sealed to another EK cannot be imported."""
    first, second = make_tpm("a"), make_tpm("b")
    for tpm in (first, second):
        tpm.manufacture(tpm_ca)
    with first.node() as node:
        ek = parse_public(node.identify().ek_public)
    offered = ek_key_attestation.offer(ek, secrets.token_bytes(64))
    with second.node() as node, pytest.raises(TPMResponseError):
        node.certify_ak(offered.object_public, offered.duplicate, offered.in_sym_seed, NONCE)


@pytest.mark.parametrize("member", ["object_public", "duplicate", "in_sym_seed"])
def test_a_changed_offer_is_refused(software_tpm: SoftwareTPM, member: str) -> None:
    """Libtpms refuses an offer with one bit changed, and goes on working."""
    with software_tpm.node() as node:
        ek = parse_public(node.identify().ek_public)
        offered = ek_key_attestation.offer(ek, secrets.token_bytes(64))
        parts = {
            "object_public": offered.object_public,
            "duplicate": offered.duplicate,
            "in_sym_seed": offered.in_sym_seed,
        }
        data = bytearray(parts[member])
        data[-1] ^= 1
        with pytest.raises(TPMResponseError):
            node.certify_ak(**{**parts, member: bytes(data)}, qualifying_data=NONCE)
        node.certify_ak(**parts, qualifying_data=NONCE)


def test_the_key_is_one_that_signs_nothing_foreign() -> None:
    """Restricted, signing, and honest about not being of this TPM: 00050440."""
    assert HMAC_KEY_ATTRIBUTES == 0x00050440
