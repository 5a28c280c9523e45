"""What several policies demand together: fleet, cluster, role and machine, the narrower over the wider.

Per PCR and per member the narrowest policy that says something wins; what it leaves unsaid comes from the next
wider one. A rule keeps the mode of the policy that states it, so a narrower policy in mode `report` turns the
rules that it repeats into reported ones, and no others. `identity-only` says that nothing is compared: it
takes back everything wider.

The effective policy is a pure function of the policies in their order, so it may be remembered by their
digests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from attestation.reference.document import IDENTITY_ONLY_NAME, all_blocks, flattened, read, refuse
from attestation.reference.policy import IDENTITY_ONLY, Policy, build
from attestation.reference.rules import Source, Stated
from attestation.tpm.hashes import bank_name
from attestation.wire import canonical_json

EFFECTIVE_FORMAT: Final = "itl-tpm-effective-policy/1"
MAX_PARTS: Final = 8
_UNBOUND: Final = ("firmware.", "assurance.", "clock.")
_UNBOUND_MEMBERS: Final = frozenset(
    {"ek_key_attestation", "max_age_seconds", "reattest_seconds", "description", "log_padding"}
)


def compose(policies: Sequence[Policy]) -> Policy:
    """Return what *policies* demand together.

    Args:
        policies: One to eight, widest first, none of them composed. One alone is returned as it is.

    Raises:
        PolicyInvalid: Two of them speak of PCRs or logs in different banks, or what they demand together
            contradicts itself.
    """
    if not 0 < len(policies) <= MAX_PARTS:
        refuse(f"{len(policies)} policies, 1 to {MAX_PARTS} can be composed")
    return policies[0] if len(policies) == 1 else _composed(tuple(policies))


def compose_guarded(policies: Sequence[Policy], agreed: Sequence[bool], role: str) -> Policy:
    """Return what *policies* demand of a machine in *role*, which is under dual control: one operator lowers nothing.

    What several agreed on is laid over what one assigned, and where it is silent, what one assigned may demand more but
    takes back nothing: not the lowest assurance, not the end of trust, not the refusal of padded logs, not what blocks
    refuse by default. Reference values of confidential machines that one operator states decide nothing.

    Args:
        policies: As of `compose`.
        agreed: Of each of them, whether several agreed that it applies.
        role: The role of the machine.

    Raises:
        PolicyInvalid: As of `compose`.
    """
    pairs = tuple(zip(policies, agreed, strict=True))
    alone = _stating(policy for policy, by_several in pairs if not by_several)
    together = _stating(policy for policy, by_several in pairs if by_several)
    base = compose(together) if together else IDENTITY_ONLY
    if not alone:
        return base
    return _composed((*alone, *together), _Base(base, role))


def _stating(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return those of *policies* that are in force and state anything."""
    return tuple(policy for policy in _in_force(tuple(policies)) if policy.name != IDENTITY_ONLY_NAME)


@dataclass(frozen=True, slots=True)
class _Base:
    """What holds at least, of a machine in this role."""

    policy: Policy
    role: str

    def over(self, members: dict[str, Stated], found: Policy) -> dict[str, Stated]:
        """Return *members* of the composed policy *found*, none of them weaker than this."""
        members = dict(members)
        source = Source(policy=self.policy.ref, report=False)
        minimum = self.policy.assurance_minimum(self.role)
        stronger: dict[str, Stated] = {}
        if found.assurance_minimum(self.role).level < minimum.level:
            stronger["assurance.minimum"] = Stated(minimum, minimum.value, source)
        if found.max_age_seconds > self.policy.max_age_seconds:
            age = self.policy.max_age_seconds
            stronger["max_age_seconds"] = Stated(age, age, source)
        for name, block in all_blocks().items():
            for path in (f"{name}.{member}" for member in block.loosening):
                if path not in self.policy.sources:
                    # What it would accept more is what the default refuses.
                    members.pop(path, None)
            for path in (f"{name}.{member}" for member in block.references):
                if path in members and path not in self.policy.sources:
                    # What is expected to run vouches for a machine (`Assurance.TEE`): one operator cannot say it.
                    stated = members[path]
                    members[path] = replace(stated, source=replace(stated.source, report=True))
        if found.tpm.log_padding_accepted and not self.policy.tpm.log_padding_accepted:
            stronger["log_padding"] = Stated("refused", "refused", source)
        return members | stronger


