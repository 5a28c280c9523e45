"""Appraisal policies (TPM.md §4.6): what holds for a machine, ready to judge by.

`parse_policy` makes one from a document, `attestation.reference.compose` one from several. Both are built by
the same function from the same flat table of members, so that what is judged cannot depend on where it was
written.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from attestation.reference.blocks import BLOCKS, COMMON_BLOCKS
from attestation.reference.document import COMMON, FORMAT, IDENTITY_ONLY_NAME, TPM, load, read, refuse
from attestation.reference.patterns import Glob
from attestation.reference.rules import (
    BootRules,
    Demand,
    FirmwareRules,
    IMARules,
    MinimumAssurance,
    PCRRule,
    SecureBootRules,
    Source,
    Stated,
)
from attestation.results import Assurance, Outcome
from attestation.tpm import PCRSelection, bank_alg

CONTROLPLANE: Final = "controlplane"
DEFAULT_MAX_AGE_SECONDS: Final = 300
_DEFAULT_PCRS: Final = (*range(10), 11, 12, 14)
"""Where nothing says what to quote: what firmware, GRUB, systemd-boot, unified kernel images and shim extend."""
_BOOT_AGGREGATE: Final = tuple(range(10))
_IMA_PCR: Final = 10
_FIRMWARE_PCRS: Final = frozenset(range(8))

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TPMRules:
    """What a policy expects of TPM evidence: its block `tpm`.

    Args:
        bank: TPM_ALG_ID of the PCR bank.
        selection: The PCRs to request: those with a rule, and those that rules over logs read.
        rules: One per PCR, ascending.
        clock_safe_required: An unsafe clock fails instead of being flagged.
        clock_safe_reported: It is reported.
        event_log_required: The event log must be sent, by a member or because a rule reads it; a demand that
            is only reported asks for the log all the same.
        event_log: The demand for the log; None where it is only accepted.
        log_pcrs: The PCRs to which the log must lead, ascending: those that rules read through it, and where a
            member demands the log as such, the PCRs 0-7 that have a rule, or all of them.
        log_padding_accepted: Padding behind the log is flagged; else it fails where the log is needed.
        secure_boot, boot, ima, firmware: Rules beside those per PCR; None where there are none.
        ek_key_attestation: The second protocol must have been answered; None where it is only accepted.
        compared: Index and accepted digests of the PCRs that are compared by value.
        all_held: The outcomes of the rules by value where every one holds, made once.
        by_value: The rules that are judged by the quoted value alone, or ignore it.
        appraises_boot: At least one rule about what booted decides.
        logs_read: At least one rule reads an event log or a measurement list, or wants one sent.
    """

    bank: int
    selection: PCRSelection
    rules: tuple[PCRRule, ...]
    clock_safe_required: bool
    clock_safe_reported: bool
    event_log_required: bool
    event_log: Demand[bool] | None
    log_pcrs: tuple[int, ...]
    log_padding_accepted: bool
    secure_boot: SecureBootRules | None
    boot: BootRules | None
    ima: IMARules | None
    firmware: FirmwareRules | None
    ek_key_attestation: Demand[bool] | None
    compared: tuple[tuple[int, frozenset[bytes]], ...]
    all_held: tuple[Outcome, ...]
    by_value: tuple[PCRRule, ...]
    appraises_boot: bool
    logs_read: bool

    def judge(self, values: Mapping[int, bytes]) -> Sequence[Outcome]:
        """Return the outcome of every rule by value for the quoted *values*, index -> digest.

        An absent value fails. Rules over logs are judged by `attestation.appraisal`.
        """
        for index, any_of in self.compared:
            if values.get(index) not in any_of:
                return [rule.judge(values.get(rule.index)) for rule in self.by_value]
        return self.all_held


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy that has been judged fit for use; also what several together make (`compose`).

    Args:
        name: Its name; of a composition that of its narrowest part.
        version: Its version, from 1; likewise.
        ref: `name@version`; of a composition those of its parts, widest first, joined by `+`.
        tpm: What is expected of TPM evidence.
        assurance: The lowest level that the policy states; None: the default of the role.
        max_age_seconds: How long a Verified result may be relied on.
        reattest_seconds: After how long a machine is to attest again; None: as the service is set.
        description: For people; empty where there is none.
        document: The policy as written, or the effective document; canonical JSON.
        sha256: SHA-256 of `document`, hex.
        sources: Path of each member that is in force -> where it comes from.
        parts: The policies it is made of, widest first; itself where it is one.
        demands: It demands more than clock and age: there is a reason to have it.
        reports: At least one rule is only reported.
        blocks: Name of each other kind of evidence of which it states something -> the rules of that kind; of each
            common block likewise, and of those with defaults where it states something of any other kind.
        kinds: Name of each kind of which it states something, `tpm` too -> whether all of that is only reported.
    """

    name: str
    version: int
    ref: str
    tpm: TPMRules
    assurance: MinimumAssurance | None
    max_age_seconds: int
    reattest_seconds: int | None
    description: str
    document: bytes
    sha256: str
    sources: Mapping[str, Source]
    parts: tuple[str, ...]
    demands: bool
    reports: bool
    blocks: Mapping[str, Any]
    kinds: Mapping[str, bool]

    def __hash__(self) -> int:
        """Hash what it was made of: equal policies have equal documents."""
        return hash(self.sha256)

    def assurance_minimum(self, role: str | None) -> Assurance:
        """Return the lowest level of assurance with which a machine of *role* is accepted (TPM.md §6).

        A minimum that is only reported does not replace the default: it could lower it.
        """
        if self.assurance is not None and not self.assurance.report:
            return self.assurance.level
        return default_minimum(role)


