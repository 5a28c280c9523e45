"""What an attestation key is, by its public area alone (TPM.md §3.1; check 10, `ak-public`).

Whatever a key of another kind signs, it says nothing of a TPM: made in software, it is anybody's; unrestricted, it
signs bytes that look like statements of its TPM.
"""

# Algorithms for: tpm-ak
from __future__ import annotations

from typing import Final

from attestation.errors import AKAttributesRejected
from attestation.tpm.constants import Alg, Attr, Curve
from attestation.tpm.public import Public, attribute_words
from attestation.tpm.roca import is_roca_weak
from attestation.tpm.signature import ACCEPTED_HASHES, VerificationKey

_FREE: Final = int(
    Attr.USER_WITH_AUTH | Attr.ADMIN_WITH_POLICY | Attr.FIRMWARE_LIMITED | Attr.SVN_LIMITED | Attr.NO_DA
)
_DEMANDED: Final = int(
    Attr.FIXED_TPM | Attr.FIXED_PARENT | Attr.SENSITIVE_DATA_ORIGIN | Attr.RESTRICTED | Attr.SIGN_ENCRYPT
)
_AK_CURVES: Final = frozenset({Curve.NIST_P256, Curve.NIST_P384, Curve.NIST_P521})


def check_ak(ak: Public) -> None:
    """Check the public area of an AK (TPM.md §3.1; check 10, `ak-public`).

    Raises:
        AKAttributesRejected: With the attribute, size or scheme that is wrong.
        MalformedEvidence: It holds no valid key.
    """
    # 3. It never left a TPM, was made there, and signs nothing that others made (restricted). Without
    #    fixedTPM or sensitiveDataOrigin a software key passes activation; unrestricted, a TPM key signs forgeries.
    if ak.attributes & ~_FREE != _DEMANDED:
        raise AKAttributesRejected(
            f"AK attributes are {attribute_words(ak.attributes)}; "
            f"expected {attribute_words(_DEMANDED)}, and of others at most {attribute_words(_FREE)}"
        )
    # 4. Name and signature use a hash that holds. Otherwise a second public area could have the same Name.
    if ak.name_alg not in ACCEPTED_HASHES:
        raise AKAttributesRejected(f"AK nameAlg 0x{ak.name_alg:04x} is not SHA-256, SHA-384 or SHA-512")
    if ak.symmetric is not None:
        raise AKAttributesRejected("AK names a symmetric algorithm; a signing key has none")
    # 5. A key of sufficient size, whose scheme and hash are fixed in its public area.
    if ak.type == Alg.RSA:
        if ak.key_bits < 2048 or len(ak.modulus) * 8 != ak.key_bits or ak.modulus[0] < 0x80:
            raise AKAttributesRejected(f"RSA AK of {ak.key_bits} bits; at least 2048, exact, expected")
        if ak.exponent not in (0, 65537):
            raise AKAttributesRejected(f"RSA AK with exponent {ak.exponent}; 65537 expected")
        if is_roca_weak(int.from_bytes(ak.modulus)):
            raise AKAttributesRejected("the AK's modulus has the ROCA fingerprint (CVE-2017-15361)")
    elif ak.type == Alg.ECC:
        if ak.curve not in _AK_CURVES:
            raise AKAttributesRejected(f"AK curve 0x{ak.curve:04x} is not P-256, P-384 or P-521")
        if ak.kdf is not None:
            raise AKAttributesRejected("AK names a key derivation; a signing key has none")
    else:
        raise AKAttributesRejected("AK is neither an RSA nor an ECC key")
    VerificationKey(ak)
