"""Measurements of NVIDIA GPUs: each check fails alone, no bit of what is signed may differ (CONFIDENTIAL.md §14)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from attestation import tee_bundle
from attestation.appraisal.confidential import Expected
from attestation.appraisal.gpu import GPU
from attestation.endorsements.nvidia import MAX_CHAIN_BYTES, endorsements, parse_chain
from attestation.errors import HardwareEvidenceRejected, MalformedEvidence
from attestation.evidence.nvidia_gpu import MEDIA_TYPE, parse_measurements
from attestation.evidence.nvidia_gpu.spdm import MAX_EVIDENCE_BYTES
from attestation.reference import IDENTITY_ONLY, parse_policy
from attestation.results import Code, Failed, Flagged, Passed, Reported, Undecided
from attestation.wire import b64decode, b64encode, pem
from attestation_testing.tee import x509
from attestation_testing.tee.nvidia import SoftwareGPU, block, names
from tests.vectors.confidential import SHARED, needs_vectors

AT = datetime(2026, 11, 23, tzinfo=UTC)
NONCE = bytes(range(32))
GOOD = SoftwareGPU()
OTHER_KEY = x509.ec_key(ec.SECP384R1(), "another")


def expected(gpu: SoftwareGPU = GOOD, *, nonce: bytes = NONCE, at: datetime = AT) -> Expected:
    return Expected(at=at, report_data=nonce, endorsements=gpu.endorsements, approved=None, nonce=bytes(32))


def failing(item: Any, against: Expected | None = None) -> list[Code | None]:
    """Return the codes of what is refused."""
    try:
        GPU.verify(GPU.parse(item), against or expected())
    except HardwareEvidenceRejected as error:
        known = {check.name: check.code for check in GPU.checks}
        return [known[each.check] for each in error.failed]
    return []


@needs_vectors
def test_the_vector() -> None:
    """A Blackwell GPU under NVIDIA's root: its versions, and every bit of it counts."""
    (item,) = json.loads((SHARED / "nvidia/blackwell-gb100.evidence.json").read_bytes())
    nonce = bytes.fromhex(item.pop("nonce"))
    root = endorsements(tee_bundle.load().nvidia)
    against = Expected(at=AT, report_data=nonce, endorsements=root, approved=None, nonce=b"")
    claims = GPU.verify(GPU.parse(item), against)
    outcomes, found = GPU.follow(claims, against, None)
    (told,) = found.state["gpus"]
    assert outcomes == []
    assert (told["arch"], told["chip"]) == ("BLACKWELL", "GB100")
    assert (told["driver_version"], told["vbios_version"]) == ("590.48.01", "97.00.E4.00.11")
    assert len(claims[0].measurements.blocks) == 64
    # Under the root of the test kit it is nothing.
    assert failing(item, replace(against, endorsements=GOOD.endorsements)) == [Code.CHAIN_INVALID]
    whole = b64decode(item["evidence"], "evidence", max_bytes=MAX_EVIDENCE_BYTES)
    for place in range(0, 8 * (len(whole) - 1), 7):
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        with pytest.raises((MalformedEvidence, HardwareEvidenceRejected)):
            GPU.verify(GPU.parse({**item, "evidence": b64encode(bytes(data))}), against)


def test_good_measurements() -> None:
    """Say which GPU it is, what runs in it, and nothing of the machine."""
    claims = GPU.verify(GPU.parse(GOOD.item(NONCE)), expected())
    outcomes, found = GPU.follow(claims, expected(), None)
    (told,) = found.state["gpus"]
    assert (told["driver_version"], told["vbios_version"]) == ("590.48.01", "97.00.E4.00.11")
    assert [(type(o), o.check) for o in outcomes] == [(Flagged, "gpu-test-only")]
    assert GPU.hardware(claims) is None
    assert MEDIA_TYPE == "application/vnd.itl.nvidia-gpu"
    hopper = SoftwareGPU(chip="GH100", arch="HOPPER")
    assert failing(hopper.item(NONCE), expected(hopper)) == []


def test_one_byte_behind_the_signature_is_passed_over() -> None:
    """As NVIDIA's own tool leaves it; two are not."""
    item = GOOD.item(NONCE)
    whole = b64decode(item["evidence"], "evidence", max_bytes=8192)
    assert failing({**item, "evidence": b64encode(whole + b"\x00")}) == []
    with pytest.raises(MalformedEvidence, match="behind the signature"):
        GPU.parse({**item, "evidence": b64encode(whole + b"\x00\x00")})


