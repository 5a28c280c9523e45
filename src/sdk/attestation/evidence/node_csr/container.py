"""What a node puts into `spec.request`: its certification request, and behind it what its TPM says of the key.

Two layouts, told apart by their blocks (HSM-AND-KUBERNETES §18):

    itl-v1   CERTIFICATE REQUEST, ITL EVIDENCE, TPM PUBLIC, TPM ATTEST, TPM SIGNATURE,
             and TPM QUOTE with TPM QUOTE SIGNATURE, and with these an EVENT LOG
    gke-v1   CERTIFICATE REQUEST, ATTESTATION DATA, ATTESTATION SIGNATURE, VM IDENTITY,
             and ATTESTATION CERTIFICATE; as published in kubernetes/cloud-provider-gcp until June 2024
"""

# Algorithms for: certified-key
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from attestation.errors import MalformedEvidence
from attestation.evidence.node_csr.blocks import read_blocks, write_block
from attestation.pki.request import MAX_CSR_BYTES, read_request
from attestation.pki.requested import requested_names
from attestation.tpm import (
    TPM_GENERATED,
    CertifyInfo,
    Public,
    QuoteInfo,
    parse_attest,
    parse_public,
    parse_signature,
)
from attestation.tpm.constants import MAX_ATTEST_BYTES, MAX_PUBLIC_BYTES, MAX_SIGNATURE_BYTES, Alg, Curve
from attestation.wire import canonical_json, named_once

MEDIA_TYPE = "application/vnd.itl.node-csr"

MAX_CONTAINER_BYTES: Final = 1 << 20
"""The API server keeps objects up to about 1.5 MB."""
MAX_EVENT_LOG_BYTES: Final = 512 << 10
MAX_EVIDENCE_BYTES: Final = 16 << 10
MAX_CERTIFICATE_BYTES: Final = 8 << 10
RAW_SIGNATURE_BYTES: Final = 256
"""Of RSASSA-PKCS1-v1_5 with RSA 2048: the one kind of AIK of gke-v1."""

REQUEST: Final = "CERTIFICATE REQUEST"
_EVIDENCE: Final = "ITL EVIDENCE"
_PUBLIC: Final = "TPM PUBLIC"
_ATTEST: Final = "TPM ATTEST"
_SIGNATURE: Final = "TPM SIGNATURE"
_QUOTE: Final = "TPM QUOTE"
_QUOTE_SIGNATURE: Final = "TPM QUOTE SIGNATURE"
_EVENT_LOG: Final = "EVENT LOG"
_DATA: Final = "ATTESTATION DATA"
_RAW_SIGNATURE: Final = "ATTESTATION SIGNATURE"
_VM: Final = "VM IDENTITY"
_CERTIFICATE: Final = "ATTESTATION CERTIFICATE"

_ITL: Final = {
    _EVIDENCE: MAX_EVIDENCE_BYTES,
    _PUBLIC: MAX_PUBLIC_BYTES,
    _ATTEST: MAX_ATTEST_BYTES,
    _SIGNATURE: MAX_SIGNATURE_BYTES,
    _QUOTE: MAX_ATTEST_BYTES,
    _QUOTE_SIGNATURE: MAX_SIGNATURE_BYTES,
    _EVENT_LOG: MAX_EVENT_LOG_BYTES,
}
_GKE: Final = {
    _DATA: MAX_ATTEST_BYTES,
    _RAW_SIGNATURE: MAX_SIGNATURE_BYTES,
    _VM: MAX_EVIDENCE_BYTES,
    _CERTIFICATE: MAX_CERTIFICATE_BYTES,
}
_LIMITS: Final = {REQUEST: MAX_CSR_BYTES, **_ITL, **_GKE}
_ITL_NEEDED: Final = frozenset({REQUEST, _EVIDENCE, _PUBLIC, _ATTEST, _SIGNATURE})
_ITL_QUOTED: Final = frozenset({_QUOTE, _QUOTE_SIGNATURE})
_GKE_NEEDED: Final = frozenset({REQUEST, _DATA, _RAW_SIGNATURE, _VM})
_MARKS: Final = tuple(b"BEGIN " + kind.encode("ascii") for kind in (*_ITL, *_GKE))
"""Without the dashes: in a megabyte of them, a search for what begins or ends so begins anew at each."""

