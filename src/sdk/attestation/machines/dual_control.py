"""Dual control: what a vote is about, which acts need several, and how votes add up (D&O §12, FAULTS R19).

A vote binds the SHA-256 of the whole proposal: what is to be done, to whom, with which result, and what the
operators could see of the machine. Whatever differs makes another proposal, and votes for different proposals
never add up. Counted are humans, not votes: two votes are of the same human if their stable subject *or* their
shown name is the same, so that one person with two ways to log in stays one person.
"""

# Algorithms for: digest
# Longer than 500 lines: every act that several agree to, with what its digest binds.
from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

from attestation.machines.lifecycle import Role, Transition
from attestation.machines.machine import DEFAULT_CLUSTER, Machine
from attestation.results import Assurance
from attestation.wire import canonical_json

FORMAT = "itl-proposal/2"
"""Names the set of members that enters the digest; a new set gets a new name."""

MACHINE_ACTIONS = frozenset(
    {
        Transition.APPROVE,
        Transition.UNLOCK,
        Transition.ROLE_CHANGE,
        Transition.AK_RESET,
        Transition.REDELIVER,
        Transition.APPROVE_HARDWARE,
    }
)
"""The acts on a machine after which it can get credentials, or other ones than before."""

REGISTRATION_TOKEN = "registration_token"  # noqa: S105 -- the name of an act
ALLOW_LIST_IMPORT = "allow_list_import"
POLICY_ASSIGN = "policy_assign"
POLICY_UNASSIGN = "policy_unassign"
TRUST_CERTIFICATE = "trust_certificate"
CA_ROTATION = "ca_rotation"
OPERATOR_CERTIFICATE = "operator_certificate"
CA_REVOCATION = "ca_revocation"
CA_CHAIN = "ca_chain"
CA_IMPORT = "ca_import"
OFFLINE_BUNDLE = "offline_bundle"
REPLACE = "replace"
CLUSTER_VERSION = "cluster_version"
APPROVAL_RULE = "approval_rule"
CONFIGURATION_ACTIVATE = "configuration_activate"