@pytest.mark.threat("T196")
def test_several_gpus_are_judged_together() -> None:
    """Each must pass, each is another, and which of them failed is told."""
    others = [SoftwareGPU(seed=f"gpu {i}") for i in range(3)]
    good = [each.item(NONCE) for each in others]
    assert failing(good) == []
    assert failing([good[0], good[0]]) == [Code.REPORT_INVALID]
    stale = [good[0], others[1].item(bytes(32))]
    with pytest.raises(HardwareEvidenceRejected) as caught:
        GPU.verify(GPU.parse(stale), expected())
    (failed,) = caught.value.failed
    assert (failed.check, failed.found) == ("gpu-nonce", f"GPU 1: {'00' * 32}")
    # The same GPU after a reset to other firmware: another leaf, another key, one device.
    again = SoftwareGPU(seed="gpu 0", changed={0: {"key": OTHER_KEY}})
    assert failing([good[0], again.item(NONCE, key=OTHER_KEY)]) == [Code.REPORT_INVALID]
    # With a root where its own certificate stands: roots that come along are passed over.
    leaf, *above = (pem("CERTIFICATE", each) for each in others[0].chain)
    shuffled = "".join((leaf, above[-1], *above[:-1]))
    disguised = good[0] | {"certificate": b64encode(shuffled.encode())}
    assert failing(disguised) == []
    assert failing([good[0], disguised]) == [Code.REPORT_INVALID]
    for wrong in ([], good[:1] * 17):
        with pytest.raises(MalformedEvidence, match="one to 16"):
            GPU.parse(wrong)


@pytest.mark.threat("T196")
def test_each_check_fails_alone() -> None:
    """By its code."""
    assert failing(GOOD.item(bytes(32))) == [Code.BINDING_MISMATCH]
    assert failing(GOOD.item(NONCE, key=OTHER_KEY)) == [Code.SIGNATURE_INVALID]
    assert failing(GOOD.item(NONCE, more={20: bytes(48)})) == [Code.REPORT_INVALID]
    assert failing(GOOD.item(NONCE, more={20: b""})) == [Code.REPORT_INVALID]
    assert failing(GOOD.item(NONCE, more={20: GOOD.fwid[:8]})) == [Code.REPORT_INVALID]
    assert failing(GOOD.item(NONCE, more={35: b"GB200\0"})) == [Code.REPORT_INVALID]
    assert failing(GOOD.item(NONCE, more={35: b""})) == []
    assert failing(replace(GOOD, arch="HOPPER").item(NONCE)) == [Code.REPORT_INVALID]
    unknown = SoftwareGPU(chip="XX100")
    assert failing(unknown.item(NONCE), expected(unknown)) == [Code.PLATFORM_UNSUPPORTED]
    plain = SoftwareGPU(changed={0: {"extensions": [x509.extension(x509.KEY_USAGE, b"\x03\x02\x07\x80")]}})
    assert failing(plain.item(NONCE, more={20: b""}), expected(plain)) == []


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        (0, {"issuer": names("another")}),
        (0, {"signer": OTHER_KEY}),
        (1, {"signer": OTHER_KEY}),
        (3, {"signer": OTHER_KEY}),
        (0, {"not_after": AT - timedelta(days=1)}),
        (2, {"not_before": AT + timedelta(days=1)}),
        (1, {"extensions": []}),
        (2, {"extensions": x509.ca_extensions(0)}),
        (0, {"extensions": x509.ca_extensions()}),
        (0, {"extensions": [x509.extension("1.2.3.4", b"\x05\x00", critical=True)]}),
    ],
    ids=lambda each: str(each) if isinstance(each, int) else next(iter(each)),
)
def test_a_chain_that_does_not_hold(place: int, fields: dict[str, Any]) -> None:
    """Names, signatures, times, CA flags, lengths of paths, extensions that nobody knows."""
    gpu = SoftwareGPU(changed={place: fields})
    codes = failing(gpu.item(NONCE), expected(GOOD))
    assert Code.CHAIN_INVALID in codes


def test_only_p384() -> None:
    """In the chain and of the key that signs."""
    weak = x509.ec_key(ec.SECP256R1(), "weak")
    for place in (0, 2):
        codes = failing(SoftwareGPU(changed={place: {"key": weak}}).item(NONCE))
        assert Code.CHAIN_INVALID in codes
    codes = failing(SoftwareGPU(changed={0: {"key": weak}}).item(NONCE))
    assert Code.SIGNATURE_INVALID in codes


def test_who_shows_a_root_cannot_choose_it() -> None:
    """A chain of roots alone is none; the root may be left out."""
    chain = GOOD.chain
    short = {
        **GOOD.item(NONCE),
        "certificate": b64encode("".join(pem("CERTIFICATE", c) for c in chain[:4]).encode()),
    }
    assert failing(short) == []
    roots = {**short, "certificate": b64encode(pem("CERTIFICATE", chain[4]).encode())}
    assert Code.CHAIN_INVALID in failing(roots)


def test_a_leaf_without_a_name() -> None:
    """Is of no family that is known."""
    gpu = SoftwareGPU(changed={0: {"subject": ((x509.ORGANIZATION, "NVIDIA"),)}})
    assert Code.PLATFORM_UNSUPPORTED in failing(gpu.item(NONCE, more={35: b""}))


