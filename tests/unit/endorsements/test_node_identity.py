"""Who a node is: one layout each, never guessed, and nothing that is only said (HSM-AND-KUBERNETES §20)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from attestation.endorsements import der
from attestation.endorsements.ak_certificate import AKAnchors, parse_ak_certificate, verify_ak_certificate
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.node_identity import (
    ABSENT,
    GCE_INSTANCE,
    GCE_INSTANCE_2018,
    HARDWARE_MODULE,
    LAYOUT,
    MACHINE,
    PERMANENT_IDENTIFIER,
    SHIPPED,
    VALUE,
    IdentityExtractor,
    IdentitySource,
    NodeIdentity,
    differing,
)
from attestation.errors import NodeIdentityRejected
from attestation.wire import tlv
from attestation_testing import CertificateAuthority
from attestation_testing.ak_certificates import GCE_INSTANCE as GCE_OID
from attestation_testing.ak_certificates import (
    AKCertificateOptions,
    gce_instance,
    gce_instance_2018,
    hardware_module_name,
    make_ak_certificate,
    other_name,
    permanent_identifier,
    utf8,
)
from attestation_testing.software_keys import SoftwareAK

AT = datetime(2026, 11, 23, tzinfo=UTC)
CA = CertificateAuthority("Provider", seed=1)
ANCHORS = AKAnchors([parse_certificate(CA.certificate)])
KEY = SoftwareAK(seed=1).public.spki_der()
PRODUCTION = tlv(0xA1, tlv(der.BOOLEAN, b"\xff"))
BIDI = "node-1\u202e"


def source(options: AKCertificateOptions | None) -> IdentitySource:
    """Return what an extractor sees of a certificate that says this."""
    claims = None
    if options is not None:
        parsed = parse_ak_certificate(make_ak_certificate(KEY, CA, at=AT, options=options))
        claims = verify_ak_certificate(parsed, anchors=ANCHORS, chain=(), at=AT)
    return IdentitySource(machine_id="m", hostname="host", certificate=claims)


def gce(extension: bytes) -> AKCertificateOptions:
    """Say who the instance is."""
    return AKCertificateOptions(extensions=[(GCE_OID, extension)])


def names(*each: bytes) -> AKCertificateOptions:
    """Have these otherNames."""
    return AKCertificateOptions(other_names=each)


def refused(extractor: IdentityExtractor, options: AKCertificateOptions | None) -> str:
    """Return the check that failed."""
    with pytest.raises(NodeIdentityRejected) as caught:
        extractor.extract(source(options))
    return caught.value.check


def test_the_machine_behind_the_activated_ak_is_the_node() -> None:
    """Called as operators call it; no certificate is read."""
    found = MACHINE.extract(IdentitySource(machine_id="m", hostname="host", certificate=None))
    assert found == NodeIdentity(
        extractor="machine", value="machine/m", node_name="host", machine_id="m", hostname="host"
    )
    with pytest.raises(NodeIdentityRejected) as caught:
        MACHINE.extract(IdentitySource(machine_id=None, hostname=None, certificate=None))
    assert caught.value.check == ABSENT


FACTS = {
    "zone": "europe-west1-b",
    "id": "1234",
    "name": "node-1",
    "project_id": "4711",
    "project_name": "our-project",
}


@pytest.mark.parametrize(
    ("extractor", "extension"),
    [
        (GCE_INSTANCE_2018, gce_instance_2018()),
        (GCE_INSTANCE, gce_instance()),
        (GCE_INSTANCE, gce_instance(properties=PRODUCTION)),
        (GCE_INSTANCE, gce_instance(properties=PRODUCTION + tlv(0xA2, tlv(der.BOOLEAN, b"\0")))),
    ],
)
def test_an_instance_is_named_by_its_certificate(extractor: IdentityExtractor, extension: bytes) -> None:
    """Both layouts, each read as what it is, give one identity."""
    found = extractor.extract(source(gce(extension)))
    assert (found.value, found.node_name) == ("gce/4711/europe-west1-b/1234", "node-1")
    assert found.facts == FACTS
    assert (found.extractor, found.machine_id, found.hostname) == (extractor.name, "m", "host")


def test_the_layout_is_configured_and_never_guessed() -> None:
    """The two have the same types in the same order: read as the other, names and numbers would change places."""
    assert refused(GCE_INSTANCE, gce(gce_instance_2018())) == VALUE
    assert refused(GCE_INSTANCE_2018, gce(gce_instance())) == LAYOUT
    # Without its properties the newer layout cannot be told from the older: there the swapped names do not fit, or
    # the identity is another one, under anchors of its own.
    swapped = gce_instance(properties=b"", project="our-project", name="node-1")
    found = GCE_INSTANCE_2018.extract(source(gce(swapped)))
    assert found.value != "gce/4711/europe-west1-b/1234"


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        tlv(0xA0, der.write_unsigned(1)),
        tlv(0xA1, tlv(der.BOOLEAN, b"\0")),
        tlv(0xA2, tlv(der.BOOLEAN, b"\xff")),
    ],
    ids=["none", "silent", "false", "another-is-true"],
)
def test_what_is_not_in_production_is_no_information(properties: bytes) -> None:
    """Silence counts as no."""
    assert refused(GCE_INSTANCE, gce(gce_instance(properties=properties))) == VALUE


def _secured(content: bytes) -> bytes:
    """Return an instance with *content* as what stands behind its name."""
    plain = gce_instance(properties=b"")
    return tlv(der.SEQUENCE, plain[2:] + content)


@pytest.mark.parametrize(
    "extension",
    [
        b"",
        b"\x04\x00",
        gce_instance() + b"\0",
        gce_instance(properties=tlv(0xA0, b"\x02\x02\x00\x01") + PRODUCTION),
        gce_instance(properties=PRODUCTION + PRODUCTION),
        gce_instance(properties=PRODUCTION + tlv(0xA4, tlv(der.BOOLEAN, b"\xff"))),
        gce_instance(properties=tlv(0xA1, tlv(der.BOOLEAN, b"\x01"))),
        gce_instance(properties=tlv(0xA1, tlv(der.BOOLEAN, b"\xff") + b"\5\0")),
        gce_instance(properties=tlv(0xA0, der.write_unsigned(0) + b"\5\0") + PRODUCTION),
        _secured(tlv(0xA0, tlv(der.SEQUENCE, PRODUCTION)) + b"\5\0"),
        _secured(tlv(0xA0, tlv(der.SEQUENCE, PRODUCTION) + b"\5\0")),
        _secured(tlv(0xA1, tlv(der.SEQUENCE, PRODUCTION))),
        gce_instance(instance=1 << 64),
        tlv(der.SEQUENCE, utf8("z") + tlv(der.INTEGER, b"\xff")),
        tlv(der.SEQUENCE, utf8("z") + tlv(der.INTEGER, b"\0\x01")),
        tlv(der.SEQUENCE, tlv(0x0C, b"\xff\xfe")),
        tlv(der.SEQUENCE, tlv(0x13, b"europe-west1-b")),
    ],
)
def test_another_encoding_is_refused(extension: bytes) -> None:
    """Exact types, shortest numbers, nothing behind: two readers shall not see two instances."""
    assert refused(GCE_INSTANCE, gce(extension)) == LAYOUT


def test_an_extension_of_2018_ends_after_five_members() -> None:
    """What stands behind is of another layout."""
    assert refused(GCE_INSTANCE_2018, gce(gce_instance_2018()[:1] + _longer(gce_instance_2018()))) == LAYOUT


def _longer(extension: bytes) -> bytes:
    return bytes([extension[1] + 2]) + extension[2:] + b"\5\0"


@pytest.mark.parametrize(
    "changed",
    [
        {"name": BIDI},
        {"name": "node\u20101"},
        {"name": "Node-1"},
        {"name": "a/../b"},
        {"name": ""},
        {"name": "n" * 64},
        {"zone": "europe-west1-b\n"},
        {"zone": "\u0435urope-west1-b"},
        {"project": "our project"},
        {"project": "x"},
    ],
)
def test_names_that_the_provider_does_not_give_are_refused(changed: dict[str, str]) -> None:
    """Look-alikes, controls and paths name nobody."""
    assert refused(GCE_INSTANCE, gce(gce_instance(**changed))) == VALUE  # type: ignore[arg-type]  # texts only


def test_a_project_may_belong_to_a_domain() -> None:
    """Such projects are written `example.com:project`."""
    found = GCE_INSTANCE.extract(source(gce(gce_instance(project="example.com:our-project"))))
    assert found.facts["project_name"] == "example.com:our-project"


def test_a_hardware_module_is_named_by_its_serial_number() -> None:
    """As RFC 4108 has it, for TPMs."""
    found = HARDWARE_MODULE.extract(source(names(hardware_module_name(b"\x0a\xff"))))
    assert (found.value, found.node_name) == ("hardware-module/2.23.133.1.2/0aff", None)
    assert found.facts == {"hardware_serial": "0aff"}


@pytest.mark.parametrize(
    ("options", "check"),
    [
        (AKCertificateOptions(directory_name=True), ABSENT),
        (names(hardware_module_name(b"\1"), hardware_module_name(b"\2")), LAYOUT),
        (names(hardware_module_name(b"\1", hardware="1.2.3")), VALUE),
        (names(hardware_module_name(b"")), VALUE),
        (names(hardware_module_name(bytes(8))), VALUE),
        (names(hardware_module_name(b"\1" * 129)), VALUE),
        (names(other_name("1.3.6.1.5.5.7.8.4", utf8("chip"))), LAYOUT),
        (
            names(
                other_name(
                    "1.3.6.1.5.5.7.8.4",
                    tlv(der.SEQUENCE, der.write_oid("2.23.133.1.2") + tlv(der.OCTET_STRING, b"\1") + b"\5\0"),
                )
            ),
            LAYOUT,
        ),
    ],
)
def test_a_hardware_module_that_names_nobody(options: AKCertificateOptions, check: str) -> None:
    """The directory name of a SAN names a model; a number of zeros is everybody's."""
    assert refused(HARDWARE_MODULE, options) == check


