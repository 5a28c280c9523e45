"""What evidence of confidential hardware is compared with, whatever its kind (CONFIDENTIAL.md §§2.4, 7)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from attestation.errors import MalformedEvidence
from attestation.reference import Policy
from attestation.reference.confidential import CollateralRules, IdentityRules
from attestation.reference.rules import Demand
from attestation.results import Check, Outcome
from attestation.wire import b64decode

T = TypeVar("T")
_IDENTITY: Final = IdentityRules()
_COLLATERAL: Final = CollateralRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What authentic evidence shows of the hardware that made it, and of the guest.

    Args:
        tee: `sev-snp` or `tdx`, as report data names it.
        chip: CHIP_ID (64 bytes; Turin 8) or PPID (16 bytes); empty where hardware hides it.
        guest: HOST_DATA (32 bytes) or MRCONFIGID (48 bytes): what the launcher named the guest; zero where it did not.
        csp_id: Of a VLEK; None where a VCEK signs.
    """

    tee: str
    chip: bytes
    guest: bytes
    csp_id: str | None = None

    @property
    def names_the_guest(self) -> bool:
        """True if chip and launcher name this guest; another one ends with its boot (PROTOCOL §9)."""
        return any(self.chip) and any(self.guest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """The hardware that an operator approved for a machine, from what was observed; never from what a node says.

    Args:
        chip: CHIP_ID (64 bytes; Turin 8) or PPID (16 bytes); empty where hardware hides it.
        csp_id: Of a VLEK; None where a VCEK signs.
    """

    chip: bytes
    csp_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What evidence of one item is compared with.

    Args:
        at: The instant of the appraisal, UTC.
        report_data: The 64 bytes of `attestation.report_data.report_data`; of a GPU the 32 of `gpu_nonce`.
        endorsements: What vouches for the hardware, as its kind wants it: `endorsements.amd`, `.intel` or `.nvidia`.
        approved: What an operator approved; None where nothing was yet.
        nonce: The challenge itself, 32 bytes, for a vTPM's quote.
        ak_public: TPM2B_PUBLIC of the AK that is the machine's, where a vTPM is beside the hardware.
        ek_public: TPM2B_PUBLIC of its EK, likewise.
        before: What the last verified evidence told (`Findings.state`); None before the first.
        guest: HOST_DATA or MRCONFIGID with which a machine without a TPM was introduced; None beside a TPM.
    """

    at: datetime
    report_data: bytes
    endorsements: Any
    approved: Approved | None
    nonce: bytes
    ak_public: bytes | None = None
    ek_public: bytes | None = None
    before: Mapping[str, Any] | None = None
    guest: bytes | None = None


def members(item: object, limits: Mapping[str, int], *, required: AbstractSet[str]) -> dict[str, bytes]:
    """Return the members of an item of the envelope (CONFIDENTIAL.md §7.1), as bytes.

    Args:
        item: What came, as JSON has it.
        limits: Name of each member that may be there -> most bytes that it has.
        required: Those that must be.

    Raises:
        MalformedEvidence: Not an object of base64; a member is unknown, missing, or too long.
    """
    if not isinstance(item, Mapping) or not required <= item.keys() <= limits.keys():
        may = sorted(limits.keys() - required)
        raise MalformedEvidence(
            f"evidence has the members {', '.join(sorted(required))}"
            + (f"; also {', '.join(may)}" if may else "")
        )
    found: dict[str, bytes] = {}
    for name, text in item.items():
        if not isinstance(text, str):
            raise MalformedEvidence(f"{name}: not base64")
        found[name] = b64decode(text, name, max_bytes=limits[name])
    return found


def rules(policy: Policy | None, block: str, default: T) -> T:
    """Return what *policy* states in *block*; where it states nothing there, *default*."""
    return default if policy is None else policy.blocks.get(block, default)


def identity_rules(policy: Policy | None) -> IdentityRules:
    """Return the block `identity`."""
    return rules(policy, "identity", _IDENTITY)


def collateral_rules(policy: Policy | None) -> CollateralRules:
    """Return the block `collateral`."""
    return rules(policy, "collateral", _COLLATERAL)


def demanded(
    check: Check, demand: Demand[Any] | None, holds: bool, expected: str, found: str
) -> list[Outcome]:
    """Return the outcome of what a policy demands; nothing where it does not."""
    if demand is None:
        return []
    return [check.passed() if holds else check.told(expected, found, report=demand.report)]


def one_of(check: Check, demand: Demand[frozenset[bytes]] | None, found: bytes, what: str) -> list[Outcome]:
    """Return whether *found* is one of the values that a policy names; nothing where it names none."""
    if demand is None:
        return []
    accepted = sorted(value.hex() for value in demand.value)
    words = f"{what} {accepted[0]}" if len(accepted) == 1 else f"{what}: one of {len(accepted)} values"
    return demanded(check, demand, found in demand.value, words, found.hex())


def judge_identity(check: Check, seen: Hardware, approved: Approved | None, policy: Policy | None) -> Outcome:
    """Compare the hardware with what an operator approved for the machine (CONFIDENTIAL.md §2.4).

    Args:
        check: Its claim is `instance-identity`: 2 where it is equal, 97 where it is not.
        seen: What authentic evidence shows.
        approved: What an operator approved; None where nothing was.
        policy: Its block `identity` says whether that is compared, or only recorded.
    """
    if identity_rules(policy).mode == "observed":
        return check.flagged("recorded, not compared: the policy only observes the hardware")
    if approved is None:
        return check.undecided("no operator approved hardware for this machine yet")
    if (seen.chip, seen.csp_id) != (approved.chip, approved.csp_id):
        return check.failed(_named(approved.chip, approved.csp_id), _named(seen.chip, seen.csp_id))
    if not any(seen.chip):
        return check.undecided("the evidence hides which processor made it: it identifies no machine")
    return check.passed()


def _named(chip: bytes, csp_id: str | None) -> str:
    name = f"processor {chip.hex()}" if any(chip) else "a processor that is not named"
    return f"{name} of {csp_id}" if csp_id is not None else name