def test_what_is_no_measurement() -> None:
    """Codes, counts, sizes, what stands twice, and each end too early."""
    good = GOOD.evidence(NONCE)
    for place in (0, 1, 37, 38, 41, 42):
        data = bytearray(good)
        data[place] ^= 1
        with pytest.raises(MalformedEvidence):
            parse_measurements(bytes(data))
    for blocks in (
        [block(1, bytes(48))] * 2,
        [bytes((1, 2, 51, 0, 0, 48, 0)) + bytes(48)],
        [block(1, bytes(47)) + b"x"[:0]],
    ):
        with pytest.raises(MalformedEvidence):
            parse_measurements(GOOD.evidence(NONCE, blocks=blocks))
    twice = good[: good.index(b"GB100\0") - 4]
    for size in range(len(good)):
        with pytest.raises(MalformedEvidence):
            parse_measurements(good[:size])
    with pytest.raises(MalformedEvidence):
        parse_measurements(twice)
    with pytest.raises(MalformedEvidence, match="at most"):
        parse_measurements(bytes(MAX_EVIDENCE_BYTES + 1))


def test_opaque_data_that_stand_twice() -> None:
    """Which of them would count?"""
    good = GOOD.evidence(NONCE)
    data = good.replace(b"\x06\x00\x08\x00", b"\x03\x00\x08\x00", 1)
    with pytest.raises(MalformedEvidence, match="type 3 stand twice"):
        parse_measurements(data)


def test_versions_as_they_are_written() -> None:
    """What is no text is hex; a short version of the VBIOS too."""
    read = parse_measurements(GOOD.evidence(NONCE, more={3: b"\xff\x01", 6: b"\x01\x02"}))
    assert (read.text(3), read.vbios, read.text(99)) == ("ff01", "0102", "")


@pytest.mark.parametrize(
    "chain",
    [
        b"",
        b"x",
        pem("CERTIFICATE", b"\x30\x00").encode(),
        pem("PUBLIC KEY", b"\x30\x00").encode(),
        bytes(MAX_CHAIN_BYTES + 1),
    ],
    ids=["empty", "no PEM", "no certificate", "another", "long"],
)
def test_what_is_no_chain(chain: bytes) -> None:
    """Refused as it is read."""
    with pytest.raises(MalformedEvidence):
        parse_chain(chain)
    with pytest.raises(MalformedEvidence):
        parse_chain("".join(pem("CERTIFICATE", each) for each in GOOD.chain * 3).encode())


@pytest.mark.parametrize("arch", [None, "", "X" * 33, "blackwell", "HOPPER\n", 1])
def test_what_is_no_family(arch: object) -> None:
    """Capital letters and digits."""
    with pytest.raises(MalformedEvidence, match="arch"):
        GPU.parse({**GOOD.item(NONCE), "arch": arch})


def test_what_a_policy_says_of_gpus() -> None:
    """Versions and families of all of them; nothing by default."""
    pair = (GOOD, SoftwareGPU(seed="gpu 1", driver="550.54.15"))
    evidence = GPU.parse([each.item(NONCE) for each in pair])
    claims = GPU.verify(evidence, expected())

    def judged(mode: str = "enforce", **block: object) -> list[Any]:
        head = {"format": "itl-policy/2", "name": "gpus", "version": 1, "mode": mode}
        return list(GPU.judge(claims, evidence, expected(), parse_policy({**head, "gpu": block}))[0])

    assert GPU.judge(claims, evidence, expected(), IDENTITY_ONLY) == ([], ())
    both = ["590.48.01", "550.54.15"]
    assert judged(driver_versions=both, vbios_versions=["97.00.E4.00.11"], arch=["BLACKWELL"]) == [
        Passed("gpu-driver"),
        Passed("gpu-vbios"),
        Passed("gpu-arch"),
    ]
    assert judged(driver_versions=both[:1]) == [Failed("gpu-driver", "590.48.01", "GPU 1: 550.54.15")]
    assert [type(o) for o in judged(arch=["HOPPER"])] == [Failed]
    assert [type(o) for o in judged(vbios_versions=["1"])] == [Failed]
    assert [type(o) for o in judged("report", driver_versions=both[:1])] == [Reported]
    assert [type(o) for o in judged(rim_required=True)] == [Undecided]
    assert [type(o) for o in judged("report", rim_required=True)] == [Flagged]
    found = GPU.follow(claims, expected(), None)[1]
    other = GPU.follow(claims[:1], expected(), None)[1]
    assert (
        GPU.alike(found, IDENTITY_ONLY) == GPU.alike(found, IDENTITY_ONLY) != GPU.alike(other, IDENTITY_ONLY)
    )


@given(st.binary(max_size=200), st.integers(0, 400))
def test_reading_fails_in_one_way_only(data: bytes, place: int) -> None:
    """Bytes, and bytes in the middle of good ones."""
    good = GOOD.evidence(NONCE)
    for each in (data, good[:place] + data + good[place + len(data) :]):
        try:
            parse_measurements(each)
        except MalformedEvidence:
            continue