def test_a_permanent_identifier_is_unique_to_its_assigner() -> None:
    """Or, where none is named, to the CA that we believe."""
    found = PERMANENT_IDENTIFIER.extract(source(names(permanent_identifier("chip-7", "1.2.3.4"))))
    assert (found.value, found.node_name) == ("permanent-identifier/1.2.3.4/chip-7", None)
    assert found.facts == {"permanent_identifier": "chip-7"}
    found = PERMANENT_IDENTIFIER.extract(source(names(permanent_identifier("chip-7"))))
    assert found.value == f"permanent-identifier/ca-{next(iter(ANCHORS)).sha256}/chip-7"


@pytest.mark.parametrize(
    ("options", "check"),
    [
        (names(), ABSENT),
        (names(permanent_identifier("a"), permanent_identifier("b")), LAYOUT),
        (names(permanent_identifier(None, "1.2.3")), LAYOUT),
        (names(permanent_identifier(None)), LAYOUT),
        (names(permanent_identifier("")), VALUE),
        (names(permanent_identifier(BIDI)), VALUE),
        (names(permanent_identifier("x" * 129)), VALUE),
        (
            names(
                other_name(
                    "1.3.6.1.5.5.7.8.3", tlv(der.SEQUENCE, utf8("a") + der.write_oid("1.2.3") + b"\5\0")
                )
            ),
            LAYOUT,
        ),
        (names(other_name("1.3.6.1.5.5.7.8.3", tlv(der.SEQUENCE, utf8("a") + b"\5\0"))), LAYOUT),
    ],
)
def test_a_permanent_identifier_that_names_nobody(options: AKCertificateOptions, check: str) -> None:
    """Absent, twice, without its value, or of look-alikes."""
    assert refused(PERMANENT_IDENTIFIER, options) == check


def test_no_certificate_and_no_extension_are_no_identity() -> None:
    """Each extractor of certificates needs one."""
    for extractor in SHIPPED.values():
        if extractor.certified:
            assert refused(extractor, None) == ABSENT
            assert refused(extractor, AKCertificateOptions()) == ABSENT
    assert {name for name, each in SHIPPED.items() if not each.certified} == {"machine"}


def test_what_a_node_says_of_itself_is_only_compared() -> None:
    """The names of what differs come back; no value does."""
    found = GCE_INSTANCE.extract(source(gce(gce_instance())))
    assert differing(found, FACTS) == ()
    assert differing(found, {}) == ()
    assert differing(found, {**FACTS, "name": "node-2", "colour": "red"}) == ("colour", "name")
