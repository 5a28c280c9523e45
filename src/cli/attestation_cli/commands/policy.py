"""`attestation policy …`: what machines are measured against."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attestation.client.text import clean
from attestation.errors import PolicyInvalid, PolicyUnknown, RequestInvalid
from attestation.machines import Role
from attestation_cli.complete import complete_machine, complete_policy
from attestation_cli.policy_file import MAX_CHARACTERS, read_policy
from attestation_cli.policy_trial import Trial
from attestation_cli.policy_words import commented, member, place_words, rule_words, signed_values
from attestation_cli.progress import Progress
from attestation_cli.render import Cell, Column, cell, time_cell, wrap, yaml_text
from attestation_cli.session import Session, checked, output_option, pass_session

if TYPE_CHECKING:
    from attestation.api import LearnedPolicy, PendingApproval, PolicyAssignment, PolicyDetail
    from attestation.client import OperatorClient
    from attestation.client.operator import Scope
    from attestation.reference import Policy

REF = re.compile(r"[a-z0-9][a-z0-9-]{0,62}@[1-9][0-9]{0,8}\Z")
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
SHORT = 32


@click.group("policy")
def group() -> None:
    """What machines are measured against.

    Write a policy, or learn one from machines that run; test it on what the fleet proved last; activate it. What
    is assigned to the fleet, a cluster, a role and a machine applies together; where they differ, the narrower wins.
    Without any, the shipped policy identity-only applies: identity proven, boot state not appraised.

    \b
    Examples:
      attestation policy learn --role worker-app --name workers -f workers.yaml
      attestation policy test workers.yaml --role worker-app
      attestation policy create workers.yaml
      attestation policy activate workers@1 --role worker-app
    """


@group.command("list")
@output_option
@pass_session
def list_(session: Session) -> None:
    """List policies and where they apply.

    \b
    Examples:
      attestation policy list
    """
    with session.client() as client:
        listed = client.policies()
    if session.json:
        session.emit_json(listed)
        return
    now = datetime.now(UTC)
    session.emit_table(
        [
            Column("POLICY"),
            Column("CREATED", drop=1),
            Column("BY", shrink_to=8, drop=2),
            Column("APPLIES TO", shrink_to=12),
            Column("SHA-256", shrink_to=13, drop=3),
        ],
        [
            [
                cell(f"{p.name}@{p.version}"),
                time_cell(p.created_at, now) if p.created_at else cell("shipped"),
                cell(p.created_by),
                cell(_places(p, listed.assignments)),
                cell(p.sha256),
            ]
            for p in listed.policies
        ],
        "No policies.",
    )


@group.command()
@click.argument("policy", metavar="NAME[@VERSION]", shell_complete=complete_policy)
@output_option
@pass_session
def show(session: Session, policy: str) -> None:
    """Show a policy version, the newest where none is named.

    With -o yaml or json: its document alone, ready to be changed and stored as the next version.

    \b
    Examples:
      attestation policy show workers@2
      attestation policy show workers -o yaml > workers.yaml
    """
    with session.client() as client:
        found = _find(client, policy)
    if session.json:
        session.emit_json(found.document)
        return
    session.emit_fields(
        [
            ("policy", cell(f"{found.name}@{found.version}")),
            (
                "created",
                time_cell(found.created_at, datetime.now(UTC)) if found.created_at else cell("shipped"),
            ),
            ("by", cell(found.created_by)),
            ("sha256", cell(found.sha256)),
        ]
    )
    if session.output != "csv":
        session.emit("")
        session.emit(yaml_text(found.document))


@group.command()
@click.argument("file", type=click.File("r", encoding="utf-8"))
@output_option
@pass_session
def validate(session: Session, file: Any) -> None:
    """Check FILE (YAML or JSON, - for stdin) against the format, here, asking nobody.

    \b
    Examples:
      attestation policy validate workers.yaml
    """
    from attestation.reference import parse_policy

    document = _read(file)
    try:
        policy = parse_policy(document)
    except PolicyInvalid as e:
        raise PolicyInvalid(f"{clean(file.name)}: {e}") from e
    pcrs = ", ".join(str(rule.index) for rule in policy.rules if rule.ignore is None)
    rows = [
        ("policy", cell(policy.ref)),
        ("valid", cell("yes")),
        ("mode", cell(document.get("mode", "enforce"))),
        ("compares PCR", cell(pcrs or None)),
        ("needs the event log", cell("yes" if policy.event_log_required else "no")),
        ("sha256", cell(policy.sha256)),
    ]
    if session.json:
        session.emit_json({"policy": policy.ref, "valid": True, "sha256": policy.sha256})
        return
    session.emit_fields(rows)


@group.command()
@click.argument("file", type=click.File("r", encoding="utf-8"))
@output_option
@pass_session
def create(session: Session, file: Any) -> None:
    """Store a policy version from FILE (YAML or JSON, - for stdin). It cannot be changed afterwards.

    It applies nowhere until it is activated.

    \b
    Examples:
      attestation policy create workers.yaml
    """
    document = _read(file)
    with session.client() as client:
        created = client.create_policy(document)
    if session.json:
        session.emit_json(created)
        return
    reference = f"{cell(created.name).text}@{created.version}"
    if session.output != "csv":
        session.emit(f"{reference}: stored")
    session.emit_fields([("sha256", cell(created.sha256))], indent="  ")
    session.note(f"It applies nowhere yet: attestation policy test {reference}, then policy activate")


def _where(command: Any) -> Any:
    for option in (
        click.option("--machine", metavar="ID", help="This machine.", shell_complete=complete_machine),
        click.option("--role", type=click.Choice([r.value for r in Role]), help="Machines in this role."),
        click.option("--cluster", metavar="CLUSTER_ID", help="Machines of this cluster."),
        click.option("--fleet", is_flag=True, help="Every machine."),
    ):
        command = option(command)
    return command


def _subject(
    session: Session,
    client: OperatorClient,
    *,
    fleet: bool,
    cluster: str | None,
    role: str | None,
    machine: str | None,
    otherwise: tuple[Scope, str] | None = None,
) -> tuple[Scope, str]:
    chosen: list[tuple[Scope, str]] = []
    if fleet:
        chosen.append(("fleet", "*"))
    if cluster is not None:
        chosen.append(("cluster", cluster))
    if role is not None:
        chosen.append(("role", role))
    if machine is not None:
        chosen.append(("machine", machine))
    if not chosen and otherwise is not None:
        return otherwise
    if len(chosen) != 1:
        raise click.UsageError("give exactly one of --fleet, --cluster, --role, --machine")
    scope, subject = chosen[0]
    return scope, session.find(client, subject).machine_id if scope == "machine" else subject


@group.command()
@click.argument("policy", metavar="NAME@VERSION", shell_complete=complete_policy)
@_where
@output_option
@pass_session
def activate(
    session: Session,
    policy: str,
    cluster: str | None,
    role: str | None,
    machine: str | None,
    *,
    fleet: bool,
) -> None:
    """Let a policy apply there, from the next challenge on, instead of the one before.

    Where dual control asks for several people, this is your vote for exactly this document in this place.

    \b
    Examples:
      attestation policy activate workers@1 --role worker-app
      attestation policy activate strict@2 --machine cp-1
    """
    _activate(session, policy, fleet=fleet, cluster=cluster, role=role, machine=machine)


@group.command()
@click.argument("policy", metavar="NAME@VERSION", shell_complete=complete_policy)
@_where
@output_option
@pass_session
def assign(
    session: Session,
    policy: str,
    cluster: str | None,
    role: str | None,
    machine: str | None,
    *,
    fleet: bool,
) -> None:
    """Do the same as `activate`, under its older name.

    \b
    Examples:
      attestation policy assign workers@1 --role worker-app
    """
    _activate(session, policy, fleet=fleet, cluster=cluster, role=role, machine=machine)


def _activate(session: Session, policy: str, **where: Any) -> None:
    from attestation.api import PolicyAssignment, PolicyAssignmentRequest

    checked(lambda: PolicyAssignmentRequest(policy=policy))
    with session.client() as client:
        scope, subject = _subject(session, client, **where)
        assigned = client.assign_policy(scope, subject, policy)
    if not isinstance(assigned, PolicyAssignment):
        _emit_pending(session, assigned, scope, subject, ["policy", "activate", policy])
        return
    _emit_assigned(session, assigned)


def _emit_assigned(session: Session, assigned: PolicyAssignment) -> None:
    if session.json:
        session.emit_json(assigned)
        return
    rows = [("policy", cell(assigned.policy)), ("applies to", _place(assigned.scope, assigned.subject))]
    session.emit_fields(rows)


@group.command()
@_where
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@pass_session
def unassign(
    session: Session, cluster: str | None, role: str | None, machine: str | None, *, fleet: bool, yes: bool
) -> None:
    """Let only what is assigned more widely apply there.

    \b
    Examples:
      attestation policy unassign --role worker-app
    """
    with session.client() as client:
        scope, subject = _subject(session, client, fleet=fleet, cluster=cluster, role=role, machine=machine)
        place = _place(scope, subject).text
        session.confirm(
            f"Remove the policy assignment of {place}? Its machines may be measured less.", yes=yes
        )
        pending = client.unassign_policy(scope, subject)
    if pending is not None:
        _emit_pending(session, pending, scope, subject, ["policy", "unassign"])
        return
    _emit_unassigned(session, scope, subject)


def _emit_unassigned(session: Session, scope: Scope, subject: str) -> None:
    session.emit_done(
        f"{_place(scope, subject).text}: no policy of its own any more",
        {"scope": scope, "subject": subject, "unassigned": True},
    )


@group.command()
@_where
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@pass_session
def rollback(
    session: Session, cluster: str | None, role: str | None, machine: str | None, *, fleet: bool, yes: bool
) -> None:
    """Let what applied there before apply again.

    It is an activation like any other: under dual control your vote counts together with that of whoever activates
    the same version by name.

    \b
    Examples:
      attestation policy rollback --role worker-app
    """
    from attestation.api import PendingApproval, PolicyAssignment

    with session.client() as client:
        scope, subject = _subject(session, client, fleet=fleet, cluster=cluster, role=role, machine=machine)
        place = _place(scope, subject).text
        changes = client.policy_history(scope, subject, page_size=2)
        now = next(changes, None)
        if now is None:
            raise PolicyUnknown(f"nothing was ever assigned to {place}")
        earlier = next(changes, None)
        before = None if earlier is None else earlier.policy
        told = f"{clean(before)} again" if before is not None else "no policy of its own"
        instead = "" if now.policy is None else f", instead of {clean(now.policy)}"
        session.confirm(f"{place}: {told}{instead}?", yes=yes)
        answer = client.roll_back_policy(scope, subject)
    if isinstance(answer, PendingApproval):
        words = ["policy", "unassign"] if before is None else ["policy", "activate", clean(before)]
        _emit_pending(session, answer, scope, subject, words)
    elif isinstance(answer, PolicyAssignment):
        _emit_assigned(session, answer)
    else:
        _emit_unassigned(session, scope, subject)


@group.command()
@_where
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many."
)
@output_option
@pass_session
def history(
    session: Session, cluster: str | None, role: str | None, machine: str | None, *, fleet: bool, limit: int
) -> None:
    """List what applied where and since when, newest first: everywhere, or in one place.

    \b
    Examples:
      attestation policy history
      attestation policy history --role worker-app
    """
    from itertools import islice

    with session.client() as client:
        chosen: tuple[Scope | None, str | None] = (None, None)
        if fleet or cluster is not None or role is not None or machine is not None:
            chosen = _subject(session, client, fleet=fleet, cluster=cluster, role=role, machine=machine)
        changes = list(islice(client.policy_history(*chosen, page_size=min(limit, 200)), limit))
    if session.json:
        session.emit_json(iter(changes))
        return
    now = datetime.now(UTC)
    session.emit_table(
        [Column("WHEN"), Column("WHERE", shrink_to=16), Column("POLICY"), Column("BY", shrink_to=8, drop=1)],
        [
            [
                time_cell(c.at, now),
                _place(c.scope, c.subject),
                cell(c.policy or "none of its own"),
                cell(c.by),
            ]
            for c in changes
        ],
        "Nothing was ever assigned there.",
    )


@group.command()
@click.argument("machine", metavar="MACHINE", shell_complete=complete_machine)
@output_option
@pass_session
def effective(session: Session, machine: str) -> None:
    """Show what a machine is measured against, rule by rule, and which policy says so.

    \b
    Examples:
      attestation policy effective cp-1
    """
    with session.client() as client:
        found = client.effective_policy(session.find_id(client, machine))
    if session.json:
        session.emit_json(found)
        return
    if session.output in ("table", "wide"):
        session.emit_fields(
            [
                ("policy", cell(found.policy)),
                (
                    "assigned",
                    cell(
                        ", ".join(f"{a.policy} ({place_words(a.scope, a.subject)})" for a in found.assigned)
                        or "nothing: the shipped policy applies"
                    ),
                ),
            ]
        )
        session.emit("")
    sources = found.document.get("sources")
    session.emit_table(
        [
            Column("RULE"),
            Column("EXPECTED", shrink_to=24),
            Column("FROM", shrink_to=12),
            Column("MODE", drop=1),
        ],
        [
            [
                cell(path),
                cell(
                    rule_words(member(found.document, path)), rule_words(member(found.document, path), None)
                ),
                cell(source.get("policy")),
                cell(source.get("mode")),
            ]
            for path, source in sorted(
                (sources if isinstance(sources, Mapping) else {}).items(), key=_natural
            )
        ],
        "It demands nothing beyond identity, a fresh quote and plausible counters: boot state not appraised.",
    )


@group.command()
@click.argument("one", metavar="NAME@VERSION|FILE", shell_complete=complete_policy)
@click.argument("other", metavar="NAME@VERSION|FILE", shell_complete=complete_policy)
@output_option
@pass_session
def diff(session: Session, one: str, other: str) -> None:
    """Show what differs between two policies, stored or in files: `-` only in the first, `+` only in the second.

    \b
    Examples:
      attestation policy diff workers@1 workers@2
      attestation policy diff workers@2 workers.yaml
    """
    from attestation.reference.diff import diff as compare

    before, after = _policies(session, one, other)
    found = compare(before, after)
    if session.json:
        session.emit_json(
            {
                "before": found.before,
                "after": found.after,
                "changes": [
                    {
                        "member": c.member,
                        "text": c.text,
                        "before": c.before,
                        "after": c.after,
                        "removed": list(c.removed),
                        "added": list(c.added),
                    }
                    for c in found.changes
                ],
            }
        )
        return
    signed = [(c, signed_values(c)) for c in found.changes]
    if session.output == "csv":
        session.emit_table(
            [Column("MEMBER"), Column("ONLY IN"), Column("VALUE")],
            [
                [cell(c.member), cell(one if sign == "-" else other), cell(value)]
                for c, values in signed
                for sign, value in values
            ],
            "",
        )
        return
    if not found.changes:
        session.emit(clean(found.words[0]))
    for change, values in signed:
        session.emit(clean(change.text))
        # One value on either side stands in the sentence already.
        for sign, value in values if len(values) > 2 or len(values[0][1]) > SHORT else ():
            session.emit(click.style(f"  {sign} {clean(value)}", fg="red" if sign == "-" else "green"))


def _policies(session: Session, *named: str) -> list[Policy]:
    """Return policies of refs and files; the service is asked only where one is stored there."""
    from attestation.reference import IDENTITY_ONLY, parse_policy

    def read(document: dict[str, Any], name: str) -> Policy:
        if document.get("name") == IDENTITY_ONLY.name:
            return IDENTITY_ONLY
        try:
            return parse_policy(document)
        except PolicyInvalid as e:
            raise PolicyInvalid(f"{clean(name)}: {e}") from e

    if not any(map(_is_ref, named)):
        return [read(_read_path(each), each) for each in named]
    with session.client() as client:
        return [
            read(_find(client, each).document if _is_ref(each) else _read_path(each), each) for each in named
        ]


def _natural(item: tuple[str, Any]) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in item[0].split(".")]


@group.command()
@click.argument("policy", metavar="NAME@VERSION|FILE", shell_complete=complete_policy)
@_where
@output_option
@pass_session
def test(
    session: Session, policy: str, cluster: str | None, role: str | None, machine: str | None, *, fleet: bool
) -> None:
    """Judge what the fleet proved last as if a policy applied there; nothing is changed.

    Without a place: --fleet. What is assigned elsewhere applies as it does now. Exit code 1 if a machine would newly
    fail.

    \b
    Examples:
      attestation policy test workers.yaml --role worker-app
      attestation policy test workers@2
    """
    from attestation.api import PolicyTestRequest

    document = None if _is_ref(policy) else _read_path(policy)
    with session.client() as client:
        scope, subject = _subject(
            session,
            client,
            fleet=fleet,
            cluster=cluster,
            role=role,
            machine=machine,
            otherwise=("fleet", "*"),
        )
        request = checked(
            lambda: PolicyTestRequest(
                policy=None if document is not None else policy,
                document=document,
                scope=scope,
                subject=subject,
            )
        )
        trial = Trial(place_words(scope, subject))
        bar: Progress | None = None
        try:
            for page in client.try_policy(request):
                if bar is None:
                    bar = Progress("testing", total=page.machines, unit="machines", silent=session.json)
                    bar.__enter__()
                trial.add(page)
                bar.advance(page.judged)
        finally:
            if bar is not None:
                bar.__exit__(None, None, None)
    trial.emit(session)
    if trial.newly:
        raise click.exceptions.Exit(1)


@group.command()
@click.option(
    "--machine",
    "machines",
    metavar="ID",
    multiple=True,
    help="From this machine, whatever was thought of it; may be repeated.",
    shell_complete=complete_machine,
)
@click.option("--role", type=click.Choice([r.value for r in Role]), help="From machines in this role.")
@click.option("--cluster", metavar="CLUSTER_ID", help="From machines of this cluster.")
@click.option("--fleet", is_flag=True, help="From every machine.")
@click.option("--include-failed", is_flag=True, help="Also from what machines proved that fail now.")
@click.option(
    "--accept-unmeasured",
    is_flag=True,
    help="List values that hold no measurement, too. Any machine that measures nothing has them; audited.",
)
@click.option("--name", default="learned", show_default=True, help="Name of the proposal.")
@click.option(
    "--version",
    "number",
    type=click.IntRange(1, 999_999_999),
    default=1,
    show_default=True,
    help="Its version.",
)
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the proposal there, as YAML.",
)
@output_option
@pass_session
def learn(
    session: Session,
    machines: tuple[str, ...],
    role: str | None,
    cluster: str | None,
    name: str,
    number: int,
    path: Path | None,
    *,
    fleet: bool,
    include_failed: bool,
    accept_unmeasured: bool,
) -> None:
    """Propose a policy from what machines proved last. Nothing is stored: read it, test it, create it.

    Shows which machines have the same of what, and which differ from most. Whatever runs on these machines now is
    what the proposal allows: learn from machines that you trust.

    \b
    Examples:
      attestation policy learn --role worker-app --name workers -f workers.yaml
      attestation policy learn --machine w-1 --machine w-2
    """
    from attestation.api import PolicyLearnRequest

    with session.client() as client:
        ids = [session.find(client, each).machine_id for each in machines]
        request = checked(
            lambda: PolicyLearnRequest(
                machines=ids,
                role=None if role is None else Role(role),
                cluster_id=cluster,
                fleet=fleet,
                name=name,
                version=number,
                include_failed=include_failed,
                accept_unmeasured=accept_unmeasured,
            )
        )
        if accept_unmeasured:
            session.note(
                "warning: values that hold no measurement are taken for reference values; whatever measures nothing "
                "will keep this policy"
            )
        learned = client.learn_policy(request)
    text = commented(learned)
    if path is not None:
        path.write_text(text, encoding="utf-8")
    if session.json:
        session.emit_json(learned)
        return
    _emit_learned(session, learned)
    if path is None:
        if session.output != "csv":
            session.emit("")
            session.emit(text.rstrip("\n"))
        return
    session.note(f"{clean(str(path))}: written; next: attestation policy test {clean(str(path))}")


def _emit_learned(session: Session, learned: LearnedPolicy) -> None:
    session.emit_table(
        [Column("OF"), Column("VALUE", shrink_to=20), Column("MACHINES", shrink_to=12)],
        [
            [
                cell(each.subject),
                cell(each.value),
                cell(f"{len(each.machines)}: {', '.join(each.machines)}"),
            ]
            for each in learned.groups
        ],
        "They have nothing in common.",
    )
    if session.output == "csv":
        return
    if learned.outliers:
        session.emit("")
        session.emit_table(
            [Column("OUTLIER", shrink_to=12), Column("WHY", shrink_to=20)],
            [[cell(each.machine), cell(each.reason)] for each in learned.outliers],
            "",
        )
    width = session.width or 100
    for note in learned.notes:
        session.note(wrap(clean(note), width, first="note: ", rest="      "))


def _find(client: OperatorClient, policy: str) -> PolicyDetail:
    """Return the policy that *policy* names: a version, or the newest of a name."""
    if _is_ref(policy):
        name, _, version = policy.partition("@")
        return client.policy(name, int(version))
    if not NAME.match(policy):
        raise RequestInvalid(f"{clean(policy)[:80]!r} is not NAME or NAME@VERSION")
    versions = [found for found in client.policies().policies if found.name == policy]
    if not versions:
        raise PolicyUnknown(f"no policy is called {policy}")
    return max(versions, key=lambda found: found.version)


def _is_ref(text: str) -> bool:
    """True where *text* names a stored version; a file of the same name is called `./NAME@VERSION`."""
    return REF.match(text) is not None


def _read(file: Any) -> dict[str, Any]:
    try:
        text = file.read(MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise RequestInvalid(f"{file.name}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}") from e
    return read_policy(text, clean(file.name))


def _read_path(path: str) -> dict[str, Any]:
    try:
        with click.open_file(path, encoding="utf-8") as file:
            return _read(file)
    except OSError as e:
        raise RequestInvalid(f"{clean(path)}: {e.strerror}; a stored policy is named NAME@VERSION") from e


def _emit_pending(
    session: Session, pending: PendingApproval, scope: Scope, subject: str, words: list[str]
) -> None:
    where = ["--fleet"] if scope == "fleet" else [f"--{scope}", clean(subject)]
    session.emit_pending(pending, _place(scope, subject).text, [*words, *where])


def _places(policy: PolicyDetail, assignments: list[PolicyAssignment]) -> str | None:
    reference = f"{policy.name}@{policy.version}"
    places = [_place(a.scope, a.subject).text for a in assignments if a.policy == reference]
    if not places and policy.created_at is None:
        return "wherever no other does"
    return ", ".join(places) or None


def _place(scope: str, subject: str) -> Cell:
    return cell(place_words(scope, subject))
