"""Intel's TCB info and enclave identities (CONFIDENTIAL.md §9.2): which levels exist, and what each is worth.

Both are JSON, signed over the exact bytes of their inner object: they are read from the bytes that were signed, and
never written again. Members that we do not know are passed over, since Intel adds some; those that we use are strict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NoReturn

from attestation.endorsements.intel.pck import COMPONENTS
from attestation.errors import MalformedEvidence
from attestation.wire import named_once

MAX_OBJECT_BYTES: Final = 262144
MAX_LEVELS: Final = 256
_SIGNED: Final = re.compile(
    rb'\s*\{\s*"(tcbInfo|enclaveIdentity)"\s*:\s*(\{.*\})\s*,\s*"signature"\s*:\s*"([0-9a-fA-F]{128})"\s*\}\s*',
    re.DOTALL,
)
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


class Status(StrEnum):
    """What a level is worth, the best first (§9.3)."""

    UP_TO_DATE = "UpToDate"
    SW_HARDENING_NEEDED = "SWHardeningNeeded"
    CONFIGURATION_NEEDED = "ConfigurationNeeded"
    CONFIGURATION_AND_SW_HARDENING_NEEDED = "ConfigurationAndSWHardeningNeeded"
    TD_RELAUNCH_ADVISED = "TDRelaunchAdvised"
    TD_RELAUNCH_ADVISED_CONFIGURATION_NEEDED = "TDRelaunchAdvisedConfigurationNeeded"
    OUT_OF_DATE = "OutOfDate"
    OUT_OF_DATE_CONFIGURATION_NEEDED = "OutOfDateConfigurationNeeded"
    UNSUPPORTED = "Unsupported"
    REVOKED = "Revoked"

    @property
    def severity(self) -> int:
        """0 for the best."""
        return _SEVERITY[self]


_SEVERITY: Final[Mapping[Status, int]] = {status: i for i, status in enumerate(Status)}
# The others are conclusions of an appraisal; Intel's own library refuses a document that says them.
_OF_PART: Final = (Status.UP_TO_DATE, Status.OUT_OF_DATE, Status.REVOKED)
_OF_PLATFORM: Final = (
    *_OF_PART,
    Status.SW_HARDENING_NEEDED,
    Status.CONFIGURATION_NEEDED,
    Status.CONFIGURATION_AND_SW_HARDENING_NEEDED,
    Status.OUT_OF_DATE_CONFIGURATION_NEEDED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of an enclave or of a TDX module: it and what is newer has this status.

    Args:
        svn: isvsvn, from which on.
        date: As of when firmware has it, UTC.
        status: What it is worth.
        advisories: Those that it is open to, `INTEL-SA-…`.
    """

    svn: int
    date: datetime
    status: Status
    advisories: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformLevel:
    """One level of a platform.

    Args:
        sgx: SVN of each of 16 components.
        pce_svn: u16.
        tdx: SVN of each of 16 components; zero in TCB info of SGX.
        date, status, advisories: As of `Level`.
    """

    sgx: tuple[int, ...]
    pce_svn: int
    tdx: tuple[int, ...]
    date: datetime
    status: Status
    advisories: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Who made a TDX module, and its levels, the newest first; `tdxModule` has none."""

    mr_signer: bytes
    attributes: bytes
    attributes_mask: bytes
    levels: tuple[Level, ...]


@dataclass(frozen=True, kw_only=True)
class TcbInfo:
    """The levels of a platform.

    Args:
        tee: `SGX` or `TDX`.
        issued, next_update: UTC.
        fmspc: 6 bytes.
        pce_id: 2 bytes.
        evaluation_number: tcbEvaluationDataNumber: of which assessment.
        module: Of a module without a version of its own; None in TCB info of SGX.
        modules: Upper-case id, `TDX_03` -> module.
        levels: The newest first, however they stood.
    """

    tee: str
    issued: datetime
    next_update: datetime
    fmspc: bytes
    pce_id: bytes
    evaluation_number: int
    module: Module | None
    modules: Mapping[str, Module]
    levels: tuple[PlatformLevel, ...]

    @cached_property
    def newest(self) -> PlatformLevel:
        """The newest level."""
        return self.levels[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveIdentity:
    """The quoting enclave of Intel, and its levels, the newest first.

    Args:
        tee: `SGX` or `TDX`: whose quoting enclave.
        issued, next_update: UTC.
        evaluation_number: tcbEvaluationDataNumber.
        misc_select, misc_select_mask: 4 bytes.
        attributes, attributes_mask: 16 bytes.
        mr_signer: 32 bytes.
        prod_id: ISVPRODID.
        levels: The newest first.
    """

    tee: str
    issued: datetime
    next_update: datetime
    evaluation_number: int
    misc_select: bytes
    misc_select_mask: bytes
    attributes: bytes
    attributes_mask: bytes
    mr_signer: bytes
    prod_id: int
    levels: tuple[Level, ...]


def split_signed(document: bytes, name: str) -> tuple[bytes, bytes]:
    """Return the exact bytes of the object *name* in an answer of the PCS, and its signature, 64 bytes R ‖ S.

    Args:
        document: `{"tcbInfo":{…},"signature":"…"}`.
        name: `tcbInfo` or `enclaveIdentity`.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    found = _SIGNED.fullmatch(document) if len(document) <= MAX_OBJECT_BYTES else None
    if found is None or found[1] != name.encode():
        raise MalformedEvidence(f"{name}: not an object with its signature behind it")
    return found[2], bytes.fromhex(found[3].decode())


