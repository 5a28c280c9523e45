"""Numbers of the TPM 2.0 Library, Part 2 (Structures), as far as we speak of them."""

# Algorithms for: tpm-ek, tpm-ak, tpm-hash, tpm-storage, event-log
from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final


class Alg(IntEnum):
    """TPM_ALG_ID (Part 2, 6.3)."""

    RSA = 0x0001
    SHA1 = 0x0004
    HMAC = 0x0005
    AES = 0x0006
    KEYEDHASH = 0x0008
    XOR = 0x000A
    SHA256 = 0x000B
    SHA384 = 0x000C
    SHA512 = 0x000D
    NULL = 0x0010
    SM3_256 = 0x0012
    SM4 = 0x0013
    RSASSA = 0x0014
    RSAES = 0x0015
    RSAPSS = 0x0016
    OAEP = 0x0017
    ECDSA = 0x0018
    ECDH = 0x0019
    ECDAA = 0x001A
    SM2 = 0x001B
    ECSCHNORR = 0x001C
    ECMQV = 0x001D
    KDF1_SP800_56A = 0x0020
    KDF2 = 0x0021
    KDF1_SP800_108 = 0x0022
    ECC = 0x0023
    SYMCIPHER = 0x0025
    CFB = 0x0043


class Curve(IntEnum):
    """TPM_ECC_CURVE (Part 2, 6.4). Weak and pairing curves are known, so that they can be refused by name."""

    NIST_P192 = 0x0001
    NIST_P224 = 0x0002
    NIST_P256 = 0x0003
    NIST_P384 = 0x0004
    NIST_P521 = 0x0005
    BN_P256 = 0x0010
    BN_P638 = 0x0011
    SM2_P256 = 0x0020


class AttestType(IntEnum):
    """TPM_ST of the attestation structures (Part 2, 6.9)."""

    NV = 0x8014
    COMMAND_AUDIT = 0x8015
    SESSION_AUDIT = 0x8016
    CERTIFY = 0x8017
    QUOTE = 0x8018
    TIME = 0x8019
    CREATION = 0x801A
    NV_DIGEST = 0x801C


class Attr(IntFlag):
    """TPMA_OBJECT (Part 2, 8.3)."""

    FIXED_TPM = 0x00000002
    ST_CLEAR = 0x00000004
    FIXED_PARENT = 0x00000010
    SENSITIVE_DATA_ORIGIN = 0x00000020
    USER_WITH_AUTH = 0x00000040
    ADMIN_WITH_POLICY = 0x00000080
    FIRMWARE_LIMITED = 0x00000100
    SVN_LIMITED = 0x00000200
    NO_DA = 0x00000400
    ENCRYPTED_DUPLICATION = 0x00000800
    RESTRICTED = 0x00010000
    DECRYPT = 0x00020000
    SIGN_ENCRYPT = 0x00040000
    X509_SIGN = 0x00080000


class Hierarchy(IntEnum):
    """Permanent handles of the hierarchies (Part 2, 7.4)."""

    OWNER = 0x40000001
    NULL = 0x40000007
    ENDORSEMENT = 0x4000000B
    PLATFORM = 0x4000000C


TPM_GENERATED: Final = 0xFF544347
"""Magic of everything that a TPM makes itself and signs (Part 2, 6.2)."""

MAX_PUBLIC_BYTES: Final = 2048
MAX_ATTEST_BYTES: Final = 2048
MAX_SIGNATURE_BYTES: Final = 2048
MAX_CREDENTIAL_BYTES: Final = 2048
MAX_PCR_BANKS: Final = 4
