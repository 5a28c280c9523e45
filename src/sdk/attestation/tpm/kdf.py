"""Key derivation: KDFa and KDFe (TPM 2.0 Part 1, 11.4.10)."""

from __future__ import annotations

from attestation.tpm.hashes import digest_size, hash_new, hmac_digest
from attestation.wire import u32


def kdfa(hash_alg: int, key: bytes, label: bytes, context_u: bytes, context_v: bytes, bits: int) -> bytes:
    """Derive ⌈bits/8⌉ bytes: HMAC(key, i u32 ‖ label ‖ 00 ‖ U ‖ V ‖ bits u32), i = 1, 2, ….

    Args:
        hash_alg: TPM_ALG_ID of the HMAC's hash.
        key: HMAC key.
        label: ASCII, without the terminating zero, which is added.
        context_u: First context.
        context_v: Second context.
        bits: Wanted bits; unused high bits of the first byte are zero.
    """
    tail = label + b"\0" + context_u + context_v + u32(bits)
    blocks = -(-bits // (8 * digest_size(hash_alg)))
    out = b"".join(hmac_digest(hash_alg, key, u32(i) + tail) for i in range(1, blocks + 1))
    return _first_bits(out, bits)


def kdfe(hash_alg: int, z: bytes, label: bytes, party_u: bytes, party_v: bytes, bits: int) -> bytes:
    """Derive ⌈bits/8⌉ bytes: H(i u32 ‖ Z ‖ label ‖ 00 ‖ U ‖ V), i = 1, 2, …; there is no length field.

    Args:
        hash_alg: TPM_ALG_ID of the hash.
        z: x-coordinate of the shared point, padded to the field size.
        label: ASCII, without the terminating zero, which is added.
        party_u: x-coordinate of the ephemeral key, padded.
        party_v: x-coordinate of the static key, padded.
        bits: Wanted bits; unused high bits of the first byte are zero.
    """
    tail = z + label + b"\0" + party_u + party_v
    blocks = -(-bits // (8 * digest_size(hash_alg)))
    out = b"".join(hash_new(hash_alg, u32(i) + tail).digest() for i in range(1, blocks + 1))
    return _first_bits(out, bits)


def _first_bits(out: bytes, bits: int) -> bytes:
    out = out[: -(-bits // 8)]
    if bits % 8:
        out = bytes([out[0] & (1 << bits % 8) - 1]) + out[1:]
    return out