def parse_tcb_info(data: bytes) -> TcbInfo:
    """Read TCB info, version 3.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    members = _document(data, "tcbInfo")
    tee = _word(members, "id", {"SGX": "SGX", "TDX": "TDX"})
    _version(members, 3)
    module: Module | None = None
    modules: dict[str, Module] = {}
    if tee == "TDX":
        module = _module(_object(members.get("tdxModule"), "tdxModule"), levels=False)
        for each in _list(members.get("tdxModuleIdentities", []), "tdxModuleIdentities", least=0):
            part = _object(each, "tdxModuleIdentities")
            name = _text(part, "id").upper()
            if name in modules:
                _bad("tdxModuleIdentities", "an id stands twice")
            modules[name] = _module(part, levels=True)
    stated = _list(members.get("tcbLevels"), "tcbLevels")
    levels = [_platform_level(_object(each, "tcbLevels"), tdx=tee == "TDX") for each in stated]
    return TcbInfo(
        tee=tee,
        issued=_instant(members, "issueDate"),
        next_update=_instant(members, "nextUpdate"),
        fmspc=_hex(members, "fmspc", 6),
        pce_id=_hex(members, "pceId", 2),
        evaluation_number=_number(members, "tcbEvaluationDataNumber", 0xFFFFFFFF),
        module=module,
        modules=modules,
        levels=tuple(sorted(levels, key=lambda each: (each.sgx, each.pce_svn, each.tdx), reverse=True)),
    )


def parse_identity(data: bytes) -> EnclaveIdentity:
    """Read the identity of a quoting enclave, version 2.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    members = _document(data, "enclaveIdentity")
    tee = _word(members, "id", {"QE": "SGX", "TD_QE": "TDX"})
    _version(members, 2)
    return EnclaveIdentity(
        tee=tee,
        issued=_instant(members, "issueDate"),
        next_update=_instant(members, "nextUpdate"),
        evaluation_number=_number(members, "tcbEvaluationDataNumber", 0xFFFFFFFF),
        misc_select=_hex(members, "miscselect", 4),
        misc_select_mask=_hex(members, "miscselectMask", 4),
        attributes=_hex(members, "attributes", 16),
        attributes_mask=_hex(members, "attributesMask", 16),
        mr_signer=_hex(members, "mrsigner", 32),
        prod_id=_number(members, "isvprodid", 0xFFFF),
        levels=_levels(members),
    )


def _module(members: Mapping[str, Any], *, levels: bool) -> Module:
    return Module(
        mr_signer=_hex(members, "mrsigner", 48),
        attributes=_hex(members, "attributes", 8),
        attributes_mask=_hex(members, "attributesMask", 8),
        levels=_levels(members) if levels else (),
    )


