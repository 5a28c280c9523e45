"""Judging what is stored of confidential machines under a policy that was not in force when it came.

A report is not stored; what it showed is (`Identity.state`). That is enough for most of what a policy states; what it
is not enough for is undecided, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, NamedTuple

from attestation.reference import Demand, Policy
from attestation.reference.blocks import BLOCKS, COMMON_BLOCKS
from attestation.reference.confidential import Masked
from attestation.results import Check, Outcome

State = Mapping[str, Any]


class _Compared(NamedTuple):
    """How a demand is compared with what was shown.

    Attributes:
        of: What was shown; KeyError where it was not.
        holds: It is as demanded.
    """

    of: Callable[[State], Any]
    holds: Callable[[Any, Any], bool]


def _among(found: str, demanded: frozenset[bytes] | frozenset[str]) -> bool:
    return found in {each.hex() if isinstance(each, bytes) else each for each in demanded}


def _allowed(found: bool, demanded: bool) -> bool:
    return demanded or not found


def _required(found: bool, demanded: bool) -> bool:
    return found or not demanded


def _least(found: Any, demanded: Any) -> bool:
    return bool(found >= demanded)


def _most(found: Any, demanded: Any) -> bool:
    return bool(found <= demanded)


def _masked(found: str, demanded: Masked) -> bool:
    return int.from_bytes(bytes.fromhex(found), "little") & demanded.mask == demanded.value


def _tcbs(state: State) -> tuple[str, Mapping[str, Mapping[str, int]]]:
    return state["product"].lower(), {
        name: state[f"{name}_tcb"] for name in ("reported", "committed", "launch")
    }


def _tcbs_least(
    found: tuple[str, Mapping[str, Mapping[str, int]]], demanded: Mapping[str, Mapping[str, int]]
) -> bool:
    line, tcbs = found
    # A line of processors that is not named is not accepted.
    return line in demanded and all(
        tcb.get(name, 0) >= least for tcb in tcbs.values() for name, least in demanded[line].items()
    )


def _at(name: str, holds: Callable[[Any, Any], bool]) -> _Compared:
    return _Compared(lambda state: state[name], holds)


_COMPARED: Final[Mapping[str, Mapping[str, _Compared]]] = {
    "sev_snp": {
        **{name: _at(name, _among) for name in ("measurement", "host_data")},
        "id_block.require": _Compared(lambda state: any(bytes.fromhex(state["id_key_digest"])), _required),
        "id_block.id_key_digests": _at("id_key_digest", _among),
        "id_block.author_key_digests": _at("author_key_digest", _among),
        "min_guest_svn": _at("guest_svn", _least),
        "max_vmpl": _at("vmpl", _most),
        "allow_debug": _at("debug", _allowed),
        "allow_migration_agent": _at("migration_agent", _allowed),
        "require_smt_disabled": _Compared(lambda s: not s["smt"] and not s["platform_info"] & 1, _required),
        "require_single_socket": _at("single_socket", _required),
        "platform_must_set": _at("platform_info", lambda found, bits: found & bits == bits),
        "platform_must_clear": _at("platform_info", lambda found, bits: not found & bits),
        "min_tcb": _Compared(_tcbs, _tcbs_least),
        "allow_provisional_firmware": _Compared(
            lambda state: state["committed_tcb"] != state["current_tcb"], _allowed
        ),
        "allowed_chip_ids": _at("chip_id", _among),
        "signing_key": _at("signing_key", lambda found, key: key in (found, "any")),
        "csp_ids": _Compared(lambda state: state["csp_id"] or "", _among),
        "min_report_version": _at("version", _least),
    },
    "tdx": {
        **{
            name: _at(name, _among)
            for name in ("mrtd", "mrseam", "mrsignerseam", "mrconfigid", "mrowner", "mrownerconfig")
        },
        **{f"rtmr.{i}": _Compared(lambda state, i=i: state["rtmr"][i], _among) for i in range(4)},  # type: ignore[misc]  # a default binds the loop's number
        **{name: _at(name, _masked) for name in ("xfam", "td_attributes")},
        "allow_debug": _at("debug", _allowed),
        "require_sept_ve_disable": _at("sept_ve_disable", _required),
        "allow_migration": _at("migratable", _allowed),
        "allow_service_td": _at("service_td", _allowed),
        "accepted_ppids": _at("ppid", _among),
    },
    "sgx": {
        **{name: _at(name, _among) for name in ("mrenclave", "mrsigner")},
        "isv_prod_id": _at("isv_prod_id", lambda found, demanded: found == demanded),
        "min_isv_svn": _at("isv_svn", _least),
        "allow_debug": _at("debug", _allowed),
    },
    "tcb": {
        "accepted_status": _at("tcb_status", _among),
        "min_tcb_date": _at(
            "tcb_date", lambda found, date: found is not None and found >= f"{date:%Y-%m-%d}"
        ),
        "min_tcb_evaluation_data_number": _at("tcb_evaluation_data_number", _least),
        "reject_advisories": _at("advisories", lambda found, refused: not refused & set(found)),
        "allow_smt": _at("smt", _allowed),
        "allow_dynamic_platform": _at("dynamic_platform", _allowed),
        "allow_cached_keys": _at("cached_keys", _allowed),
    },
}
"""Block -> field of its rules -> how it is compared with the state of that name."""
KINDS_SHOWN: Final = _COMPARED.keys() - {"tcb"}
"""Kinds whose states are judged here."""
_WITH_TCB: Final = frozenset({"tdx", "sgx"})


def judge_shown(kind: str, state: State, policy: Policy) -> Iterable[Outcome]:
    """Return the outcome of each demand of *policy* for what evidence of *kind* showed last."""
    names = (kind, "tcb") if kind in _WITH_TCB else (kind,)
    for name in names:
        block = (BLOCKS | COMMON_BLOCKS)[name]
        rules = policy.blocks.get(name) or block.build({}, report=False)
        for field, demand in _demands(rules, ""):
            yield _judged(Check(name=f"{name}.{field}"), _COMPARED[name].get(field), state, demand)


def _judged(check: Check, compared: _Compared | None, state: State, demand: Demand[Any]) -> Outcome:
    if compared is None:
        return check.undecided("nothing of it is stored: the next evidence decides")
    try:
        found = compared.of(state)
    except KeyError:
        return check.undecided("nothing of it is known of the last evidence")
    if compared.holds(found, demand.value):
        return check.passed()
    return check.told(_words(demand.value), _words(found), report=demand.report)


def _demands(rules: Any, above: str) -> Iterable[tuple[str, Demand[Any]]]:
    for field in fields(rules):
        value = getattr(rules, field.name)
        if isinstance(value, Demand):
            yield f"{above}{field.name}", value
        elif isinstance(value, tuple):
            yield from ((f"{field.name}.{i}", each) for i, each in enumerate(value) if each is not None)
        elif is_dataclass(value):
            yield from _demands(value, f"{field.name}.")


def _words(value: Any) -> str:
    if isinstance(value, frozenset):
        return " or ".join(sorted(each.hex() if isinstance(each, bytes) else str(each) for each in value))
    return str(value)
