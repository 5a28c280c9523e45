"""TPM 2.0 quotes: the state of the PCRs, signed for one challenge (TPM.md §4, checks 14, 16, 19-21).

Layout: TCG TPM 2.0 Library, Part 2, TPMS_ATTEST and TPMS_QUOTE_INFO.
"""

# Algorithms for: pcr-bank, event-log
from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from attestation.errors import (
    AttestHeaderInvalid,
    ChallengeMismatch,
    MalformedEvidence,
    PCRDigestMismatch,
    SelectionMismatch,
)
from attestation.tpm import (
    TPM_GENERATED,
    AKParent,
    Alg,
    Attest,
    AttestType,
    PCRSelection,
    QuoteInfo,
    Signature,
    VerificationKey,
    ak_qualified_names,
    digest_size,
    hash_new,
    parse_attest,
    parse_public,
    parse_signature,
)
from attestation.tpm.hashes import bank_alg
from attestation.wire import named_once

MEDIA_TYPE = "application/vnd.itl.tpm-quote"
MAX_PCR_JSON_BYTES: Final = 16_384

PCRValues = Mapping[int, Mapping[int, bytes]]
"""Bank (TPM_ALG_ID) -> PCR index -> digest."""


class UnverifiedQuote(NamedTuple):
    """A parsed quote. Nothing in it may be believed yet.

    Args:
        signed: The TPMS_ATTEST exactly as received: the signature is over these bytes.
        attest: Its fields.
        info: What it says of PCRs.
        signature: The parsed TPMT_SIGNATURE.
    """

    signed: bytes
    attest: Attest
    info: QuoteInfo
    signature: Signature


class AttestationKey:
    """The key enrolled by credential activation, with all that a verification needs of it computed once.

    Args:
        ak_public: TPM2B_PUBLIC of the AK.
        ek_public: TPM2B_PUBLIC of the EK.

    Raises:
        MalformedEvidence: One of them cannot be parsed.
        AKAttributesRejected: The AK has no scheme that we verify.
    """

    __slots__ = ("name", "parents", "verification_key")

    def __init__(self, ak_public: bytes, ek_public: bytes) -> None:
        ak = parse_public(ak_public)
        ek = parse_public(ek_public)
        self.verification_key = VerificationKey(ak)
        self.name = ak.name
        self.parents = ak_qualified_names(ak, ek)


@lru_cache(maxsize=1024)
def enrolled_key(ak_public: bytes, ek_public: bytes) -> AttestationKey:
    """Return the `AttestationKey` of these public areas; a pure function of them, therefore remembered."""
    return AttestationKey(ak_public, ek_public)


class QuoteClaims(NamedTuple):
    """What a quote proves; only `verify` builds one.

    Args:
        pcrs: Exactly the quoted PCRs: bank -> index -> value.
        pcr_digest: The quoted digest over them.
        clock_ms: Milliseconds, u64.
        reset_count: u32.
        restart_count: u32.
        safe: The clock has not gone back since a power loss.
        firmware_version: u64; None where the signer does not stand under the endorsement hierarchy.
        ak_parent: Where the AK stands.
    """

    pcrs: PCRValues
    pcr_digest: bytes
    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool
    firmware_version: int | None
    ak_parent: AKParent


def parse(attest: bytes, signature: bytes) -> UnverifiedQuote:
    """Parse a TPMS_ATTEST of type quote and the TPMT_SIGNATURE over it.

    Raises:
        MalformedEvidence: The only way to fail. A statement of another type is malformed here.
    """
    parsed = parse_attest(attest)
    info = parsed.attested
    if not isinstance(info, QuoteInfo):
        raise MalformedEvidence(f"TPMS_ATTEST is of type 0x{parsed.type:04x}, not a quote")
    return UnverifiedQuote(attest, parsed, info, parse_signature(signature))


def parse_pcr_values(texts_by_bank: object) -> dict[int, dict[int, bytes]]:
    """Parse PCR values from `{"sha256": {"0": hex}}`; indices in canonical decimal, digests in lower-case hex.

    Raises:
        MalformedEvidence: Unknown bank, index outside 0-31 or not canonical, value not of the bank's size.
    """
    if not isinstance(texts_by_bank, Mapping):
        raise MalformedEvidence("PCR values are not an object of banks")
    parsed: dict[int, dict[int, bytes]] = {}
    for name, texts in texts_by_bank.items():
        if not isinstance(texts, Mapping):
            raise MalformedEvidence("PCR values of a bank are not an object")
        alg = bank_alg(name)
        size = digest_size(alg)
        bank: dict[int, bytes] = {}
        for index_text, text in texts.items():
            index = _INDEX.get(index_text)
            try:
                value = bytes.fromhex(text)
            except (ValueError, TypeError):
                value = b""
            if index is None or len(value) != size or value.hex() != text:
                raise MalformedEvidence(f"PCR value {name}:{index_text[:4]} is not {size} bytes of hex")
            bank[index] = value
        parsed[alg] = bank
    return parsed


_INDEX = {str(i): i for i in range(32)}


def parse_pcr_json(data: bytes) -> dict[int, dict[int, bytes]]:
    """Parse the JSON of PCR values, as an item of evidence carries it: at most 16 KiB of ASCII, without escapes.

    Raises:
        MalformedEvidence: It is not such JSON, or names a member twice; or as `parse_pcr_values`.
    """
    if len(data) > MAX_PCR_JSON_BYTES:
        raise MalformedEvidence(f"pcr_values: longer than {MAX_PCR_JSON_BYTES} bytes")
    # Names of banks, numbers and hex need no escape; one could spell what is no text.
    if b"\\" in data:
        raise MalformedEvidence("pcr_values: an escape")
    try:
        texts = json.loads(data.decode("ascii"), object_pairs_hook=named_once)
    except (ValueError, RecursionError):
        raise MalformedEvidence("pcr_values: not JSON, or a member is named twice") from None
    return parse_pcr_values(texts)


