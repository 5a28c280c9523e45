"""Containers of certification requests of nodes: what is read, and what is refused."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.errors import MalformedEvidence
from attestation.evidence import node_csr
from attestation.evidence.node_csr import Layout, UnverifiedContainer, bucket_nonce, rebuilt_publics
from attestation.evidence.node_csr.blocks import read_blocks, write_block
from attestation.tpm import Alg, parse_public
from attestation.wire import sized
from tests.vectors import node_csr as vectors

GOOD = vectors.fixture("good")
GKE = vectors.fixture("gke-activated")
CONTAINER = node_csr.parse(GOOD)
TWO_ZEROS = 40_393
"""Private key of a P-256 point whose X begins with two zero bytes."""


def blocks(data: bytes = GOOD) -> dict[str, bytes]:
    """Return the blocks of a container, read by another reader."""
    found: dict[str, bytes] = {}
    for part in data.decode().split("-----BEGIN ")[1:]:
        kind, _, rest = part.partition("-----")
        found[kind] = base64.b64decode(rest.partition("-----END")[0])
    return found


def written(found: dict[str, bytes]) -> bytes:
    """Return a container of these blocks."""
    return b"".join(write_block(kind, content) for kind, content in found.items())


def malformed(data: bytes, match: str) -> None:
    """Assert that *data* is refused for the reason that *match* names."""
    with pytest.raises(MalformedEvidence, match=match):
        node_csr.parse(data)


def with_evidence(change: Callable[[dict[str, Any]], None] | bytes, data: bytes = GOOD) -> bytes:
    """Return a good container with other evidence."""
    found = blocks(data)
    kind = "ITL EVIDENCE" if data is GOOD else "VM IDENTITY"
    if isinstance(change, bytes):
        found[kind] = change
    else:
        said = json.loads(found[kind])
        change(said)
        found[kind] = json.dumps(said).encode()
    return written(found)


def test_a_good_container() -> None:
    """Every field is what the blocks hold, as another reader finds them; written again it is the same."""
    found = blocks()
    evidence = json.loads(found["ITL EVIDENCE"])
    assert CONTAINER.layout is Layout.ITL_V1
    assert CONTAINER.csr_der == found["CERTIFICATE REQUEST"]
    assert (CONTAINER.machine_id, CONTAINER.nonce_id) == (evidence["machine_id"], evidence["nonce_id"])
    assert CONTAINER.public == found["TPM PUBLIC"]
    assert (CONTAINER.attest, CONTAINER.signature) == (found["TPM ATTEST"], found["TPM SIGNATURE"])
    assert (CONTAINER.quote, CONTAINER.quote_signature) == (found["TPM QUOTE"], found["TPM QUOTE SIGNATURE"])
    assert CONTAINER.pcr_values == evidence["pcr_values"]
    assert CONTAINER.event_log is None
    assert CONTAINER.serialise() == GOOD
    assert node_csr.is_container(GOOD)
    assert not node_csr.is_container(GOOD[: GOOD.index(b"-----BEGIN ITL")])


def test_the_layout_of_the_seed() -> None:
    """Likewise."""
    found = blocks(GKE)
    container = node_csr.parse(GKE)
    assert container.layout is Layout.GKE_V1
    assert container.attest == found["ATTESTATION DATA"]
    assert container.signature == found["ATTESTATION SIGNATURE"]
    assert container.ak_certificate == found["ATTESTATION CERTIFICATE"]
    assert container.vm_identity is not None
    assert container.vm_identity.id == json.loads(found["VM IDENTITY"])["id"]
    assert (container.machine_id, container.public) == (None, None)
    assert container.serialise() == GKE
    del found["ATTESTATION CERTIFICATE"]
    bare = written(found)
    assert node_csr.parse(bare).ak_certificate is None
    assert node_csr.parse(bare).serialise() == bare


def test_building() -> None:
    """What was parsed is built again; without a nonce, a quote or a log, and with a log; nothing ill-formed is."""
    assert CONTAINER.pcr_values is not None
    assert CONTAINER.public is not None
    assert CONTAINER.machine_id is not None

    def build(**changes: Any) -> bytes:
        assert CONTAINER.pcr_values is not None
        values = {
            bank: {int(index): bytes.fromhex(text) for index, text in found.items()}
            for bank, found in CONTAINER.pcr_values.items()
        }
        return node_csr.build(
            CONTAINER.csr_der,
            **{
                "machine_id": CONTAINER.machine_id,
                "nonce_id": CONTAINER.nonce_id,
                "public": CONTAINER.public,
                "attest": CONTAINER.attest,
                "signature": CONTAINER.signature,
                "quote": CONTAINER.quote,
                "quote_signature": CONTAINER.quote_signature,
                "pcr_values": values,
                **changes,
            },
        )

    assert build() == GOOD
    assert node_csr.parse(build(nonce_id=None)).nonce_id is None
    assert node_csr.parse(build(event_log=b"log")).event_log == b"log"
    bare = node_csr.parse(build(quote=None, quote_signature=None, pcr_values=None))
    assert (bare.quote, bare.pcr_values) == (None, None)
    with pytest.raises(MalformedEvidence):
        build(machine_id="me")
    with pytest.raises(MalformedEvidence):
        build(quote=None)


# ---------------------------------------------------------------- the text


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "no blocks"),
        (b"\n" + GOOD, "outside of a block"),
        (b"text\n" + GOOD, "outside of a block"),
        (GOOD + b"\n", "behind the last block"),
        (GOOD + b"\r\n", "behind the last block"),
        (GOOD + b"\0", "outside of a block"),
        (GOOD + b" ", "outside of a block"),
        (GOOD[:-1] + b"x", "more behind the dashes"),
        (GOOD.replace(b"\n-----BEGIN ITL", b"\n \n-----BEGIN ITL"), "outside of a block"),
        (GOOD.replace(b"\n-----BEGIN ITL", b"\n-----BEGIN ITL".replace(b"\n", b"\r")), "outside|behind"),
        (GOOD.replace(b"ITL EVIDENCE", b"ITL EVIDENTS"), "unknown type"),
        (GOOD.replace(b"ITL EVIDENCE", "ITL EVIDENÇE".encode()), "not ASCII"),
        (
            GOOD.replace(b"BEGIN ITL EVIDENCE-----", b"BEGIN ITL EVIDENCE----x"),
            "unknown type|without a type|more",
        ),
        (b"-----BEGIN " + b"A" * 200, "without a type"),
        (GOOD.replace(b"BEGIN ITL EVIDENCE-----\n", b"BEGIN ITL EVIDENCE-----x\n"), "more behind the dashes"),
        (GOOD.replace(b"BEGIN ITL EVIDENCE-----\n", b"BEGIN ITL EVIDENCE-----\nA: b\n\n"), "lines of 64"),
        (GOOD.replace(b"BEGIN ITL EVIDENCE-----\n", b"BEGIN ITL EVIDENCE-----\n\n"), "lines of 64"),
        (GOOD.replace(b"\n-----END ITL", b"\n\n-----END ITL"), "lines of 64"),
        (GOOD.replace(b"\n-----END ITL", b"-----END ITL"), "lines of 64"),
        (GOOD.replace(b"\n-----END ITL", b"=\n-----END ITL"), "base64"),
        (GOOD.replace(b"-----END ITL EVIDENCE-----", b"-----END TPM PUBLIC-----"), "does not end"),
        (GOOD[: GOOD.rindex(b"-----END")], "does not end"),
        (GOOD + write_block("TPM ATTEST", CONTAINER.attest), "twice"),
        (b"-----BEGIN TPM PUBLIC-----\n-----END TPM PUBLIC-----\n", "lines of 64"),
        (write_block("CERTIFICATE REQUEST", bytes(16385)), "longer than"),
        (write_block("CERTIFICATE REQUEST", bytes(20000)), "longer than"),
        (write_block("EVENT LOG", bytes(node_csr.MAX_EVENT_LOG_BYTES + 60)), "longer than"),
        (GOOD + b"\n" * node_csr.MAX_CONTAINER_BYTES, "at most 1048576"),
    ],
)
def test_text_that_is_refused(data: bytes, match: str) -> None:
    """Each byte has a place, or the whole is refused; so no two readers take different blocks from it."""
    malformed(data, match)


def test_lines_may_end_as_on_windows() -> None:
    """CR LF ends a line as LF does, and between blocks there may be any of both; the last line needs no end."""
    assert node_csr.parse(GOOD.replace(b"\n", b"\r\n")) == CONTAINER
    assert node_csr.parse(GOOD.replace(b"\n-----BEGIN", b"\n\r\n\n-----BEGIN")) == CONTAINER
    assert node_csr.parse(GOOD[:-1]) == CONTAINER


def test_a_block_may_be_as_long_as_its_cap() -> None:
    """Exactly; with lines that end in CR LF too."""
    for size in (1, 47, 48, 49, 2048):
        text = write_block("TPM PUBLIC", bytes(size))
        assert read_blocks(text, {"TPM PUBLIC": size}) == {"TPM PUBLIC": bytes(size)}
        assert read_blocks(text.replace(b"\n", b"\r\n"), {"TPM PUBLIC": size}) == {"TPM PUBLIC": bytes(size)}
        with pytest.raises(MalformedEvidence, match="longer than"):
            read_blocks(write_block("TPM PUBLIC", bytes(size + 1)), {"TPM PUBLIC": size})


# ---------------------------------------------------------------- which blocks


@pytest.mark.parametrize("kind", list(blocks()))
def test_each_block_is_needed(kind: str) -> None:
    """Without one of them it is another layout, or none."""
    found = blocks()
    del found[kind]
    with pytest.raises(MalformedEvidence):
        node_csr.parse(written(found))


@pytest.mark.parametrize("kind", [kind for kind in blocks(GKE) if kind != "ATTESTATION CERTIFICATE"])
def test_each_block_of_the_seed_is_needed(kind: str) -> None:
    """Likewise."""
    found = blocks(GKE)
    del found[kind]
    with pytest.raises(MalformedEvidence):
        node_csr.parse(written(found))


def test_layouts_are_not_mixed() -> None:
    """A block of the other layout is in none."""
    malformed(GOOD + write_block("ATTESTATION DATA", CONTAINER.attest), "itl-v1")
    malformed(GKE + write_block("TPM ATTEST", CONTAINER.attest), "gke-v1")
    malformed(written({"CERTIFICATE REQUEST": CONTAINER.csr_der}), "no evidence")
    malformed(written({"TPM ATTEST": CONTAINER.attest, **blocks()}), "does not begin with")


def test_a_log_needs_a_quote() -> None:
    """It explains what was quoted; without a quote it explains nothing."""
    found = blocks()
    found["EVENT LOG"] = b"log"
    assert node_csr.parse(written(found)).event_log == b"log"
    for kind in ("TPM QUOTE", "TPM QUOTE SIGNATURE"):
        del found[kind]
    malformed(written(found), "itl-v1")


# ---------------------------------------------------------------- what is in them


def drop(*names: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that takes members away."""

    def change(said: dict[str, Any]) -> None:
        for name in names:
            del said[name]

    return change


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets a member."""

    def change(said: dict[str, Any]) -> None:
        said[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (b"", "lines of 64|not the JSON"),
        (b"[]", "other members"),
        (b"1", "other members"),
        (b"\xff", "not the JSON"),
        (b"\xef\xbb\xbf{}", "not the JSON"),
        (json.dumps({"v": 1}).encode("utf-16"), "not the JSON"),
        (b"[" * 9, "more objects"),
        (b"{" * 9, "more objects"),
        (b'{"v":1,"v":1,"machine_id":"x"}', "not the JSON"),
        (b'{"v":NaN}', "not the JSON"),
        (b'{"v":1.0}', "not the JSON"),
        (b'{"v":' + b"1" * 5000 + b"}", "not the JSON"),
        (drop("machine_id"), "other members"),
        (drop("v"), "other members"),
        (put("more", 1), "other members"),
        (put("v", 2), "version"),
        (put("v", True), "version"),
        (put("v", "1"), "version"),
        (put("machine_id", 7), "machine_id"),
        (put("machine_id", "7F3AD3AC-0F0E-4C55-9D4A-3F6F0E1B2C3D"), "machine_id"),
        (put("machine_id", "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d\n"), "machine_id"),
        (put("nonce_id", "0f"), "nonce_id"),
        (put("nonce_id", None), "nonce_id"),
        (drop("pcr_values"), "without a quote"),
        (put("pcr_values", []), "PCR values"),
        (put("pcr_values", {}), "PCR values"),
        (put("pcr_values", {str(i): {} for i in range(5)}), "PCR values"),
        (put("pcr_values", {"sha256": "x"}), "PCR values"),
        (put("pcr_values", {"sha256": {"0": 1}}), "PCR values"),
    ],
)
def test_evidence_that_is_refused(change: Callable[[dict[str, Any]], None] | bytes, match: str) -> None:
    """The JSON has the members of its version, each once and of its type, and no other."""
    malformed(with_evidence(change), match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (b"{}", "other members"),
        (put("zone", 1), "no text"),
        (put("name", None), "no text"),
        (put("project_name", []), "no text"),
        (put("id", -1), "64 bits"),
        (put("id", 1 << 64), "64 bits"),
        (put("id", True), "64 bits"),
        (put("project_id", "42"), "64 bits"),
    ],
)
def test_identities_that_are_refused(change: Callable[[dict[str, Any]], None] | bytes, match: str) -> None:
    """Likewise, of the other layout."""
    malformed(with_evidence(change, GKE), match)


def test_structures_are_read_to_their_last_byte() -> None:
    """Each of them; and each is of the type and magic of its block, whoever signed it."""
    found = blocks()
    for kind in ("TPM PUBLIC", "TPM ATTEST", "TPM SIGNATURE", "TPM QUOTE", "TPM QUOTE SIGNATURE"):
        malformed(written({**found, kind: found[kind] + b"\0"}), "trailing|bytes")
        malformed(written({**found, kind: found[kind][:-1]}), "needs|ends|bytes")
    malformed(written({**found, "CERTIFICATE REQUEST": found["CERTIFICATE REQUEST"] + b"\0"}), "trailing")
    malformed(written({**found, "TPM ATTEST": found["TPM QUOTE"]}), "no certification")
    malformed(written({**found, "TPM QUOTE": found["TPM ATTEST"]}), "no quote")
    for kind, words in (("TPM ATTEST", "no certification"), ("TPM QUOTE", "no quote")):
        malformed(written({**found, kind: b"\xff\x54\x43\x48" + found[kind][4:]}), words)
    seed = blocks(GKE)
    malformed(written({**seed, "ATTESTATION DATA": found["TPM QUOTE"]}), "no certification")
    malformed(written({**seed, "ATTESTATION SIGNATURE": bytes(255)}), "256 bytes")


def test_the_request_is_der() -> None:
    """The reader of requests takes PEM as well; here that would be a second way to write the same."""
    found = blocks()
    pem = write_block("CERTIFICATE REQUEST", found["CERTIFICATE REQUEST"])
    malformed(written({**found, "CERTIFICATE REQUEST": pem}), "not DER")


def test_the_two_forms_of_a_point() -> None:
    """A coordinate is padded to the field or minimal; a third form is no point, and no other key is."""
    name = "h-resident-x-stripped"
    container = node_csr.parse(vectors.fixture(name))
    assert container.public is not None
    area = parse_public(container.public)
    assert len(area.x) == 31
    for x in (b"\0" + area.x, area.x):
        public = sized(replace(area, x=x).serialise())
        assert node_csr.parse(replace(container, public=public).serialise()).public == public
    two = ec.derive_private_key(TWO_ZEROS, ec.SECP256R1()).public_key().public_numbers()
    for size in (32, 31, 30):
        public = sized(replace(area, x=two.x.to_bytes(size), y=two.y.to_bytes(32)).serialise())
        data = replace(container, public=public).serialise()
        if size == 31:
            malformed(data, "neither padded")
        else:
            assert node_csr.parse(data).public == public
    off = sized(replace(area, x=b"\1" * 32).serialise())
    malformed(replace(container, public=off).serialise(), "valid key")


def test_a_key_of_rsa_has_no_point() -> None:
    """It is taken as it is."""
    aik = parse_public(base64.b64decode(vectors.index()["keys"]["aik"]))
    assert aik.type == Alg.RSA
    node_csr.check_point(aik)


# ---------------------------------------------------------------- what follows from elsewhere


def test_the_public_area_of_the_seed() -> None:
    """88 bytes as the specification writes them; the second form where a coordinate has a leading zero."""
    key = ec.derive_private_key(3, ec.SECP256R1()).public_key()
    numbers = key.public_numbers()
    (public,) = rebuilt_publics(key)
    fixed = bytes.fromhex("0023000b0004004000000010" + "0018000b" + "0003" + "0010")
    assert public.tpmt == fixed + sized(numbers.x.to_bytes(32)) + sized(numbers.y.to_bytes(32))
    assert len(public.tpmt) == 88
    zero = next(
        k
        for d in range(1, 3000)
        if (k := ec.derive_private_key(d, ec.SECP256R1()).public_key()).public_numbers().x < 1 << 248
    )
    padded, minimal = rebuilt_publics(zero)
    assert (len(padded.tpmt), len(minimal.tpmt)) == (88, 87)
    assert padded.key() == minimal.key() == zero
    assert rebuilt_publics(ec.derive_private_key(3, ec.SECP384R1()).public_key()) == ()


def test_buckets_of_time() -> None:
    """One nonce for 300 s and a cluster; the one before is that of 300 s ago."""
    at = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)
    nonce = bucket_nonce("edge", at)
    assert len(nonce) == 32
    assert nonce == bucket_nonce("edge", at + timedelta(seconds=298))
    assert nonce != bucket_nonce("edge", at + timedelta(seconds=299))
    assert nonce != bucket_nonce("other", at)
    assert bucket_nonce("edge", at, back=1) == bucket_nonce("edge", at - timedelta(seconds=300))
    bucket = struct.pack(">Q", int(at.timestamp()) // 300)
    parts = (b"itl-node-csr-bucket/v1", b"edge", bucket)
    assert nonce == hashlib.sha256(b"".join(struct.pack(">I", len(p)) + p for p in parts)).digest()


def test_a_container_says_little_of_itself() -> None:
    """Its text has no evidence in it, so a log line with it stays short."""
    assert len(repr(CONTAINER)) < 300
    assert isinstance(CONTAINER, UnverifiedContainer)


# ---------------------------------------------------------------- what hostile bytes cost


def calls(data: bytes) -> int:
    """Return how many functions were called to read *data*, or to refuse it."""
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        with contextlib.suppress(MalformedEvidence):
            node_csr.is_container(data)
            node_csr.parse(data)
    finally:
        sys.setprofile(before)
    return count


LINE = b"A" * 64 + b"\n"
BEGIN, END = b"-----BEGIN EVENT LOG-----\n", b"-----END EVENT LOG-----\n"


@pytest.mark.parametrize(
    ("head", "repeated", "tail"),
    [
        (b"", b"-", b""),
        (b"", b"-----BEGIN ", b""),
        (b"", b"-----BEGIN CERTIFICATE REQUEST-----\n", b""),
        (b"", b"BEGIN TPM PUBLIC", b""),
        (GOOD, b"\n", b""),
        (GOOD, b"\r", b"x"),
        (b"", write_block("TPM ATTEST", CONTAINER.attest), b""),
        (BEGIN, LINE, END),
        (BEGIN, b"A\n", END),
        (BEGIN, b"\r\n", END),
        (BEGIN, b"=", b"\n" + END),
        (GOOD[: GOOD.index(b"-----BEGIN ITL")], b"-----END ", b""),
    ],
)
def test_a_megabyte_costs_no_more_than_its_lines(head: bytes, repeated: bytes, tail: bytes) -> None:
    """Twice the bytes are at most twice the work, and a full container at most a call for each two bytes of a line."""
    work = []
    for size in (1 << 18, 1 << 19, node_csr.MAX_CONTAINER_BYTES):
        room = size - len(head) - len(tail)
        work.append(calls(head + repeated * (room // len(repeated)) + tail))
    assert work[1] <= 2 * work[0] + 200
    assert work[2] <= 2 * work[1] + 200
    assert work[2] <= node_csr.MAX_CONTAINER_BYTES // 2
