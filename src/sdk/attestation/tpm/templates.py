"""The EK templates of the TCG (EK Credential Profile 2.6, Annex B; TPM.md §2.4).

An EK is only an EK if its public area equals one template in every field but `unique`: anything else might be
an ordinary key with which somebody opens credentials outside a TPM's rules.
"""

# Algorithms for: tpm-ek, tpm-hash, tpm-storage
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from attestation.errors import EKTemplateRejected
from attestation.tpm.constants import Alg, Attr, Curve
from attestation.tpm.public import Public, Symmetric, attribute_words

POLICY_A: Final[dict[int, bytes]] = {
    Alg.SHA256: bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa"),
}
"""PolicySecret(endorsement), by hash: the low-range templates."""

POLICY_B: Final[dict[int, bytes]] = {
    Alg.SHA256: bytes.fromhex("ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0"),
    Alg.SHA384: bytes.fromhex(
        "b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12"
    ),
    Alg.SHA512: bytes.fromhex(
        "b8221ca69e8550a4914de3faa6a18c072cc01208073a928d5d66d59ef79e49a4"
        "29c41a6b269571d57edb25fbdb1838425608b413cd616a5f6db5b6071af99bea"
    ),
    Alg.SM3_256: bytes.fromhex("167860a35f2c5c3567f9c927ac56c032f3b3a6462f8d037998e7a10f77fa454a"),
}
"""PolicyOR(PolicySecret(endorsement), PolicyAuthorizeNV(I-n)), by hash: the high-range templates."""

_BASE: Final = (
    Attr.FIXED_TPM | Attr.FIXED_PARENT | Attr.SENSITIVE_DATA_ORIGIN | Attr.RESTRICTED | Attr.DECRYPT
)
LOW_ATTRIBUTES: Final = int(_BASE | Attr.ADMIN_WITH_POLICY)
HIGH_ATTRIBUTES: Final = int(_BASE | Attr.ADMIN_WITH_POLICY | Attr.USER_WITH_AUTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class EKTemplate:
    """One template.

    Args:
        name: As in the TCG profile: L-1 … H-7.
        nv_index: Where its certificate stands in NV.
        public: The template itself, with an empty `unique`.
        supported: False for SM2, which is recognised but not used.
    """

    name: str
    nv_index: int
    public: Public
    supported: bool = True

    @property
    def low_range(self) -> bool:
        """True where use needs PolicySecret(endorsement) instead of the empty password."""
        return self.name.startswith("L-")

    def tpmt(self, *, zeros: bool = False) -> bytes:
        """Return the TPMT_PUBLIC for TPM2_CreatePrimary.

        Args:
            zeros: Fill `unique` with zero bytes of the key's size instead of leaving it empty. The low range
                is defined with zeros, the high range without; another unique makes another EK.
        """
        if not zeros:
            return self.public.serialise()
        if self.public.type == Alg.RSA:
            return replace(self.public, modulus=bytes(self.public.key_bits // 8)).serialise()
        size = _COORDINATE_BYTES[self.public.curve]
        return replace(self.public, x=bytes(size), y=bytes(size)).serialise()


_COORDINATE_BYTES: Final[dict[int, int]] = {
    Curve.NIST_P256: 32,
    Curve.NIST_P384: 48,
    Curve.NIST_P521: 66,
    Curve.SM2_P256: 32,
}


def _template(
    name: str, nv_index: int, *, bits: int = 0, curve: int = 0, name_alg: int, aes_bits: int, sm: bool = False
) -> EKTemplate:
    low = name.startswith("L-")
    public = Public(
        type=Alg.RSA if bits else Alg.ECC,
        name_alg=name_alg,
        attributes=LOW_ATTRIBUTES if low else HIGH_ATTRIBUTES,
        auth_policy=(POLICY_A if low else POLICY_B)[name_alg],
        symmetric=Symmetric(alg=Alg.SM4 if sm else Alg.AES, key_bits=aes_bits, mode=Alg.CFB),
        scheme=None,
        key_bits=bits,
        curve=curve,
        tpmt=b"",
    )
    return EKTemplate(
        name=name, nv_index=nv_index, public=replace(public, tpmt=public.serialise()), supported=not sm
    )


EK_TEMPLATES: Final = (
    _template("L-1", 0x01C00002, bits=2048, name_alg=Alg.SHA256, aes_bits=128),
    _template("L-2", 0x01C0000A, curve=Curve.NIST_P256, name_alg=Alg.SHA256, aes_bits=128),
    _template("H-1", 0x01C00012, bits=2048, name_alg=Alg.SHA256, aes_bits=128),
    _template("H-2", 0x01C00014, curve=Curve.NIST_P256, name_alg=Alg.SHA256, aes_bits=128),
    _template("H-3", 0x01C00016, curve=Curve.NIST_P384, name_alg=Alg.SHA384, aes_bits=256),
    _template("H-4", 0x01C00018, curve=Curve.NIST_P521, name_alg=Alg.SHA512, aes_bits=256),
    _template("H-5", 0x01C0001A, curve=Curve.SM2_P256, name_alg=Alg.SM3_256, aes_bits=128, sm=True),
    _template("H-6", 0x01C0001C, bits=3072, name_alg=Alg.SHA384, aes_bits=256),
    _template("H-7", 0x01C0001E, bits=4096, name_alg=Alg.SHA384, aes_bits=256),
)


def match_ek_template(public: Public) -> EKTemplate:
    """Return the template that *public* equals in every field but `unique` (check 9, `ek-template`).

    Raises:
        EKTemplateRejected: It equals none, equals one that is not supported, or its unique field is not as
            long as the key.
    """
    bare = replace(public, tpmt=b"", modulus=b"", x=b"", y=b"")
    for template in EK_TEMPLATES:
        if bare == replace(template.public, tpmt=b""):
            break
    else:
        raise EKTemplateRejected(
            "the EK equals no TCG template: "
            f"nameAlg 0x{public.name_alg:04x}, attributes {attribute_words(public.attributes)}"
        )
    if not template.supported:
        raise EKTemplateRejected(f"EK template {template.name} is not supported")
    if public.type == Alg.RSA and (len(public.modulus) * 8 != public.key_bits or public.modulus[0] < 0x80):
        raise EKTemplateRejected(f"RSA modulus has not exactly {public.key_bits} bits")
    return template