def verify(
    quote: UnverifiedQuote,
    *,
    challenge: bytes,
    key: AttestationKey,
    selection: PCRSelection,
    pcr_values: PCRValues,
) -> QuoteClaims:
    """Verify *quote* under the machine's attestation key.

    Args:
        quote: Result of `parse`.
        challenge: The bytes that we issued for this machine; compared in constant time.
        key: The key enrolled by credential activation.
        selection: The PCRs that were requested.
        pcr_values: The values the node sent; believed only as far as the quote covers them.

    Raises:
        SignatureInvalid: Not signed by this key.
        AttestHeaderInvalid: Not made by a TPM itself, or by a signer of another name.
        ChallengeMismatch: Fresh for somebody else, or not fresh.
        SelectionMismatch: Other PCRs than requested, or values for other PCRs than quoted.
        PCRDigestMismatch: The values are not those quoted.
    """
    # 16. The TPM signed exactly these bytes. Until this holds, no field is ours to read.
    key.verification_key.verify(quote.signature, quote.signed)
    attest = quote.attest
    # 14. It made the statement itself. Otherwise a key that signs foreign bytes could be fed a forged one.
    if attest.magic != TPM_GENERATED or attest.type != AttestType.QUOTE:
        raise AttestHeaderInvalid(
            f"magic 0x{attest.magic:08x}, type 0x{attest.type:04x} is no quote of a TPM"
        )
    # 14. The signer's qualified name is not a bare Name; where the parents are known, it tells which.
    parent = key.parents.get(attest.qualified_signer, AKParent.OTHER)
    if parent is AKParent.OTHER and attest.qualified_signer in (b"", key.name):
        raise AttestHeaderInvalid("qualifiedSigner is not a qualified name: the signer is outside a TPM")
    # 14/21. For this challenge. Without this, any old quote would do; an empty challenge never counts.
    if not challenge or not hmac.compare_digest(attest.extra_data, challenge):
        raise ChallengeMismatch("the quote answers another challenge")
    # 19. Exactly the requested PCRs, by the signed selection. Otherwise resettable PCRs pass for boot PCRs.
    quoted = quote.info.selection
    if quoted.banks != selection.banks and quoted.as_sets() != selection.as_sets():
        raise SelectionMismatch(f"quoted {quoted.to_names()}, requested {selection.to_names()}")
    # 20. The values are those quoted: exactly that set, each of its bank's length, in the signed order,
    #     hashed with the signing scheme's hash. Otherwise two values could pass for four, or unquoted for quoted.
    covered = [bank for bank in quoted.banks if bank[1]]
    if all(alg == Alg.SHA1 for alg, _ in covered):
        raise SelectionMismatch("nothing selected, or nothing but SHA-1 PCRs")
    if len(pcr_values) != len(covered):
        raise SelectionMismatch(f"values of {len(pcr_values)} banks, {len(covered)} quoted")
    values: list[bytes] = []
    for alg, indices in covered:
        values += _values_of_bank(pcr_values.get(alg, {}), indices, digest_size(alg))
    digest = hash_new(key.verification_key.hash_alg, b"".join(values)).digest()
    if not hmac.compare_digest(digest, quote.info.pcr_digest):
        raise PCRDigestMismatch("the PCR values are not those that were quoted")
    return QuoteClaims(
        pcr_values,
        quote.info.pcr_digest,
        attest.clock_ms,
        attest.reset_count,
        attest.restart_count,
        attest.safe,
        None if parent is AKParent.OTHER else attest.firmware_version,
        parent,
    )


def _values_of_bank(bank: Mapping[int, bytes], indices: tuple[int, ...], size: int) -> list[bytes]:
    """Return the values of *indices* in order; *bank* must hold exactly these, *size* bytes each."""
    try:
        values = [bank[index] for index in indices]
    except KeyError as e:
        raise SelectionMismatch(f"no value for quoted PCR {e.args[0]}") from e
    if len(bank) != len(values):
        raise SelectionMismatch(f"{len(bank)} values for {len(values)} quoted PCRs")
    if set(map(len, values)) != {size}:
        raise SelectionMismatch(f"a value has not the {size} bytes of its bank")
    return values


def verify_acknowledgement(
    quote: UnverifiedQuote, *, qualifying_data: bytes, key: AttestationKey, selection: PCRSelection
) -> None:
    """Verify a quote that only carries a message in its qualifyingData (PROTOCOL §6); no PCR is learned from it.

    Args:
        quote: Result of `parse`.
        qualifying_data: SHA-256(nonce ‖ directive_sha256 ‖ outcome), 32 bytes.
        key: The key enrolled by credential activation.
        selection: The PCRs that were requested; the statement must still be the one that was asked for.

    Raises:
        EvidenceRejected: As `verify`.
    """
    key.verification_key.verify(quote.signature, quote.signed)
    attest = quote.attest
    if attest.magic != TPM_GENERATED or attest.type != AttestType.QUOTE:
        raise AttestHeaderInvalid(
            f"magic 0x{attest.magic:08x}, type 0x{attest.type:04x} is no quote of a TPM"
        )
    if not qualifying_data or not hmac.compare_digest(attest.extra_data, qualifying_data):
        raise ChallengeMismatch("the acknowledgement is for another challenge, directive or outcome")
    if quote.info.selection.as_sets() != selection.as_sets():
        raise SelectionMismatch("the acknowledgement quotes other PCRs than requested")