EXTENSION = "."
"""Stands in the names of acts of extensions, `<name>.<word>`, and in no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """An allow-list entry: what an EK (96 lower-case hex) would become, or became."""

    ek_fingerprint: str
    role: Role
    hostname: str | None
    assigned_ip: str | None
    cluster_id: str | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPolicy:
    """A policy version: `name@version`, and the SHA-256 of its document, 64 lower-case hex.

    `agreed`: several people agreed that it applies there.
    """

    ref: str
    sha256: str
    agreed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a machine would be measured against in the role that an act leaves it with.

    Args:
        policy: The effective policy.
        minimum: The lowest assurance with which the role is accepted under it.
        parts: What it is made of, the widest first.
    """

    policy: AppliedPolicy
    minimum: Assurance
    parts: tuple[AppliedPolicy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What somebody wants done.

    Args:
        action: The transition, or one of the names above.
        machine_id: The machine, or None where the act is not about one.
        ek_fingerprint: Its EK, 96 lower-case hex.
        ak_name: Name of its activated AK in hex, or None.
        role: The role it would have afterwards.
        current_role: The role it has now.
        hostname: The host name it would have afterwards.
        assigned_ip: The address it would have afterwards.
        cluster_id: The cluster it would belong to afterwards.
        evidence_digest: SHA-256 hex of what operators could see of it, see `evidence_digest`.
        terms: Further members of tokens, allow-list imports and policies.
        roles: Every role that is given or taken; it decides whether the act is gated.
        assurance: How well the machine is vouched for now.
        current_hostname: The host name it has now.
        current_assigned_ip: The address it has now.
        current_cluster_id: The cluster it is in now.
        measured: What it would be measured against; None where the act is not about a machine in a role.
    """

    action: str
    machine_id: str | None
    ek_fingerprint: str | None
    ak_name: str | None
    role: Role | None
    current_role: Role | None
    hostname: str | None
    assigned_ip: str | None
    cluster_id: str | None
    evidence_digest: str | None
    terms: Mapping[str, str | int | None]
    roles: frozenset[Role]
    assurance: Assurance | None = None
    current_hostname: str | None = None
    current_assigned_ip: str | None = None
    current_cluster_id: str | None = None
    measured: Measured | None = None

    @property
    def subject(self) -> str:
        """Return what it is about, in words for operators."""
        return subject_of(self.action, self.machine_id, self.role, self.terms)

    def canonical(self) -> bytes:
        """Return the bytes that a vote binds: canonical JSON of every member, null where absent."""
        return canonical_json(
            {
                **asdict(self),
                "format": FORMAT,
                "terms": dict(self.terms),
                "roles": sorted(self.roles),
            }
        )

    def digest(self) -> str:
        """Return the SHA-256 of the canonical bytes, 64 lower-case hex."""
        return hashlib.sha256(self.canonical()).hexdigest()


def subject_of(
    action: str, machine_id: str | None, role: str | None, terms: Mapping[str, str | int | None]
) -> str:
    """Return what a proposal of these members is about, in words for operators."""
    if action in (POLICY_ASSIGN, POLICY_UNASSIGN):
        return _policy_words(terms)
    if action == CONFIGURATION_ACTIVATE:
        instead = "" if terms["replaces"] is None else f", instead of version {terms['replaces']}"
        return (
            f"configuration {terms['place']}, version {terms['version']}, SHA-256 {terms['sha256']}{instead}"
        )
    if EXTENSION in action:
        # In the order of canonical JSON, in which they are read again: a row is compared with what its votes bind.
        told = [f"{name} {value}" for name, value in sorted(terms.items())]
        return ", ".join([f"machine {machine_id}", *told] if machine_id else told)
    if action == TRUST_CERTIFICATE:
        return f"{terms['role']} of {terms['vendor']}, SHA-256 {terms['sha256']}"
    if action == CA_ROTATION:
        return _rotation_words(terms)
    if action == CA_REVOCATION:
        return f"revocation of certificate {terms['serial']} of {terms['subject']}"
    if action == CA_CHAIN:
        return f"CA key {terms['issuer']} below {terms['root']}, SHA-256 {terms['root_sha256']}, until {terms['until']}"
    if action == CA_IMPORT:
        return (
            f"key of CA {terms['name']} for {terms['purpose']} certificates, root {terms['root']}, "
            f"SHA-256 {terms['root_sha256']}, until {terms['until']}"
        )
    if action == APPROVAL_RULE:
        return (
            f"{terms['step']} approval rule {terms['name']}: up to {terms['max_count']} machines become {role} "
            f"where {terms['expression']}"
        )
    if action == CLUSTER_VERSION:
        instead = "" if terms["replaces"] is None else f", instead of {terms['replaces']}"
        return f"Talos {terms['talos_version']} for cluster {terms['cluster']}{instead}"
    if action == OPERATOR_CERTIFICATE:
        return f"certificate of {terms['duty']} {terms['name']}"
    if action == REPLACE:
        return f"machine {machine_id} in place of machine {terms['replaces']}"
    if machine_id is not None:
        return f"machine {machine_id}"
    if action == REGISTRATION_TOKEN:
        return f"registration token for {role}, {terms['uses']} uses"
    return f"allow-list, {terms['entries']} entries, {terms['replaces']} of them replaced"


def of_machine(
    transition: Transition,
    machine: Machine,
    *,
    role: Role | None,
    hostname: str | None,
    assigned_ip: str | None,
    cluster_id: str,
    measured: Measured | None,
    accepts_ek: bool = False,
    replaces: Machine | None = None,
) -> Proposal:
    """Return the proposal of an act on *machine* after which it has these four; in place of *replaces*, which ends.

    `measured`: what it will be measured against in that role; `accepts_ek`: its EK is admitted by name (allow-list),
    whoever vouches for it.
    """
    terms: dict[str, str | int | None] = {"accepts_ek": machine.fingerprint} if accepts_ek else {}
    if replaces is not None:
        terms |= {"replaces": replaces.machine_id, "replaces_ek": replaces.fingerprint}
    return Proposal(
        action=transition.value if replaces is None else REPLACE,
        machine_id=machine.machine_id,
        role=role,
        hostname=hostname,
        assigned_ip=assigned_ip,
        cluster_id=cluster_id,
        terms=terms,
        roles=frozenset(each for each in (role, machine.role) if each is not None),
        **_state(machine, measured),
    )


def of_offline_bundle(machine: Machine, measured: Measured | None) -> Proposal:
    """Return the proposal to let configuration and a key of *machine* leave in one file; whatever its role is."""
    return Proposal(
        action=OFFLINE_BUNDLE,
        machine_id=machine.machine_id,
        role=machine.role,
        hostname=machine.hostname,
        assigned_ip=machine.assigned_ip,
        cluster_id=machine.cluster_id,
        terms={},
        roles=frozenset(Role),
        **_state(machine, measured),
    )


def of_extension(
    action: str,
    machine: Machine | None,
    measured: Measured | None,
    *,
    terms: Mapping[str, str | int | None],
    always: bool,
) -> Proposal:
    """Return the proposal of an act of an extension, about *machine* or about none.

    Args:
        action: `<name>.<word>`.
        machine: What it is about, or None; then it concerns machines of every role.
        measured: What the machine is measured against.
        terms: Everything else that it rests on.
        always: Several must agree whatever the role of the machine is.
    """
    every = frozenset(Role)
    if machine is None:
        return _of_no_machine(action, terms=dict(terms), roles=every)
    own = frozenset({machine.role}) if machine.role is not None else every
    return Proposal(
        action=action,
        machine_id=machine.machine_id,
        role=machine.role,
        hostname=machine.hostname,
        assigned_ip=machine.assigned_ip,
        cluster_id=machine.cluster_id,
        terms=terms,
        roles=every if always else own,
        **_state(machine, measured),
    )


def _state(machine: Machine, measured: Measured | None) -> dict[str, Any]:
    """Return the members of a proposal about *machine* that say what is the case, not what is asked for."""
    return {
        "ek_fingerprint": machine.fingerprint,
        "ak_name": machine.key_name.hex() if machine.key_name is not None else None,
        "current_role": machine.role,
        "current_hostname": machine.hostname,
        "current_assigned_ip": machine.assigned_ip,
        "current_cluster_id": machine.cluster_id,
        "evidence_digest": evidence_digest(machine),
        "assurance": machine.assurance,
        "measured": measured,
    }


def overtaken(
    voted: Mapping[str, object], machine: Machine | None, measured: Measured | None
) -> tuple[str, ...]:
    """Return which members of a proposal about a machine say what is not so any more; with one, its votes are void.

    Args:
        voted: The members that votes bind, as `Proposal.canonical` wrote them.
        machine: As it is now; None where it is gone.
        measured: What it would be measured against now in the role and cluster that the proposal names.
    """
    if machine is None:
        return ("machine_id",)
    now = _state(machine, measured)
    now["measured"] = None if measured is None else json.loads(canonical_json(asdict(measured)))
    return tuple(name for name, value in now.items() if voted.get(name) != value)


def about(members: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return what a proposal is about. Of several about the same one is meant, unless somebody says otherwise.

    Nobody knows yet whom a token would admit, so all tokens for one role are about the same; and so are all imports,
    of whose entries only a digest is known here.

    Args:
        members: As `Proposal.canonical` wrote them.
    """
    action, terms = members["action"], members["terms"]
    # What an extension calls its terms, only the extension knows: with other terms it is about something else.
    named = sorted(terms) if EXTENSION in action else _NAMED_BY.get(action, ())
    return (
        _SAME_KIND.get(action, action),
        members["machine_id"],
        members["role"] if action == REGISTRATION_TOKEN else None,
        # Those of an extension may be numbers, or nothing.
        *(_folded(str(terms[name])) for name in named),
    )


_SAME_KIND: Final = {REPLACE: Transition.APPROVE.value, POLICY_UNASSIGN: POLICY_ASSIGN}
"""Acts that decide the same question as another one."""

_NAMED_BY: Final = {
    POLICY_ASSIGN: ("scope", "subject"),
    POLICY_UNASSIGN: ("scope", "subject"),
    TRUST_CERTIFICATE: ("sha256",),
    CA_ROTATION: ("purpose", "algorithm"),
    CA_REVOCATION: ("serial",),
    CA_CHAIN: ("issuer",),
    CA_IMPORT: ("purpose", "algorithm"),
    OPERATOR_CERTIFICATE: ("name",),
    CLUSTER_VERSION: ("cluster",),
    APPROVAL_RULE: ("step", "name"),
    CONFIGURATION_ACTIVATE: ("place",),
}
"""The terms that name what an act is about, where it is about no machine."""

_LONGEST_TOLD: Final = 63
"""So many characters of a value can be compared in a sentence; digests and keys cannot."""


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in what a proposal differs from another one, in words, with both values where they can be read.

    Args:
        ours: As `Proposal.canonical` wrote them.
        theirs: Those of the other one, which may be of an earlier format.
    """
    mine, other = ({**members, **members["terms"], "terms": None} for members in (ours, theirs))
    return tuple(
        _told(name, mine.get(name), other.get(name))
        for name in {**mine, **other}
        if mine.get(name) != other.get(name)
    )


def _told(name: str, mine: Any, other: Any) -> str:
    if any(isinstance(value, dict | list) or len(str(value)) > _LONGEST_TOLD for value in (mine, other)):
        return name
    ours, theirs = ("none" if value is None else value for value in (mine, other))
    return f"{name} ({ours}, not {theirs})"


def of_registration_token(
    *,
    role: Role,
    hostname: str | None,
    assigned_ip: str | None,
    cluster_id: str | None,
    uses: int,
    expires_in_seconds: int,
    minimum_assurance: Assurance,
) -> Proposal:
    """Return the proposal to issue a registration token on these terms."""
    proposal = _of_no_machine(
        REGISTRATION_TOKEN,
        terms={
            "uses": uses,
            "expires_in_seconds": expires_in_seconds,
            "minimum_assurance": minimum_assurance.value,
        },
        roles=frozenset({role}),
    )
    return replace(proposal, role=role, hostname=hostname, assigned_ip=assigned_ip, cluster_id=cluster_id)


def of_allow_list(entries: Sequence[Admission], replaced: Sequence[Admission]) -> Proposal:
    """Return the proposal to admit *entries* in advance, in place of the entries *replaced*.

    The order of the entries is no part of it.
    """
    clusters = {entry.cluster_id or DEFAULT_CLUSTER for entry in (*entries, *replaced)}
    proposal = _of_no_machine(
        ALLOW_LIST_IMPORT,
        terms={
            "entries": len(entries),
            "entries_digest": _digest_of(entries),
            "replaces": len(replaced),
            "replaces_digest": _digest_of(replaced),
        },
        # Taking a role from an EK counts as giving one: otherwise a single operator could undo what two agreed on.
        roles=frozenset(entry.role for entry in (*entries, *replaced)),
    )
    # Whoever may act in one cluster alone sees what is of that cluster alone.
    return replace(proposal, cluster_id=clusters.pop() if len(clusters) == 1 else None)


def of_policy_assignment(
    *,
    scope: Literal["fleet", "cluster", "role", "machine"],
    subject: str,
    machine: Machine | None,
    policy: AppliedPolicy | None,
    replaces: AppliedPolicy | None,
) -> Proposal:
    """Return the proposal that *policy* applies there instead of *replaces*; None is no policy of its own.

    Weaker, stricter or the one before: it decides what counts as good evidence, so each of them is an act of its
    own. Concerned are the roles whose machines are measured against it: those of the fleet and of a cluster may
    have any, and so may a machine that has none yet, because the one that it wishes for is only its own word.

    Args:
        scope: How wide.
        subject: `*`, the cluster id, the role or the machine id.
        machine: The machine of the scope `machine`, else None.
        policy: What shall apply; None ends the assignment.
        replaces: What applies now; None where nothing is assigned there.
    """
    current = Role(subject) if scope == "role" else machine.role if machine is not None else None
    proposal = _of_no_machine(
        POLICY_UNASSIGN if policy is None else POLICY_ASSIGN,
        terms={
            "scope": scope,
            "subject": subject,
            "policy": policy.ref if policy is not None else None,
            "policy_sha256": policy.sha256 if policy is not None else None,
            "replaces": replaces.ref if replaces is not None else None,
            "replaces_sha256": replaces.sha256 if replaces is not None else None,
        },
        roles=frozenset(Role) if current is None else frozenset({current}),
    )
    return replace(
        proposal,
        machine_id=machine.machine_id if machine is not None else None,
        ek_fingerprint=machine.fingerprint if machine is not None else None,
        current_role=current,
        cluster_id=subject if scope == "cluster" else None,
    )


def of_configuration(
    *,
    place: str,
    cluster_id: str | None,
    role: Role | None,
    machine: Machine | None,
    version: int,
    sha256: str,
    replaces: int | None,
    replaces_sha256: str | None,
) -> Proposal:
    """Return the proposal to deliver one version of a configuration instead of *replaces*.

    Newer or older: it decides what machines run, so each of them is an act of its own. Concerned is the role that it is
    for; the patch of a machine that has no role yet may come to be of any.

    Args:
        place: Whose it is, in words.
        cluster_id: Of a base configuration, and of the machine of a patch.
        role: Of the machines that get it, or None.
        machine: Whose patch it is, else None.
        version: Which version.
        sha256: Of its text, 64 lower-case hex.
        replaces: The version that is delivered now; None where none is.
        replaces_sha256: Of its text, likewise.
    """
    proposal = _of_no_machine(
        CONFIGURATION_ACTIVATE,
        terms={
            "place": place,
            "version": version,
            "sha256": sha256,
            "replaces": replaces,
            "replaces_sha256": replaces_sha256,
        },
        roles=frozenset(Role) if role is None else frozenset({role}),
    )
    return replace(
        proposal,
        machine_id=machine.machine_id if machine is not None else None,
        ek_fingerprint=machine.fingerprint if machine is not None else None,
        current_role=role,
        cluster_id=cluster_id,
    )


def _policy_words(terms: Mapping[str, str | int | None]) -> str:
    place = "the fleet" if terms["scope"] == "fleet" else f"{terms['scope']} {terms['subject']}"
    if terms["policy"] is None:
        return f"no policy of its own for {place}, instead of {terms['replaces']}"
    instead = "" if terms["replaces"] is None else f", instead of {terms['replaces']}"
    return f"policy {terms['policy']} for {place}{instead}"


def of_trust_certificate(*, sha256: str, role: str, vendor: str) -> Proposal:
    """Return the proposal to believe the holder of a CA's key about TPMs; it concerns machines of every role.

    Args:
        sha256: SHA-256 of the certificate's DER, 64 lower-case hex.
        role: `anchor` or `intermediate`.
        vendor: Registered name of the vendor whose TPMs it may vouch for.
    """
    return _of_no_machine(
        TRUST_CERTIFICATE,
        terms={"sha256": sha256, "role": role, "vendor": vendor},
        roles=frozenset(Role),
    )


def of_ca_rotation(
    *,
    step: Literal["prepare", "activate", "rollback", "retire"],
    purpose: str,
    algorithm: str,
    active: str,
    other: str | None,
    force: bool,
) -> Proposal:
    """Return the proposal of one step of a rotation of a CA's key; it concerns machines of every role.

    Args:
        step: What is to be done.
        purpose: Of which CA.
        algorithm: Of the key.
        active: Id of the key that signs now.
        other: Id of the key that begins or ceases to be used; None where it is still to be made.
        force: Without waiting for relying parties to follow.
    """
    return _of_no_machine(
        CA_ROTATION,
        terms={
            "step": step,
            "purpose": purpose,
            "algorithm": algorithm,
            "active": active,
            "other": other,
            "force": int(force),
        },
        roles=frozenset(Role),
    )


def of_ca_revocation(*, serial: str, profile: str, subject: str, reason: str) -> Proposal:
    """Return the proposal to revoke a CA's certificate, its own or a cross one; it concerns machines of every role.

    Args:
        serial: Of the certificate, 40 lower-case hex.
        profile: Its kind.
        subject: Which CA it is about.
        reason: Word of RFC 5280 §5.3.1.
    """
    return _of_no_machine(
        CA_REVOCATION,
        terms={"serial": serial, "profile": profile, "subject": subject, "reason": reason},
        roles=frozenset(Role),
    )


def of_ca_chain(
    *,
    issuer: str,
    root: str,
    root_sha256: str,
    chain_sha256: str,
    until: str,
    replaces: str | None,
    force: bool,
) -> Proposal:
    """Return the proposal that a parent vouches for a CA key; it concerns machines of every role.

    Args:
        issuer: Id of the key.
        root: Name of what relying parties must believe from then on.
        root_sha256: Of its certificate, 64 lower-case hex.
        chain_sha256: Of the certificates, DER, one behind the other; likewise.
        until: RFC 3339, when the first certificate of the chain ends.
        replaces: SHA-256 of the key's certificate that is in use now.
        force: Also where the key signs already.
    """
    return _of_no_machine(
        CA_CHAIN,
        terms={
            "issuer": issuer,
            "root": root,
            "root_sha256": root_sha256,
            "chain_sha256": chain_sha256,
            "until": until,
            "replaces": replaces,
            "force": int(force),
        },
        roles=frozenset(Role),
    )


def of_ca_import(
    *,
    purpose: str,
    algorithm: str,
    name: str,
    spki_sha256: str,
    root: str,
    root_sha256: str,
    chain_sha256: str,
    until: str,
    wrapped_sha256: str,
    oaep_hash: str,
) -> Proposal:
    """Return the proposal to make an existing CA's key the next one of a CA here; it concerns machines of every role.

    Args:
        purpose: Whom it is to certify.
        algorithm: Of the key.
        name: Of the CA.
        spki_sha256: Of its SubjectPublicKeyInfo, 64 lower-case hex.
        root: Name of what relying parties must believe.
        root_sha256: Of its certificate, likewise.
        chain_sha256: Of the certificates, DER, one behind the other; likewise.
        until: RFC 3339, when the first certificate of the chain ends.
        wrapped_sha256: Of the wrapped key; likewise.
        oaep_hash: As it was wrapped.
    """
    return _of_no_machine(
        CA_IMPORT,
        terms={
            "purpose": purpose,
            "algorithm": algorithm,
            "name": name,
            "spki_sha256": spki_sha256,
            "root": root,
            "root_sha256": root_sha256,
            "chain_sha256": chain_sha256,
            "until": until,
            "wrapped_sha256": wrapped_sha256,
            "oaep_hash": oaep_hash,
        },
        roles=frozenset(Role),
    )


def of_operator_certificate(*, name: str, duty: str, spki_sha256: str, days: int) -> Proposal:
    """Return the proposal to make *name* an operator by certificate; whoever is one may act on machines of every role.

    Args:
        name: CN of the certificate.
        duty: Its OU.
        spki_sha256: Of the key, 64 lower-case hex: another key is another proposal.
        days: How long it is valid.
    """
    return _of_no_machine(
        OPERATOR_CERTIFICATE,
        terms={"name": name, "duty": duty, "spki_sha256": spki_sha256, "days": days},
        roles=frozenset(Role),
    )


def of_approval_rule(
    *,
    step: str,
    name: str,
    expression: str,
    role: Role,
    cluster_id: str,
    hostname: str | None,
    minimum_assurance: Assurance,
    max_count: int,
    priority: int,
) -> Proposal:
    """Return the proposal to make a rule of approval (`step` is `make`), or to let it approve machines (`enable`).

    The pattern of host names is a term: it is the name of no machine.
    """
    proposal = _of_no_machine(
        APPROVAL_RULE,
        terms={
            "step": step,
            "name": name,
            "expression": expression,
            "pattern": hostname,
            "minimum_assurance": minimum_assurance.value,
            "max_count": max_count,
            "priority": priority,
        },
        roles=frozenset({role}),
    )
    return replace(proposal, role=role, cluster_id=cluster_id)


def of_cluster_version(
    *, cluster: str, description: str | None, talos_version: str, replaces: str | None
) -> Proposal:
    """Return the proposal that a cluster runs *talos_version* from now on; it concerns machines of every role.

    Args:
        cluster: Its id.
        description: What is to be said of it beside that, or None.
        talos_version: With a `v`; `default` is the service's own.
        replaces: What is declared now, likewise; None where the cluster is to be declared.
    """
    proposal = _of_no_machine(
        CLUSTER_VERSION,
        terms={
            "cluster": cluster,
            "description": description,
            "talos_version": talos_version,
            "replaces": replaces,
        },
        roles=frozenset(Role),
    )
    return replace(proposal, cluster_id=cluster)


def _of_no_machine(action: str, *, terms: dict[str, str | int | None], roles: frozenset[Role]) -> Proposal:
    return Proposal(
        action=action,
        machine_id=None,
        ek_fingerprint=None,
        ak_name=None,
        role=None,
        current_role=None,
        hostname=None,
        assigned_ip=None,
        cluster_id=None,
        evidence_digest=None,
        terms=terms,
        roles=roles,
    )


def _rotation_words(terms: Mapping[str, str | int | None]) -> str:
    forced = " at once" if terms["force"] else ""
    other = "" if terms["other"] is None else f", other key {terms['other']}"
    which = f"{terms['purpose']} CA, {terms['algorithm']}"
    return f"{terms['step']}{forced} in the rotation of the {which}: active key {terms['active']}{other}"


def evidence_digest(machine: Machine) -> str:
    """Return the SHA-256, 64 lower-case hex, of what operators look at before they trust *machine*.

    It stays the same while attestations find nothing new; a reboot, other PCRs, another policy, verdict or
    certificate change it, and with it every proposal about the machine.
    """
    certificate, seen = machine.anchor.ek_certificate, machine.hardware
    shown: dict[str, object] = {
        "ek_certificate_sha256": certificate.sha256 if certificate is not None else None,
        "ek_source": machine.anchor.ek_source,
        "assurance": machine.assurance,
        "last_verdict": machine.last_verdict,
        "last_policy": machine.last_policy,
        "last_failed": machine.last_failed,
        "last_result_key": machine.last_result_key,
    }
    if seen is not None:
        # What an approval makes the chip that this machine must run on.
        shown["hardware"] = [seen.kind, seen.chip.hex(), seen.guest.hex(), seen.csp_id]
    return hashlib.sha256(canonical_json(shown)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One operator's agreement to one proposal.

    Args:
        operator_cn: Name shown.
        operator_sub: Stable subject; None (break-glass) never counts.
        created_at: When it was cast.
        expires_at: From this instant on it does not count.
        consumed_at: When the act that it was cast for was done, or None.
        withdrawn_at: When it was taken back or became void, or None.
        void: Why it became void without its voter, or None.
        certificate: The client certificate, DER, with which it was cast; None where with none.
    """

    operator_cn: str
    operator_sub: str | None
    created_at: datetime
    expires_at: datetime
    consumed_at: datetime | None = None
    withdrawn_at: datetime | None = None
    void: str | None = None
    certificate: bytes | None = field(default=None, repr=False)

    def is_live(self, at: datetime) -> bool:
        """Return True if the vote counts at *at*."""
        ended = self.consumed_at is not None or self.withdrawn_at is not None
        return bool(self.operator_sub) and not ended and at < self.expires_at

    def is_by(self, operator_cn: str, operator_sub: str) -> bool:
        """Return True if the vote is that of this human."""
        return self.operator_sub == operator_sub or same_name(self.operator_cn, operator_cn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What live votes come to.

    Args:
        voters: One name for each human, by the age of the votes.
        expires_at: When the first live vote expires; None where there is none.
    """

    voters: tuple[str, ...]
    expires_at: datetime | None

    @property
    def received(self) -> int:
        """How many humans agree."""
        return len(self.voters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When acts need several humans.

    Args:
        roles: Roles that are under dual control; empty switches it off.
        quorum: How many humans must agree; less than 2 switches it off.
    """

    roles: frozenset[Role]
    quorum: int

    @property
    def is_on(self) -> bool:
        """True where some act is gated."""
        return self.quorum >= 2 and bool(self.roles)

    def gates(self, proposal: Proposal) -> bool:
        """Return True if *proposal* needs several: a role that it gives or takes is under dual control."""
        return self.is_on and not self.roles.isdisjoint(proposal.roles)

    def is_met(self, tally: Tally) -> bool:
        """Return True if enough humans agree."""
        return tally.received >= self.quorum


def tally(votes: Iterable[Vote], at: datetime) -> Tally:
    """Count the humans behind the live ones of *votes*, which must be of one proposal.

    Votes that share a subject or a name are of one human, also through a third: who votes as A by token, as A
    by certificate and with that certificate under the name B is one.
    """
    live = sorted((vote for vote in votes if vote.is_live(at)), key=_age)
    humans: list[list[Vote]] = []
    for vote in live:
        known = [human for human in humans if any(_same_human(vote, other) for other in human)]
        others = [human for human in humans if human not in known]
        humans = [*others, [vote, *(each for human in known for each in human)]]
    oldest = sorted((min(human, key=_age) for human in humans), key=_age)
    return Tally(
        voters=tuple(vote.operator_cn for vote in oldest),
        expires_at=min((vote.expires_at for vote in live), default=None),
    )


def same_name(one: str, other: str) -> bool:
    """Return True if two shown names are the same to a reader: case, width and blanks do not count."""
    return _folded(one) == _folded(other)


def _age(vote: Vote) -> tuple[datetime, str, str]:
    return vote.created_at, vote.operator_cn, vote.operator_sub or ""


def _same_human(vote: Vote, other: Vote) -> bool:
    return vote.operator_sub == other.operator_sub or same_name(vote.operator_cn, other.operator_cn)


def _folded(name: str) -> str:
    """Return *name* in Unicode NFKC without case, blanks made single (Unicode Standard Annex #15)."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


def _digest_of(entries: Sequence[Admission]) -> str:
    ordered = sorted(entries, key=lambda entry: entry.ek_fingerprint)
    return hashlib.sha256(canonical_json({"entries": [asdict(entry) for entry in ordered]})).hexdigest()
