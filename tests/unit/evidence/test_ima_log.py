"""IMA lists: what is read, what is believed, and what is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attestation.errors import IMALogRejected, MalformedEvidence
from attestation.evidence import ima_log
from attestation.tpm import Alg, bank_alg
from tests.vectors import SHARED, needs_shared

FOLDER = SHARED / "eventlog"


def field(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def entry(
    path: bytes = b"/bin/sh",
    digest: bytes = b"\x11" * 32,
    *,
    template: bytes = b"ima-ng",
    algorithm: bytes = b"sha256",
    pcr: int = 10,
    violation: bool = False,
    listed: bytes | None = None,
    more: bytes = b"",
) -> bytes:
    """Make one entry; *more* are further fields."""
    if template == b"ima":
        hashed = digest[:20] + path.ljust(256, b"\0")
        body = digest[:20] + field(path)
    else:
        hashed = field(algorithm + b":\0" + digest) + field(path + b"\0") + more
        body = field(hashed)
    template_hash = bytes(20) if violation else listed or hashlib.sha1(hashed).digest()
    return struct.pack("<I", pcr) + template_hash + field(template) + body


QUOTED = {i: bytes([i]) * 32 for i in range(10)}
AGGREGATE = hashlib.sha256(b"".join(QUOTED.values())).digest()
FIRST = entry(b"boot_aggregate", AGGREGATE)
PARTS = [
    FIRST,
    entry(template=b"ima-sig", more=field(b"\x03\x02signature")),
    entry(template=b"ima-buf", path=b"kexec-cmdline", more=field(b"quiet")),
    entry(template=b"ima-ngv2", algorithm=b"ima:sha256"),
    entry(template=b"ima-sigv2", algorithm=b"verity:sha512", digest=b"\x12" * 64, more=field(b"")),
    entry(template=b"ima", path=b"/old"),
    entry(b"/tmp/written", violation=True),
]
GOOD = b"".join(PARTS)


def verified(data: bytes, pcr10: bytes | None = None, **more: Any) -> ima_log.IMALogClaims:
    log = ima_log.parse(data)
    quoted = pcr10 if pcr10 is not None else ima_log.replay(log, Alg.SHA256)
    return ima_log.verify(log, bank=Alg.SHA256, quoted_pcr10=quoted, **more)


def refused(data: bytes, match: str, **more: Any) -> None:
    with pytest.raises(IMALogRejected, match=match):
        verified(data, **more)


def malformed(data: bytes, match: str = "IMA list") -> None:
    with pytest.raises(MalformedEvidence, match=match):
        ima_log.parse(data)


# ---------------------------------------------------------------- what is believed


def test_every_template_is_read() -> None:
    """Path, algorithm, digest, template and violation of each template that the kernel writes."""
    claims = verified(GOOD, quoted=QUOTED)
    assert [(e.template, e.path, e.algorithm, e.violation) for e in claims.entries] == [
        ("ima-ng", "boot_aggregate", "sha256", False),
        ("ima-sig", "/bin/sh", "sha256", False),
        ("ima-buf", "kexec-cmdline", "sha256", False),
        ("ima-ngv2", "/bin/sh", "sha256", False),
        ("ima-sigv2", "/bin/sh", "sha512", False),
        ("ima", "/old", "sha1", False),
        ("ima-ng", "/tmp/written", "sha256", True),
    ]
    assert claims.entries[1].digest == "11" * 32
    assert claims.boot_aggregate_checked
    assert (claims.later, len(claims.violations)) == (0, 1)
    assert claims.sha256 == hashlib.sha256(GOOD).hexdigest()


def test_a_list_may_be_longer_than_what_was_quoted() -> None:
    """What was measured after the quote is counted and not claimed."""
    short = ima_log.replay(ima_log.parse(FIRST + entry()), Alg.SHA256)
    claims = verified(GOOD[: len(FIRST)] + entry() + entry(b"/later"), short)
    assert [e.path for e in claims.entries] == ["boot_aggregate", "/bin/sh"]
    assert claims.later == 1


def test_the_aggregate_of_older_kernels() -> None:
    """Kernels before 5.8 hash PCR 0-7."""
    old = hashlib.sha256(b"".join(QUOTED[i] for i in range(8))).digest()
    assert verified(entry(b"boot_aggregate", old), quoted=QUOTED).boot_aggregate_checked


def test_an_aggregate_that_cannot_be_compared_is_said_to_be_unchecked() -> None:
    """Without PCR 0-9 in the bank of the aggregate nothing is claimed of it."""
    assert not verified(FIRST).boot_aggregate_checked
    assert not verified(FIRST, quoted={0: bytes(32)}).boot_aggregate_checked
    other = entry(b"boot_aggregate", b"\x11" * 20, algorithm=b"sha1")
    assert not verified(other, quoted=QUOTED).boot_aggregate_checked


def test_odd_bytes_of_a_path_are_escaped() -> None:
    """A path is no text: what is not UTF-8 is shown escaped."""
    assert verified(FIRST + entry(b"/\xff")).entries[1].path == "/\\xff"


# ---------------------------------------------------------------- what is refused


def test_another_value_is_refused() -> None:
    """A list that leads elsewhere proves nothing."""
    refused(GOOD, "does not lead", pcr10=bytes(32))


@pytest.mark.threat("T66")
def test_the_sha1_bank_is_refused() -> None:
    """SHA-1 proves nothing."""
    log = ima_log.parse(GOOD)
    with pytest.raises(IMALogRejected, match="SHA-1"):
        ima_log.verify(log, bank=Alg.SHA1, quoted_pcr10=ima_log.replay(log, Alg.SHA1))


@pytest.mark.threat("T66")
@pytest.mark.parametrize("violation", [False, True])
def test_padded_sha1_is_refused_by_name(violation: bool) -> None:
    """A bank into which the kernel extends SHA-1 hashes proves no more than SHA-1; the message says what to do."""
    data = FIRST + entry(violation=violation)
    value = bytes(32)
    for record in ima_log.parse(data).records:
        fill = b"\xff" * 32 if record.entry.violation else record.template_hash + bytes(12)
        value = hashlib.sha256(value + fill).digest()
    refused(data, "SHA-1 hashes into the sha256 bank", pcr10=value)


@pytest.mark.threat("T66")
def test_a_template_hash_that_is_not_of_its_data_is_refused() -> None:
    """Otherwise a listed hash of zeros could mean anything."""
    refused(FIRST + entry(listed=b"\x01" * 20), "entry 1 is not what")


def test_an_entry_of_another_pcr_is_refused() -> None:
    """It is covered by nothing."""
    refused(FIRST + entry(pcr=11), "PCR 11")


@pytest.mark.threat("T66")
def test_a_list_of_another_boot_is_refused() -> None:
    """The first entry must be of the PCRs quoted with PCR 10."""
    refused(FIRST, "other PCRs", quoted={**QUOTED, 4: bytes(32)})
    refused(entry() + FIRST, "begin with boot_aggregate")


@pytest.mark.threat("T66")
def test_a_changed_entry_never_passes() -> None:
    """Dropped, doubled, swapped, renamed: each leads elsewhere."""
    one, two, three = FIRST, entry(b"/one"), entry(b"/two")
    pcr10 = ima_log.replay(ima_log.parse(one + two + three), Alg.SHA256)
    assert verified(one + two + three, pcr10).later == 0
    for changed in (one + three, one + two + two + three, one + three + two, one + entry(b"/x") + three):
        refused(changed, "does not lead", pcr10=pcr10)


@pytest.mark.threat("T66")
@example(GOOD.index(b"/tmp/written") - 5, 0)  # the digest beside the violation, which nothing covers
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 7))
def test_no_flipped_bit_changes_what_is_believed(where: int, bit: int) -> None:
    """With any single bit changed the list is refused, or says the same of every file.

    Not measured: the names of templates with the same fields, and the path of a violation.
    """
    pcr10 = ima_log.replay(ima_log.parse(GOOD), Alg.SHA256)
    data = bytearray(GOOD)
    data[where] ^= 1 << bit
    try:
        claims = verified(bytes(data), pcr10)
    except (MalformedEvidence, IMALogRejected):
        return
    assert measured(claims) == measured(verified(GOOD, pcr10))


def measured(claims: ima_log.IMALogClaims) -> list[tuple[str, ...]]:
    return [(e.digest,) if e.violation else (e.path, e.algorithm, e.digest) for e in claims.entries]


# ---------------------------------------------------------------- what cannot be read


def test_truncated_at_every_byte() -> None:
    """A list that ends inside an entry cannot be read; one that ends behind an entry is a shorter list."""
    ends = {len(b"".join(PARTS[:i])) for i in range(1, len(PARTS))}
    for cut in range(len(GOOD)):
        if cut in ends:
            ima_log.parse(GOOD[:cut])
        else:
            malformed(GOOD[:cut])


@pytest.mark.threat("T65")
def test_limits() -> None:
    """Bytes and entries are bounded before anything is read."""
    malformed(bytes(ima_log.MAX_LIST_BYTES + 1), "at most")
    small = entry(b"/", template=b"ima")
    malformed(small * (ima_log.MAX_ENTRIES + 1), "more than")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "no entries"),
        (entry(pcr=24), "of PCR 24"),
        (entry(template=b"ima-xyz"), "no template"),
        (FIRST[:24] + struct.pack("<I", 2**32 - 1) + FIRST[28:], "no template"),
        (FIRST[:34] + struct.pack("<I", 2**32 - 1) + FIRST[38:], "announced"),
        (entry(more=b"\0"), "behind the fields"),
        (entry(template=b"ima-sig"), "no length"),
        (entry(algorithm=b"sha384"), "digest field"),
        (entry(algorithm=b"crc"), "digest field"),
        (entry(path=b"/a\0b"), "only NUL"),
        (entry(path=b"/" + bytes([97]) * 4096), "only NUL"),
        (entry(path=b"a" * 256, template=b"ima"), "256 bytes"),
    ],
)
def test_malformed(data: bytes, match: str) -> None:
    """Each rule of the layout, broken."""
    malformed(data, match)


def test_a_digest_field_without_its_mark_is_malformed() -> None:
    """`sha256:` must be followed by NUL."""
    hashed = field(b"sha256" + bytes(33)) + field(b"/a\0")
    malformed(struct.pack("<I", 10) + bytes(20) + field(b"ima-ng") + field(hashed), "digest field")
    hashed = field(b"sha256:\0" + bytes(32)) + field(b"/a")
    malformed(struct.pack("<I", 10) + bytes(20) + field(b"ima-ng") + field(hashed), "only NUL")


@given(st.binary(max_size=512))
def test_parse_fails_in_one_way_only(data: bytes) -> None:
    """Whatever arrives, a caller sees a list or MalformedEvidence."""
    for prefix in (b"", FIRST):
        try:
            log = ima_log.parse(prefix + data)
        except MalformedEvidence:
            continue
        assert ima_log.replay(log, Alg.SHA384)


# ---------------------------------------------------------------- lists of real kernels


def _lists() -> list[dict[str, Any]]:
    path = FOLDER / "expected.json"
    logs = json.loads(path.read_text())["logs"] if path.exists() else []
    return [log for log in logs if log.get("format") == "ima"]


def _boots() -> list[dict[str, Any]]:
    path = FOLDER / "expected.json"
    logs = json.loads(path.read_text())["logs"] if path.exists() else []
    return [log for log in logs if "ima" in log]


@needs_shared
@pytest.mark.parametrize("expected", _lists(), ids=lambda x: x["id"])
def test_public_lists(expected: dict[str, Any]) -> None:
    """A stray byte is the typed error; without it each list has its entries and leads to its PCR 10."""
    data = (FOLDER / expected["file"]).read_bytes()
    if expected["result"] != "parses":
        malformed(data)
        if not expected["entries"]:
            return
        data = data[:-1]
    log = ima_log.parse(data)
    assert ima_log.replay(log, Alg.SHA1).hex() == expected["pcr10"]["sha1"]
    assert ima_log.replay(log, Alg.SHA256).hex() == expected["pcr10"]["sha256_of_template_data"]
    assert len(log.records) == expected["entries"]
    for record, want in zip(log.records, expected["entry_list"], strict=False):
        told = record.entry
        assert told.violation or f"{told.algorithm}:{told.digest}" == want["file_digest"]
        assert (told.path, told.template, told.violation) == (
            want["path"],
            want["template"],
            want["violation"],
        )


@needs_shared
@pytest.mark.parametrize("expected", _boots(), ids=lambda x: x["id"])
def test_own_boots_lead_to_the_quoted_pcr10(expected: dict[str, Any]) -> None:
    """In the SHA-256 bank every list leads to PCR 10 and began with this boot; the SHA-384 bank is refused by name."""
    log = ima_log.parse((FOLDER / expected["ima"]["file"]).read_bytes())
    assert len(log.records) == expected["ima"]["entries"]
    for bank in set(expected["recorded_pcrs"]) - {"sha1"}:
        quoted = {int(i): bytes.fromhex(v) for i, v in expected["recorded_pcrs"][bank].items()}
        how = expected["ima"]["pcr10_extended_with"][bank]
        if "padded" in how:
            with pytest.raises(IMALogRejected, match="another bank"):
                ima_log.verify(log, bank=bank_alg(bank), quoted_pcr10=quoted[10], quoted=quoted)
        else:
            claims = ima_log.verify(log, bank=bank_alg(bank), quoted_pcr10=quoted[10], quoted=quoted)
            assert claims.boot_aggregate_checked == (bank == "sha256")
            assert claims.later == 0
