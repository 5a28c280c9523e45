"""What a TPM means by its response code, in words (TPM 2.0 Part 2, 6.6).

A code has one of two forms. Format one (bit 7 set): an error number of six bits, and which parameter, session or
handle it is about. Format zero: a number of seven bits; bit 11 marks a warning ("not now"), bit 10 a vendor code.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

SUCCESS: Final = 0x000
INITIALIZE: Final = 0x100
"""TPM2_Startup was already done, or was not done yet."""
LOCKOUT: Final = 0x921
"""Too many unclean restarts or wrong passwords; only objects without noDA are affected."""
RETRY: Final = 0x922
YIELDED: Final = 0x908
TESTING: Final = 0x90A
RESUBMIT: Final = frozenset({RETRY, YIELDED, TESTING})
"""The TPM did not begin the command and changed nothing: the same bytes may be sent again."""

_VENDOR: Final = 0x400
_WARNING: Final = 0x800
_FORMAT_ONE: Final = 0x080
_PARAMETER: Final = 0x040
_SESSION: Final = 0x800

_ERRORS_FORMAT_ONE: Final[Mapping[int, str]] = MappingProxyType(
    {
        0x01: "ASYMMETRIC: asymmetric algorithm not supported or not correct",
        0x02: "ATTRIBUTES: inconsistent attributes",
        0x03: "HASH: hash algorithm not supported or not appropriate",
        0x04: "VALUE: value out of range or not correct for the context",
        0x05: "HIERARCHY: hierarchy not enabled or not correct",
        0x07: "KEY_SIZE: key size not supported",
        0x08: "MGF: mask generation function not supported",
        0x09: "MODE: mode of operation not supported",
        0x0A: "TYPE: value of the type not appropriate",
        0x0B: "HANDLE: handle not correct for the use",
        0x0C: "KDF: key derivation function not supported or not appropriate",
        0x0D: "RANGE: value out of the allowed range",
        0x0E: "AUTH_FAIL: authorisation HMAC check failed, counted against lockout",
        0x0F: "NONCE: nonce size invalid, or nonce value mismatch",
        0x10: "PP: authorisation requires physical presence",
        0x12: "SCHEME: scheme not supported or incompatible",
        0x15: "SIZE: structure of the wrong size",
        0x16: "SYMMETRIC: symmetric algorithm or key size not supported",
        0x17: "TAG: incorrect structure tag",
        0x18: "SELECTOR: union selector incorrect",
        0x1A: "INSUFFICIENT: the TPM could not unmarshal a value, too few bytes",
        0x1B: "SIGNATURE: signature not valid",
        0x1C: "KEY: key fields not compatible with the use",
        0x1D: "POLICY_FAIL: a policy check failed",
        0x1F: "INTEGRITY: integrity check failed",
        0x20: "TICKET: invalid ticket",
        0x21: "RESERVED_BITS: a reserved bit is set",
        0x22: "BAD_AUTH: authorisation failed, not counted against lockout",
        0x23: "EXPIRED: the policy has expired",
        0x24: "POLICY_CC: the policy is for another command",
        0x25: "BINDING: public and sensitive part are not bound to each other",
        0x26: "CURVE: curve not supported",
        0x27: "ECC_POINT: point is not on the curve",
    }
)
_ERRORS_FORMAT_ZERO: Final[Mapping[int, str]] = MappingProxyType(
    {
        0x00: "INITIALIZE: not initialised by TPM2_Startup, or already initialised",
        0x01: "FAILURE: commands not accepted because of a TPM failure",
        0x03: "SEQUENCE: improper use of a sequence handle",
        0x0B: "PRIVATE: private part not accepted",
        0x19: "HMAC: not currently used",
        0x20: "DISABLED: the command is disabled",
        0x21: "EXCLUSIVE: an audit sequence required exclusivity",
        0x24: "AUTH_TYPE: authorisation handle not correct for the command",
        0x25: "AUTH_MISSING: the command needs an authorisation session",
        0x26: "POLICY: policy failure in mathematics or an invalid authPolicy",
        0x27: "PCR: PCR check failed",
        0x28: "PCR_CHANGED: PCRs have changed since checked",
        0x2D: "UPGRADE: in field-upgrade mode",
        0x2E: "TOO_MANY_CONTEXTS: context id counter at its maximum",
        0x2F: "AUTH_UNAVAILABLE: authValue or authPolicy not available for the entity",
        0x30: "REBOOT: a restart of the TPM is required",
        0x31: "UNBALANCED: hash and symmetric key sizes differ too much",
        0x42: "COMMAND_SIZE: commandSize inconsistent with what was received",
        0x43: "COMMAND_CODE: command code not supported",
        0x44: "AUTHSIZE: authorizationSize out of range",
        0x45: "AUTH_CONTEXT: authorisation not allowed with this command",
        0x46: "NV_RANGE: NV offset and size out of range",
        0x47: "NV_SIZE: NV index too large",
        0x48: "NV_LOCKED: NV index locked",
        0x49: "NV_AUTHORIZATION: NV access not authorised by this handle",
        0x4A: "NV_UNINITIALIZED: NV index used before being written",
        0x4B: "NV_SPACE: not enough NV memory",
        0x4C: "NV_DEFINED: NV index already defined",
        0x50: "BAD_CONTEXT: context not valid",
        0x51: "CPHASH: cpHash already set or not correct for the use",
        0x52: "PARENT: handle for parent is not a valid parent",
        0x53: "NEEDS_TEST: a function needs testing",
        0x54: "NO_RESULT: an internal function cannot process the request",
        0x55: "SENSITIVE: the sensitive area did not unmarshal correctly",
    }
)
_WARNINGS: Final[Mapping[int, str]] = MappingProxyType(
    {
        0x01: "CONTEXT_GAP: gap for context id is too large",
        0x02: "OBJECT_MEMORY: out of memory for object contexts",
        0x03: "SESSION_MEMORY: out of memory for session contexts",
        0x04: "MEMORY: out of shared object and session memory",
        0x05: "SESSION_HANDLES: out of session handles",
        0x06: "OBJECT_HANDLES: out of object handles",
        0x07: "LOCALITY: bad locality",
        0x08: "YIELDED: execution suspended, resubmit",
        0x09: "CANCELED: the command was cancelled",
        0x0A: "TESTING: self-tests are running, resubmit",
        0x10: "REFERENCE_H0: the first handle references nothing that is loaded",
        0x11: "REFERENCE_H1: the second handle references nothing that is loaded",
        0x12: "REFERENCE_H2: the third handle references nothing that is loaded",
        0x18: "REFERENCE_S0: the first session is not loaded",
        0x19: "REFERENCE_S1: the second session is not loaded",
        0x1A: "REFERENCE_S2: the third session is not loaded",
        0x20: "NV_RATE: rate-limited to protect NV memory",
        0x21: "LOCKOUT: locked out after too many wrong passwords or power cuts; it ends by itself in time, or by "
        "`tpm2_dictionarylockout --clear-lockout`",
        0x22: "RETRY: the TPM could not begin the command, resubmit",
        0x23: "NV_UNAVAILABLE: NV memory is not accessible now",
        0x7F: "NOT_USED: reserved",
    }
)


def describe(response_code: int) -> str:
    """Return *response_code* (u32) in words, e.g. `parameter 2: VALUE: value out of range …`."""
    if response_code == SUCCESS:
        return "SUCCESS"
    if response_code > 0xFFF:
        # Bits above 11 are a layer number of resource managers (TSS 2.0 Overview, 3.12.4); a TPM never sets them.
        return f"response code of layer {response_code >> 16 & 0xFF}: {describe(response_code & 0xFFF)}"
    if response_code & _FORMAT_ONE:
        return _describe_format_one(response_code)
    if response_code & _VENDOR:
        return "vendor-specific response code"
    number = response_code & 0x7F
    if not response_code & 0x100:
        return "response code of TPM 1.2"
    table = _WARNINGS if response_code & _WARNING else _ERRORS_FORMAT_ZERO
    return table.get(number, "unknown response code")


def without_position(response_code: int) -> int:
    """Return a format-one code without the parameter, session or handle number; others unchanged."""
    return response_code & 0x0BF if response_code & _FORMAT_ONE else response_code


def _describe_format_one(response_code: int) -> str:
    text = _ERRORS_FORMAT_ONE.get(response_code & 0x3F, "unknown error")
    if response_code & _PARAMETER:
        where = f"parameter {response_code >> 8 & 0xF}"
    elif response_code & _SESSION:
        where = f"session {response_code >> 8 & 0x7}"
    else:
        where = f"handle {response_code >> 8 & 0x7}"
    # Number 0 means that the TPM does not say which one.
    return text if where.endswith(" 0") else f"{where}: {text}"