@lru_cache(maxsize=1024)
def _composed(policies: tuple[Policy, ...], base: _Base | None = None) -> Policy:
    applied = _in_force(policies)
    if len(applied) == 1 and base is None:
        return applied[0]
    members: dict[str, Stated] = {}
    bank: str | None = None
    bound_by = ""
    for policy in applied:
        if len(policy.parts) != 1:
            refuse(f"{policy.ref} is composed already")
        document = read(json.loads(policy.document))
        members |= document.members
        if any(_is_bound(path) for path in document.members):
            if bank is not None and bank != document.bank:
                refuse(f"{bound_by} speaks of the bank {bank}, {policy.ref} of {document.bank}")
            bank, bound_by = document.bank, policy.ref
    narrowest = applied[-1]
    bank = bank or bank_name(narrowest.tpm.bank)
    ref = "+".join(policy.ref for policy in applied)

    def built(members: dict[str, Stated]) -> Policy:
        members = _reconciled(members)
        return build(
            members,
            name=narrowest.name,
            version=narrowest.version,
            ref=ref,
            bank=bank,
            document=_effective_document(applied, members, ref, bank),
            parts=tuple(policy.ref for policy in applied),
            # Nor does one operator turn what blocks demand by default into reports.
            defaults_enforced=base is not None,
        )

    found = built(members)
    return found if base is None else built(base.over(members, found))


def _in_force(policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
    """Leave out what an `identity-only` takes back, and itself where something narrower speaks."""
    applied: list[Policy] = []
    for policy in policies:
        if policy.name == IDENTITY_ONLY_NAME:
            applied = []
        else:
            # One that is assigned twice speaks where it is narrowest.
            applied = [other for other in applied if other.ref != policy.ref] + [policy]
    return tuple(applied) or (IDENTITY_ONLY,)


def _is_bound(path: str) -> bool:
    """True for a member that is about PCRs or logs, and so about one bank."""
    top = path.partition(".")[0]
    return path not in _UNBOUND_MEMBERS and not path.startswith(_UNBOUND) and top not in all_blocks()


def _reconciled(members: dict[str, Stated]) -> dict[str, Stated]:
    """Shorten an interval that another policy's age has overtaken: trust must not always end before it."""
    age, interval = members.get("max_age_seconds"), members.get("reattest_seconds")
    if age is None or interval is None:
        return members
    assert isinstance(age.value, int)
    assert isinstance(interval.value, int)
    if interval.value <= age.value:
        return members
    shorter = age.value // 2
    return members | {"reattest_seconds": Stated(shorter, shorter, age.source)}


def _effective_document(
    policies: tuple[Policy, ...], members: dict[str, Stated], ref: str, bank: str
) -> bytes:
    """Return the effective document: the members of a policy, and where each comes from."""
    document: dict[str, object] = {
        "format": EFFECTIVE_FORMAT,
        "ref": ref,
        "bank": bank,
        "policies": [{"policy": policy.ref, "sha256": policy.sha256} for policy in policies],
        "pcrs": {},
        "sources": {path: source_words(stated.source) for path, stated in sorted(members.items())},
    }
    for path, stated in members.items():
        *above, last = path.split(".")
        place = document
        for name in above:
            inner = place.setdefault(name, {})
            assert isinstance(inner, dict)
            place = inner
        place[last] = stated.written
    if isinstance(rules := document.get("rules"), dict):
        document["rules"] = list(rules.values())
    return canonical_json(document)


def source_words(source: Source) -> dict[str, str]:
    """Return where a rule comes from, as an object of JSON."""
    return {"policy": source.policy, "mode": "report" if source.report else "enforce"}


def effective_document(policy: Policy) -> dict[str, object]:
    """Return the effective document of *policy*, composed or not, as an object of JSON.

    The members of the format, `policies` (each `policy` and `sha256`, widest first) and `sources`: path of a
    member, like `pcrs.7` or `secure_boot.dbx_min`, -> `policy` and `mode`.
    """
    document: dict[str, object] = json.loads(policy.document)
    if document["format"] == EFFECTIVE_FORMAT:
        return document
    return {
        "bank": bank_name(policy.tpm.bank),
        "pcrs": {},
        **{n: value for n, value in flattened(document).items() if n not in ("name", "version", "mode")},
        "format": EFFECTIVE_FORMAT,
        "ref": policy.ref,
        "policies": [{"policy": policy.ref, "sha256": policy.sha256}],
        "sources": {path: source_words(source) for path, source in policy.sources.items()},
    }