def default_minimum(role: str | None) -> Assurance:
    """Return what is demanded where no policy says it: a vendor's chain of control planes, else activation."""
    return Assurance.EK_CHAIN if role == CONTROLPLANE else Assurance.TOFU


def parse_policy(data: bytes | Mapping[str, object]) -> Policy:
    """Parse and judge a policy document, JSON of at most 64 KiB.

    Raises:
        PolicyInvalid: With the member and the rule of the format that it breaks.
    """
    document = load(data) if isinstance(data, bytes) else data
    if document.get("name") == IDENTITY_ONLY_NAME:
        refuse(f"name {IDENTITY_ONLY_NAME} is the shipped policy's")
    return _parse(document)


def _parse(document: Mapping[str, object]) -> Policy:
    found = read(document)
    policy = build(
        found.members,
        name=found.name,
        version=found.version,
        ref=found.ref,
        bank=found.bank,
        document=found.written,
        parts=(found.ref,),
    )
    if found.name != IDENTITY_ONLY_NAME and not policy.demands:
        refuse("no PCR is compared and nothing else is demanded; only identity-only may do without")
    stated = found.members.get("event_log")
    if not found.report:
        for name in BLOCKS.keys() & policy.blocks.keys():
            references = sorted(f"{name}.{path}" for path in BLOCKS[name].references)
            if references and not any(path in found.members for path in references):
                refuse(f"{name}: who enforces says what is expected to run: {', '.join(references)}")
    if policy.tpm.log_pcrs and stated is not None and stated.value == "accepted":
        refuse("event_log accepted contradicts the rules that read it")
    return policy


def build(
    members: Mapping[str, Stated],
    *,
    name: str,
    version: int,
    ref: str,
    bank: str,
    document: bytes,
    parts: tuple[str, ...],
    defaults_enforced: bool = False,
) -> Policy:
    """Return the policy that states *members*, path -> what is stated there; *bank* by name, all else as in `Policy`.

    What blocks demand by default is enforced unless all that is stated beside it is only reported; with
    *defaults_enforced* also then.

    Raises:
        PolicyInvalid: Two members contradict each other.
    """
    table = _Members(members)
    rules = tuple(
        sorted(
            (cast("PCRRule", s.value) for path, s in members.items() if path.startswith("pcrs.")),
            key=lambda rule: rule.index,
        )
    )
    secure_boot, boot, ima = _secure_boot(table), _boot(table), _ima(table)
    log_pcrs = _log_pcrs(rules, secure_boot, boot, whole=table.plain("event_log", "accepted") == "required")
    event_log = _event_log(table, rules, secure_boot, boot)
    max_age = table.plain("max_age_seconds", DEFAULT_MAX_AGE_SECONDS)
    reattest = table.plain("reattest_seconds", 0) or None
    if reattest is not None and reattest > max_age:
        refuse(
            f"reattest_seconds {reattest} is longer than max_age_seconds {max_age}: trust would always end"
        )
    clock = table.demand("clock.safe", "flag")
    key_attestation = table.demand("ek_key_attestation", "accepted")
    level = table.optional("assurance.minimum", Assurance)
    firmware = _firmware(table)
    about_boot = _about_boot(rules, secure_boot, boot, ima)
    selected = {rule.index for rule in rules} | set(log_pcrs)
    if ima is not None:
        selected |= {_IMA_PCR, *_BOOT_AGGREGATE}
    blocks = _blocks(table, enforced=defaults_enforced)
    by_value = tuple(rule for rule in rules if rule.approved is None)
    compared = tuple((rule.index, rule.any_of) for rule in by_value if rule.any_of is not None)
    tpm = TPMRules(
        bank=bank_alg(bank),
        selection=PCRSelection.from_names({bank: selected or _DEFAULT_PCRS}),
        rules=rules,
        clock_safe_required=clock.value == "required" and not clock.report,
        clock_safe_reported=clock.value == "required" and clock.report,
        event_log_required=event_log is not None,
        event_log=event_log,
        log_pcrs=log_pcrs,
        log_padding_accepted=table.plain("log_padding", "refused") == "accepted",
        secure_boot=secure_boot,
        boot=boot,
        ima=ima,
        firmware=firmware,
        ek_key_attestation=Demand(True, key_attestation.report)
        if key_attestation.value == "required"
        else None,
        compared=compared,
        all_held=tuple(rule.held for rule in by_value),
        by_value=by_value,
        appraises_boot=not all(about_boot),
        logs_read=event_log is not None or ima is not None,
    )
    return Policy(
        name=name,
        version=version,
        ref=ref,
        tpm=tpm,
        assurance=MinimumAssurance(level=level.value, report=level.report) if level is not None else None,
        max_age_seconds=max_age,
        reattest_seconds=reattest,
        description=table.plain("description", ""),
        document=document,
        sha256=hashlib.sha256(document).hexdigest(),
        sources={path: members[path].source for path in sorted(members)},
        parts=parts,
        demands=bool(about_boot or firmware or level or key_attestation.value == "required" or blocks),
        reports=any(stated.source.report for stated in members.values()),
        blocks=blocks,
        kinds=_kinds(members),
    )