def _levels(members: Mapping[str, Any]) -> tuple[Level, ...]:
    found = []
    for each in _list(members.get("tcbLevels"), "tcbLevels"):
        level = _object(each, "tcbLevels")
        svn = _number(_object(level.get("tcb"), "tcb"), "isvsvn", 0xFFFF)
        date, status, advisories = _worth(level, _OF_PART)
        found.append(Level(svn=svn, date=date, status=status, advisories=advisories))
    return tuple(sorted(found, key=lambda each: each.svn, reverse=True))


def _platform_level(level: Mapping[str, Any], *, tdx: bool) -> PlatformLevel:
    tcb = _object(level.get("tcb"), "tcb")
    date, status, advisories = _worth(level, _OF_PLATFORM)
    return PlatformLevel(
        sgx=_components(tcb, "sgxtcbcomponents"),
        pce_svn=_number(tcb, "pcesvn", 0xFFFF),
        tdx=_components(tcb, "tdxtcbcomponents") if tdx else (0,) * COMPONENTS,
        date=date,
        status=status,
        advisories=advisories,
    )


def _worth(level: Mapping[str, Any], allowed: Sequence[Status]) -> tuple[datetime, Status, tuple[str, ...]]:
    named = {status.value: status for status in allowed}
    advisories = _list(level.get("advisoryIDs", []), "advisoryIDs", least=0)
    if not all(isinstance(each, str) and len(each) <= 64 for each in advisories):
        _bad("advisoryIDs", "not texts")
    return (
        _instant(level, "tcbDate"),
        named[_word(level, "tcbStatus", {n: n for n in named})],
        tuple(advisories),
    )


def _components(tcb: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = _list(tcb.get(name), name)
    if len(found) != COMPONENTS:
        _bad(name, f"not {COMPONENTS}")
    return tuple(_number(_object(each, name), "svn", 0xFF) for each in found)


def _document(data: bytes, what: str) -> Mapping[str, Any]:
    if len(data) > MAX_OBJECT_BYTES:
        _bad(what, f"{len(data)} bytes, at most {MAX_OBJECT_BYTES} allowed")
    try:
        # Strings of Intel's are ASCII; a decoder that guesses would let other bytes be the same text.
        found = json.loads(data.decode("ascii"), object_pairs_hook=named_once, parse_constant=_constant)
    except (ValueError, RecursionError) as e:
        raise MalformedEvidence(f"{what}: not JSON") from e
    return _object(found, what)


def _constant(text: str) -> NoReturn:
    raise ValueError(text)


def _bad(what: str, why: str) -> NoReturn:
    raise MalformedEvidence(f"collateral: {what}: {why}")


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _bad(what, "not an object")
    return value


def _list(value: object, what: str, *, least: int = 1) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= MAX_LEVELS:
        _bad(what, f"not a list of {least} to {MAX_LEVELS}")
    return value


def _text(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or len(value) > 256:
        _bad(name, "not a text")
    return value


def _word(members: Mapping[str, Any], name: str, known: Mapping[str, str]) -> str:
    value = _text(members, name)
    if value not in known:
        _bad(name, f"none of {', '.join(known)}")
    return known[value]


def _number(members: Mapping[str, Any], name: str, most: int) -> int:
    value = members.get(name)
    if type(value) is not int or not 0 <= value <= most:
        _bad(name, f"not a number up to {most}")
    return value


def _version(members: Mapping[str, Any], expected: int) -> None:
    if _number(members, "version", 0xFFFF) != expected:
        _bad("version", f"not {expected}")


def _hex(members: Mapping[str, Any], name: str, size: int) -> bytes:
    value = _text(members, name)
    if not _HEX.fullmatch(value) or len(value) != 2 * size:
        _bad(name, f"not {size} bytes of hex")
    return bytes.fromhex(value)


def _instant(members: Mapping[str, Any], name: str) -> datetime:
    value = _text(members, name)
    try:
        if _INSTANT.fullmatch(value):
            return datetime.fromisoformat(value).astimezone(UTC)
    except ValueError:
        pass
    return _bad(name, "not an instant in UTC")