_MACHINE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NONCE_ID: Final = re.compile(r"[0-9a-f]{32}")
_FIELD_BYTES: Final[Mapping[int, int]] = {Curve.NIST_P256: 32, Curve.NIST_P384: 48, Curve.NIST_P521: 66}
_MAX_OBJECTS: Final = 8
"""Braces and brackets of the JSON: the object, the PCR values, four banks."""
_MAX_BANKS: Final = 4
_MAX_U64: Final = (1 << 64) - 1


class Layout(StrEnum):
    """How a container is written."""

    ITL_V1 = "itl-v1"
    GKE_V1 = "gke-v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class VMIdentity:
    """What a machine of gke-v1 says of itself: compared only, never believed."""

    zone: str
    id: int
    name: str
    project_id: int
    project_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedContainer:
    """A parsed container. Nothing in it may be believed yet, not even that its request is signed.

    Args:
        layout: How it was written.
        csr_der: The certification request.
        attest: TPMS_ATTEST of type certify, without a size.
        signature: itl-v1: TPMT_SIGNATURE over it. gke-v1: RSASSA-PKCS1-v1_5 with SHA-256, 256 bytes.
        machine_id: itl-v1: whose TPM it says it is of.
        nonce_id: itl-v1: of the challenge that it answers; None where it answers a bucket of time.
        public: itl-v1: TPM2B_PUBLIC of the certified key, with its size.
        pcr_values: Bank name -> index, decimal -> digest, hex: as sent; there exactly where a quote is.
        quote: TPMS_ATTEST of type quote; None where there is none.
        quote_signature: TPMT_SIGNATURE over it.
        event_log: What firmware says that it measured; only with a quote.
        vm_identity: gke-v1: what it says of itself.
        ak_certificate: gke-v1: DER of the certificate of the key that signed; None where there is none.
    """

    layout: Layout
    csr_der: bytes = field(repr=False)
    attest: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    machine_id: str | None = None
    nonce_id: str | None = None
    public: bytes | None = field(default=None, repr=False)
    pcr_values: Mapping[str, Mapping[str, str]] | None = field(default=None, repr=False)
    quote: bytes | None = field(default=None, repr=False)
    quote_signature: bytes | None = field(default=None, repr=False)
    event_log: bytes | None = field(default=None, repr=False)
    vm_identity: VMIdentity | None = None
    ak_certificate: bytes | None = field(default=None, repr=False)

    def serialise(self) -> bytes:
        """Return the container written from the fields."""
        if self.layout is Layout.GKE_V1:
            vm = self.vm_identity
            assert vm is not None
            said: dict[str, object] = {
                "zone": vm.zone,
                "id": vm.id,
                "name": vm.name,
                "project_id": vm.project_id,
                "project_name": vm.project_name,
            }
            written = [
                (_DATA, self.attest),
                (_RAW_SIGNATURE, self.signature),
                (_VM, canonical_json(said)),
                (_CERTIFICATE, self.ak_certificate),
            ]
        else:
            said = {"v": 1, "machine_id": self.machine_id}
            if self.nonce_id is not None:
                said["nonce_id"] = self.nonce_id
            if self.pcr_values is not None:
                said["pcr_values"] = {bank: dict(values) for bank, values in self.pcr_values.items()}
            written = [
                (_EVIDENCE, canonical_json(said)),
                (_PUBLIC, self.public),
                (_ATTEST, self.attest),
                (_SIGNATURE, self.signature),
                (_QUOTE, self.quote),
                (_QUOTE_SIGNATURE, self.quote_signature),
                (_EVENT_LOG, self.event_log),
            ]
        blocks = [(REQUEST, self.csr_der), *written]
        return b"".join(write_block(kind, content) for kind, content in blocks if content is not None)


def is_container(data: bytes) -> bool:
    """True where any block of evidence seems to stand in *data*; without one it is a plain request, or nothing."""
    return any(mark in data for mark in _MARKS)


