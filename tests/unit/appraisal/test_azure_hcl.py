"""vTPMs of Azure's confidential machines: genuine evidence, and each way in which it is of another machine."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation import tee_bundle
from attestation.appraisal.azure_hcl import AZURE_HCL, CHECKS
from attestation.appraisal.confidential import Expected
from attestation.endorsements.amd import Endorsements
from attestation.endorsements.intel import Endorsements as IntelEndorsements
from attestation.errors import HardwareEvidenceRejected, MalformedEvidence
from attestation.evidence import azure_hcl
from attestation.reference import IDENTITY_ONLY
from attestation.results import Failed, Undecided
from attestation.wire import b64encode
from tests.fixtures import hcl
from tests.vectors import forge
from tests.vectors.confidential import SHARED, checks_by_name, needs_vectors, vector
from tests.vectors.confidential.dcap import root

AT_OWN = datetime(2026, 11, 22, tzinfo=UTC)
AT = {"snp": datetime.fromtimestamp(1773964800, UTC), "tdx": datetime.fromtimestamp(1750331763, UTC)}


def decoded(text: str) -> bytes:
    """Return base64url without padding."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


OWN = {"own-snp": hcl.snp(AT_OWN), "own-tdx": hcl.tdx(AT_OWN)}
NAMES = ["own-snp", "own-tdx", *(pytest.param(name, marks=needs_vectors) for name in ("snp", "tdx"))]


def evidence(name: str) -> dict[str, bytes]:
    """Return the members of an item: of our own hardware, or of a vector."""
    if name in OWN:
        return dict(OWN[name][0])
    told = json.loads((SHARED / f"hcl/az-{name}-evidence-v1.json").read_bytes())
    message = bytes.fromhex(told["tpm_quote"]["message"])
    signature = bytes.fromhex(told["tpm_quote"]["signature"])
    found = {
        "hcl_report": decoded(told["hcl_report"]),
        "tpm_quote": struct.pack(">H", len(message))
        + message
        + struct.pack(">HHH", 0x0014, 0x000B, len(signature))
        + signature,
    }
    carried = ("vek", "vcek") if name == "snp" else ("quote", "td_quote")
    return found | {carried[0]: decoded(told[carried[1]])}


def ak_public(name: str, modulus: bytes | None = None) -> bytes:
    """Return TPM2B_PUBLIC of the key that the runtime data name."""
    data = evidence(name)["hcl_report"]
    runtime = json.loads(data[1236 : 1236 + int.from_bytes(data[1232:1236], "little")])
    n = modulus or decoded(next(key["n"] for key in runtime["keys"] if key["kid"] == "HCLAkPub"))
    body = struct.pack(">HHIHHHHHIH", 1, 0x000B, 0x00050472, 0, 0x0010, 0x0014, 0x000B, 2048, 0, len(n)) + n
    return struct.pack(">H", len(body)) + body


def expected(name: str) -> Expected:
    """Return what it is compared with; a vector's challenge is nine bytes."""
    if name in OWN:
        return OWN[name][1]
    known: Any = Endorsements(lines=tee_bundle.load().amd)
    if name == "tdx":
        known = IntelEndorsements(root=root(), collateral=None)
    return Expected(
        at=AT[name],
        report_data=bytes(64),
        endorsements=known,
        approved=None,
        nonce=b"challenge",
        ak_public=ak_public(name),
    )


def item(members: dict[str, bytes]) -> dict[str, str]:
    return {name: b64encode(data) for name, data in members.items()}


def refused(members: dict[str, bytes], compared: Expected) -> set[str]:
    """Return the codes with which an item is refused."""
    with pytest.raises(HardwareEvidenceRejected) as error:
        AZURE_HCL.verify(AZURE_HCL.parse(item(members)), compared)
    known = checks_by_name() | {check.name: check for check in CHECKS}
    return {str(known[each.check].code) for each in error.value.failed}


@pytest.mark.parametrize("name", NAMES)
def test_genuine_evidence(name: str) -> None:
    """The codes of `expected.json`, and the block that judges."""
    compared = expected(name)
    sent = AZURE_HCL.parse(item(evidence(name)))
    claims = AZURE_HCL.verify(sent, compared)
    followed, found = AZURE_HCL.follow(claims, compared, IDENTITY_ONLY)
    judged, _ = AZURE_HCL.judge(claims, sent, compared, IDENTITY_ONLY)
    known = checks_by_name()
    codes = {str(known[each.check].code) for each in judged if isinstance(each, Failed)}
    if any(isinstance(each, Undecided) and "collateral" in each.check for each in followed):
        codes.add("collateral-unavailable")
    told = [] if name in OWN else vector(f"hcl-az-{name}")["expected"]["codes_default_policy"]
    assert codes == set(told)
    assert found.state
    assert {sent.kind} == AZURE_HCL.answers(claims)
    assert AZURE_HCL.answers(claims) == {"sev_snp" if name.endswith("snp") else "tdx"}
    assert AZURE_HCL.answers(None) == {"sev_snp", "tdx"}
    seen = AZURE_HCL.hardware(claims)
    assert (seen.tee, any(seen.chip)) == ("sev-snp" if name.endswith("snp") else "tdx", True)