def _blocks(table: _Members, *, enforced: bool) -> Mapping[str, Any]:
    """Return what `Policy.blocks` is."""
    kinds = [stated for name in BLOCKS for _, stated in table.under(f"{name}.")]
    blocks: dict[str, Any] = {}
    for name, block in (BLOCKS | COMMON_BLOCKS).items():
        mine = {path.removeprefix(f"{name}."): stated for path, stated in table.under(f"{name}.")}
        # A common block holds by default for what the kinds' blocks say, and in their mode: who only reports on one
        # member of it says nothing of the others.
        of_kinds = kinds if name in COMMON_BLOCKS and block.defaults else list(mine.values())
        beside = [*mine.values(), *of_kinds]
        if beside:
            report = not enforced and bool(of_kinds) and all(stated.source.report for stated in beside)
            blocks[name] = block.build(mine, report=report)
    return blocks


def _kinds(members: Mapping[str, Stated]) -> Mapping[str, bool]:
    """Return what `Policy.kinds` is. What is neither a common member nor in a block is about TPMs."""
    kinds: dict[str, bool] = {}
    for path, stated in members.items():
        top = path.partition(".")[0]
        if top not in COMMON and top not in COMMON_BLOCKS:
            kind = top if top in BLOCKS else TPM
            kinds[kind] = kinds.get(kind, True) and stated.source.report
    return kinds


def _about_boot(
    rules: tuple[PCRRule, ...],
    secure_boot: SecureBootRules | None,
    boot: BootRules | None,
    ima: IMARules | None,
) -> list[bool]:
    """Return, for each rule that compares what booted with something expected, whether it is only reported."""
    found = [rule.report for rule in rules if rule.ignore is None]
    if secure_boot is not None:
        if secure_boot.required.value:
            found.append(secure_boot.required.report)
        lists = (secure_boot.db, secure_boot.dbx_min, secure_boot.authorities)
        found += [demand.report for demand in lists if demand is not None]
    if boot is not None:
        found += [demand.report for demand in _demands(boot)]
    if ima is not None:
        found.append(ima.allow.report)
    return found


class _Members:
    """Typed access to the flat table; `document.read` has judged the types."""

    def __init__(self, members: Mapping[str, Stated]) -> None:
        self._members = members

    def has(self, prefix: str) -> bool:
        return any(path.startswith(prefix) for path in self._members)

    def under(self, prefix: str) -> list[tuple[str, Stated]]:
        return [(path, stated) for path, stated in self._members.items() if path.startswith(prefix)]

    def plain(self, path: str, default: T) -> T:
        """Return a value that decides nothing by itself."""
        stated = self._members.get(path)
        return default if stated is None else cast("T", stated.value)

    def demand(self, path: str, default: T) -> Demand[T]:
        """Return a demand; a default is enforced unless all that is stated beside it is only reported."""
        stated = self._members.get(path)
        if stated is None:
            beside = self.under(path.partition(".")[0] + ".")
            return Demand(default, bool(beside) and all(s.source.report for _, s in beside))
        assert isinstance(stated.value, type(default))
        return Demand(stated.value, stated.source.report)

    def optional(self, path: str, kind: type[T]) -> Demand[T] | None:
        """Return a demand of *kind* where it is stated."""
        stated = self._members.get(path)
        if stated is None:
            return None
        assert isinstance(stated.value, kind)
        return Demand(stated.value, stated.source.report)