def build(
    csr_der: bytes,
    *,
    machine_id: str,
    nonce_id: str | None,
    public: bytes,
    attest: bytes,
    signature: bytes,
    quote: bytes | None = None,
    quote_signature: bytes | None = None,
    pcr_values: Mapping[str, Mapping[int, bytes]] | None = None,
    event_log: bytes | None = None,
) -> bytes:
    """Return a container of layout itl-v1; it begins with the request and is what `spec.request` holds.

    Args:
        csr_der: The certification request, DER.
        machine_id: As the service knows this machine.
        nonce_id: Of the challenge; None where a bucket of time was answered.
        public: TPM2B_PUBLIC of its key, with its size.
        attest: TPMS_ATTEST of the TPM2_Certify of that key.
        signature: TPMT_SIGNATURE over it.
        quote: TPMS_ATTEST of a quote, with the next two, or None.
        quote_signature: TPMT_SIGNATURE over it.
        pcr_values: The quoted values: bank name -> index -> digest.
        event_log: The boot log, at most 512 KiB.

    Raises:
        MalformedEvidence: `parse` would refuse it.
    """
    texts: dict[str, dict[str, str]] | None = None
    if pcr_values is not None:
        texts = {
            bank: {str(index): value.hex() for index, value in values.items()}
            for bank, values in pcr_values.items()
        }
    container = UnverifiedContainer(
        layout=Layout.ITL_V1,
        csr_der=csr_der,
        machine_id=machine_id,
        nonce_id=nonce_id,
        public=public,
        attest=attest,
        signature=signature,
        quote=quote,
        quote_signature=quote_signature,
        pcr_values=texts,
        event_log=event_log,
    )
    written = container.serialise()
    parse(written)
    return written


def parse(data: bytes) -> UnverifiedContainer:
    """Parse what stands in `spec.request`, at most 1 MiB.

    Every structure in it is read to its last byte; whether anything in it is true, nobody has looked.

    Raises:
        MalformedEvidence: The only way to fail. A request without evidence is malformed here: see `is_container`.
    """
    if len(data) > MAX_CONTAINER_BYTES:
        raise MalformedEvidence(f"container of {len(data)} bytes, at most {MAX_CONTAINER_BYTES} allowed")
    blocks = read_blocks(data, _LIMITS)
    if next(iter(blocks)) != REQUEST:
        raise MalformedEvidence(f"container: does not begin with {REQUEST}")
    if blocks[REQUEST][:1] != b"\x30":
        # The reader of requests takes PEM too; within PEM that would be a second way to write the same.
        raise MalformedEvidence("container: the request is not DER")
    requested_names(read_request(blocks[REQUEST]))
    if _EVIDENCE in blocks:
        return _parse_itl(blocks)
    if _DATA in blocks:
        return _parse_gke(blocks)
    raise MalformedEvidence("container: no evidence of a layout that we know")


def _parse_itl(blocks: Mapping[str, bytes]) -> UnverifiedContainer:
    kinds = blocks.keys()
    quoted = bool(kinds & _ITL_QUOTED)
    allowed = _ITL_NEEDED | (_ITL_QUOTED | {_EVENT_LOG} if quoted else frozenset())
    if not kinds >= _ITL_NEEDED or (quoted and not kinds >= _ITL_QUOTED) or not kinds <= allowed:
        raise MalformedEvidence("container: not the blocks of itl-v1")
    said = _json(blocks[_EVIDENCE], required={"v", "machine_id"}, optional={"nonce_id", "pcr_values"})
    if type(said["v"]) is not int or said["v"] != 1:
        raise MalformedEvidence("container: a version of the evidence other than 1")
    nonce_id, values = said.get("nonce_id"), said.get("pcr_values")
    if "nonce_id" in said:
        _identifier(nonce_id, _NONCE_ID, "nonce_id")
    if quoted != ("pcr_values" in said):
        raise MalformedEvidence("container: PCR values without a quote, or a quote without them")
    parse_certify(blocks[_ATTEST])
    parse_signature(blocks[_SIGNATURE])
    check_point(parse_public(blocks[_PUBLIC]))
    if quoted:
        _parse_quote(blocks[_QUOTE], blocks[_QUOTE_SIGNATURE])
    return UnverifiedContainer(
        layout=Layout.ITL_V1,
        csr_der=blocks[REQUEST],
        attest=blocks[_ATTEST],
        signature=blocks[_SIGNATURE],
        machine_id=_identifier(said["machine_id"], _MACHINE_ID, "machine_id"),
        nonce_id=nonce_id,
        public=blocks[_PUBLIC],
        pcr_values=_pcr_texts(values) if quoted else None,
        quote=blocks.get(_QUOTE),
        quote_signature=blocks.get(_QUOTE_SIGNATURE),
        event_log=blocks.get(_EVENT_LOG),
    )