@pytest.mark.parametrize("name", NAMES)
def test_of_another_machine_altered_or_stale(name: str) -> None:
    """Another AK, another challenge, other runtime data, another signature: all that is wrong is told."""
    good, compared = evidence(name), expected(name)
    other = replace(compared, ak_public=ak_public(name, b"\xc5" * 256))
    assert refused(good, other) == {"binding-mismatch"}
    assert refused(good, replace(compared, ak_public=None)) == {"binding-mismatch"}
    assert refused(good, replace(compared, nonce=bytes(32))) == {"binding-mismatch"}
    report = good["hcl_report"]
    altered = good | {"hcl_report": report.replace(b'"secure-boot":', b'"secure-b00t":', 1)}
    if altered == good:
        altered = good | {"hcl_report": report.replace(b'"key_ops"', b'"key_0ps"', 1)}
    assert refused(altered, compared) == {"binding-mismatch"}
    flipped = good["tpm_quote"][:-1] + bytes([good["tpm_quote"][-1] ^ 1])
    assert refused(good | {"tpm_quote": flipped}, compared) == {"signature-invalid"}
    both = good | {"tpm_quote": flipped, "hcl_report": altered["hcl_report"]}
    assert refused(both, compared) == {"signature-invalid", "binding-mismatch"}


def test_a_quote_that_no_tpm_made() -> None:
    """Signed by the key, but without the mark that a TPM puts before its own statements."""
    attest, signature = forge.quote("rsassa", magic=0x12345678)
    sent = evidence("own-snp") | {"tpm_quote": len(attest).to_bytes(2) + attest + signature}
    with pytest.raises(HardwareEvidenceRejected) as error:
        AZURE_HCL.verify(AZURE_HCL.parse(item(sent)), expected("own-snp"))
    assert [each.check for each in error.value.failed] == ["hcl-signature"]


def test_a_tdreport_alone_proves_nothing() -> None:
    """It is MACed for its own processor; and it must say what the quote says."""
    good, compared = evidence("own-tdx"), expected("own-tdx")
    assert refused({n: v for n, v in good.items() if n != "quote"}, compared) == {"report-invalid"}
    report = good["hcl_report"]
    changed = report[:160] + bytes(32) + report[192:]
    assert refused(good | {"hcl_report": changed}, compared) == {"binding-mismatch"}


def test_the_operating_system_speaks_for_itself() -> None:
    """Above VMPL 0 whoever asked for the report is not the paravisor, whatever a policy allows."""
    sent = AZURE_HCL.parse(item(evidence("own-snp")))
    above = replace(sent.carried, report=sent.carried.report._replace(vmpl=2))
    with pytest.raises(HardwareEvidenceRejected) as error:
        AZURE_HCL.verify(sent._replace(carried=above), expected("own-snp"))
    assert [each.check for each in error.value.failed] == ["hcl-vmpl"]


def test_members_of_the_other_hardware() -> None:
    """A quote beside SEV-SNP, a VEK beside TDX."""
    snp, tdx = evidence("own-snp"), evidence("own-tdx")
    for members in (snp | {"quote": tdx["quote"]}, tdx | {"vek": b"\x30\x00"}):
        with pytest.raises(MalformedEvidence):
            AZURE_HCL.parse(item(members))


def _with(runtime: bytes, kind: int = 2, hash_type: int = 1, size: int | None = None) -> bytes:
    head = b"HCLA" + bytes(1212)
    length = len(runtime)
    return head + struct.pack("<IIIII", size or 20 + length, 1, kind, hash_type, length) + runtime


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HCLB" + bytes(2000),
        bytes(5000),
        _with(b"{}", kind=3),
        _with(b"{}", hash_type=2),
        _with(b"{}", size=7),
        _with(b"{}") + b"x",
        _with(b"{}")[:-1],
        _with(b"[]"),
        _with(b"{"),
        _with(b"\xff"),
        _with(b"{}"),
        _with(b'{"keys":7}'),
        _with(b'{"keys":[7]}'),
        _with(b'{"keys":[{"kid":"HCLAkPub","kty":"EC"}]}'),
        _with(b'{"keys":[{"kid":"HCLAkPub","kty":"RSA","e":"AQAB","n":7}]}'),
        _with(b'{"keys":[{"kid":"HCLAkPub","kty":"RSA","e":"AQAB","n":"A"}]}'),
        _with(b'{"keys":[{"kid":"HCLAkPub","kty":"RSA","e":"AQAB","n":"AQAB"}]}'),
        _with('{"keys":[{"kid":"HCLAkPub","kty":"RSA","e":"é","n":"AQAB"}]}'.encode()),
        _with(b'{"keys":[],"keys":[]}'),
    ],
)
def test_what_is_no_report(data: bytes) -> None:
    """Refused, in one way."""
    with pytest.raises(MalformedEvidence):
        azure_hcl.parse(data)


@given(st.binary(max_size=100), st.integers(0, 2700))
def test_the_reader_fails_in_one_way(data: bytes, place: int) -> None:
    """Whatever bytes, also in the middle of a good report."""
    good = evidence("own-snp")["hcl_report"]
    for each in (data, good[:place] + data + good[place + len(data) :]):
        try:
            azure_hcl.parse(each)
        except MalformedEvidence:
            continue