def _secure_boot(table: _Members) -> SecureBootRules | None:
    if not table.has("secure_boot."):
        return None
    debug = table.demand("secure_boot.debug", "forbid")
    return SecureBootRules(
        # Who speaks of Secure Boot and does not say that it may be off, wants it on.
        required=table.demand("secure_boot.required", True),
        db=table.optional("secure_boot.db_sha256", frozenset),
        dbx_min=table.optional("secure_boot.dbx_min", frozenset),
        authorities=table.optional("secure_boot.authorities", frozenset),
        debug_forbidden=Demand(debug.value == "forbid", debug.report),
        empty_is_off=table.plain("secure_boot.empty_variable", "refuse") == "off",
    )


def _boot(table: _Members) -> BootRules | None:
    if not table.has("boot."):
        return None
    return BootRules(
        loaders=table.optional("boot.loaders", frozenset),
        kernels=table.optional("boot.kernels", frozenset),
        initrds=table.optional("boot.initrds", frozenset),
        command_lines=table.optional("boot.command_lines", tuple),
    )


def _ima(table: _Members) -> IMARules | None:
    allow = table.optional("ima.allow", frozenset)
    if allow is None:
        return None
    no_paths: tuple[Glob, ...] = ()
    violations = table.demand("ima.violations", "fail")
    return IMARules(
        allow=allow,
        exclude=table.plain("ima.exclude", no_paths),
        violations_fail=Demand(violations.value == "fail", violations.report),
    )


def _firmware(table: _Members) -> FirmwareRules | None:
    if not table.has("firmware."):
        return None
    on_blocklist = table.optional("firmware.on_blocklist", str)
    prefix = "firmware.min."
    return FirmwareRules(
        on_blocklist=Demand(on_blocklist.value == "fail", on_blocklist.report)
        if on_blocklist is not None
        else None,
        minimum={
            path.removeprefix(prefix): cast(
                "Demand[tuple[int, int, int, int]]", Demand(stated.value, stated.source.report)
            )
            for path, stated in table.under(prefix)
        },
    )


def _log_pcrs(
    rules: tuple[PCRRule, ...], secure_boot: SecureBootRules | None, boot: BootRules | None, *, whole: bool
) -> tuple[int, ...]:
    """Return the PCRs to which the log must lead.

    Those that rules read; where the log as such is demanded, those of firmware that have a rule, or all of them.
    """
    found = {rule.index for rule in rules if rule.approved is not None}
    if secure_boot is not None:
        found.add(7)
    if boot is not None:
        for demand, pcrs in (
            (boot.loaders, {4}),
            (boot.kernels, {4, 9}),
            (boot.initrds, {9}),
            (boot.command_lines, {8, 12}),
        ):
            if demand is not None:
                found |= pcrs
    if whole:
        found |= {rule.index for rule in rules if rule.index in _FIRMWARE_PCRS}
        found = found or set(_FIRMWARE_PCRS)
    return tuple(sorted(found))


def _event_log(
    table: _Members, rules: tuple[PCRRule, ...], secure_boot: SecureBootRules | None, boot: BootRules | None
) -> Demand[bool] | None:
    """Return the demand for the log: stated, or of the rules that read it. It is enforced where one of them is."""
    reading = [rule.report for rule in rules if rule.approved is not None]
    reading += [
        demand.report for part in (secure_boot, boot) if part is not None for demand in _demands(part)
    ]
    stated = table.optional("event_log", str)
    if stated is not None and stated.value == "required":
        reading.append(stated.report)
    return Demand(True, all(reading)) if reading else None


def _demands(part: SecureBootRules | BootRules) -> list[Demand[object]]:
    names = type(part).__slots__
    return [d for d in (getattr(part, name) for name in names) if isinstance(d, Demand)]


IDENTITY_ONLY: Final = _parse(
    {
        "format": FORMAT,
        "name": IDENTITY_ONLY_NAME,
        "version": 1,
        "bank": "sha256",
        "pcrs": {},
        "max_age_seconds": 180,
    }
)
"""The shipped default: activation, quote and clock rules, no PCR. Every result says that the boot state was
not appraised."""

DEFAULT_SELECTION: Final = IDENTITY_ONLY.tpm.selection
"""What is quoted where no rule asks for a PCR: the values are recorded, not compared."""