def _parse_gke(blocks: Mapping[str, bytes]) -> UnverifiedContainer:
    if not blocks.keys() >= _GKE_NEEDED or not blocks.keys() <= _GKE_NEEDED | {_CERTIFICATE}:
        raise MalformedEvidence("container: not the blocks of gke-v1")
    names = {"zone", "id", "name", "project_id", "project_name"}
    said = _json(blocks[_VM], required=names, optional=set())
    texts = (said["zone"], said["name"], said["project_name"])
    numbers = (said["id"], said["project_id"])
    if not all(isinstance(text, str) for text in texts):
        raise MalformedEvidence("container: a name of the VM that is no text")
    if not all(type(number) is int and 0 <= number <= _MAX_U64 for number in numbers):
        raise MalformedEvidence("container: a number of the VM that is not of 64 bits")
    parse_certify(blocks[_DATA])
    if len(blocks[_RAW_SIGNATURE]) != RAW_SIGNATURE_BYTES:
        raise MalformedEvidence(f"container: {_RAW_SIGNATURE} is not of {RAW_SIGNATURE_BYTES} bytes")
    return UnverifiedContainer(
        layout=Layout.GKE_V1,
        csr_der=blocks[REQUEST],
        attest=blocks[_DATA],
        signature=blocks[_RAW_SIGNATURE],
        vm_identity=VMIdentity(
            zone=said["zone"],
            id=said["id"],
            name=said["name"],
            project_id=said["project_id"],
            project_name=said["project_name"],
        ),
        ak_certificate=blocks.get(_CERTIFICATE),
    )


def parse_certify(attest: bytes) -> CertifyInfo:
    """Return what a TPMS_ATTEST certifies.

    Raises:
        MalformedEvidence: Not made by a TPM itself, of another type, or not read to its last byte. The magic is part
            of the layout here: nothing else has any business in this block, whoever signed it.
    """
    parsed = parse_attest(attest)
    if parsed.magic != TPM_GENERATED or not isinstance(parsed.attested, CertifyInfo):
        raise MalformedEvidence(
            f"TPMS_ATTEST of magic 0x{parsed.magic:08x} and type 0x{parsed.type:04x} is no certification"
        )
    return parsed.attested


def check_point(public: Public) -> None:
    """Accept the two forms in which TPMs name a point: padded to the field, or without leading zeros.

    Raises:
        MalformedEvidence: A third form, or no key that we use.
    """
    public.key()
    if public.type != Alg.ECC:
        return
    size = _FIELD_BYTES[public.curve]
    for coordinate in (public.x, public.y):
        if len(coordinate) != size and coordinate[:1] in (b"", b"\0"):
            raise MalformedEvidence("a coordinate is neither padded to the field nor minimal")


def _parse_quote(quote: bytes, signature: bytes) -> None:
    parsed = parse_attest(quote)
    if parsed.magic != TPM_GENERATED or not isinstance(parsed.attested, QuoteInfo):
        raise MalformedEvidence(
            f"TPMS_ATTEST of magic 0x{parsed.magic:08x} and type 0x{parsed.type:04x} is no quote"
        )
    parse_signature(signature)


def _json(data: bytes, *, required: set[str], optional: set[str]) -> dict[str, Any]:
    """Return the members of the one object that *data* is."""
    # Depth first: a reader that recurses is never asked to read what is nested.
    if data.count(b"{") + data.count(b"[") > _MAX_OBJECTS:
        raise MalformedEvidence("container: JSON of more objects than there are")
    try:
        found = json.loads(
            data.decode(), object_pairs_hook=named_once, parse_constant=_refuse, parse_float=_refuse
        )
    except (ValueError, RecursionError) as e:
        raise MalformedEvidence("container: not the JSON of evidence") from e
    if not isinstance(found, dict) or not required <= found.keys() <= required | optional:
        raise MalformedEvidence("container: JSON of other members than the layout has")
    return found


def _refuse(text: str) -> None:
    raise ValueError(f"no number of ours: {text[:20]}")


def _identifier(text: object, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise MalformedEvidence(f"container: {what} is not an id")
    return text


def _pcr_texts(values: object) -> dict[str, dict[str, str]]:
    """Return the PCR values as texts; what they say is read with the quote, which alone makes it count."""
    if not isinstance(values, dict) or not 0 < len(values) <= _MAX_BANKS:
        raise MalformedEvidence("container: PCR values are not of one to four banks")
    for bank in values.values():
        if not isinstance(bank, dict) or not all(isinstance(text, str) for text in bank.values()):
            raise MalformedEvidence("container: PCR values of a bank are not texts")
    return values
