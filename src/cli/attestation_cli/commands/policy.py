"""`attestation policy …`: what machines are measured against."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from attestation.client.policy_words import signed_values
from attestation.client.text import clean
from attestation.client.yaml_text import yaml_text
from attestation.errors import MalformedEvidence, PolicyInvalid, PolicyUnknown, RequestInvalid
from attestation_cli.commands.policy_assignment import activate, assign, history, rollback, unassign
from attestation_cli.commands.policy_fleet import effective, learn, test
from attestation_cli.complete import complete_policy
from attestation_cli.options import listing, printing
from attestation_cli.policy_file import is_ref, read_open, read_path
from attestation_cli.policy_place import place_cell
from attestation_cli.render import Column, cell, time_cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import PolicyAssignment, PolicyDetail
    from attestation.client import OperatorClient
    from attestation.reference import Policy

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
@listing
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
    session.emit_rows(
        listed.policies,
        {
            Column("POLICY"): lambda p: f"{p.name}@{p.version}",
            Column("CREATED", drop=1): lambda p: (
                time_cell(p.created_at, now) if p.created_at else cell("shipped")
            ),
            Column("BY", shrink_to=8, drop=2): lambda p: p.created_by,
            Column("APPLIES TO", shrink_to=12): lambda p: _places(p, listed.assignments),
            Column("SHA-256", shrink_to=13, drop=3): lambda p: p.sha256,
        },
        "No policies.",
    )


@group.command()
@click.argument("policy", metavar="NAME[@VERSION]", shell_complete=complete_policy)
@printing
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
@printing
def validate(session: Session, file: Any) -> None:
    """Check FILE (YAML or JSON, - for stdin) against the format, here, asking nobody.

    \b
    Examples:
      attestation policy validate workers.yaml
    """
    from attestation.reference import parse_policy

    document = read_open(file)
    try:
        policy = parse_policy(document)
    except PolicyInvalid as e:
        raise PolicyInvalid(f"{clean(file.name)}: {e}") from e
    pcrs = ", ".join(str(rule.index) for rule in policy.tpm.rules if rule.ignore is None)
    rows = [
        ("policy", cell(policy.ref)),
        ("valid", cell("yes")),
        ("mode", cell(document.get("mode", "enforce"))),
        ("compares PCR", cell(pcrs or None)),
        ("needs the event log", cell("yes" if policy.tpm.event_log_required else "no")),
        ("sha256", cell(policy.sha256)),
    ]
    if session.json:
        session.emit_json({"policy": policy.ref, "valid": True, "sha256": policy.sha256})
        return
    session.emit_fields(rows)


@group.command("import-corim")
@click.argument("file", type=click.File("rb"))
@click.option("--name", required=True, help="Name of the policy.")
@click.option("--version", type=click.IntRange(min=1), default=1, show_default=True, help="Its version.")
@printing
def import_corim(session: Session, file: Any, name: str, version: int) -> None:
    """Make a policy of the reference values in a CoRIM for SEV-SNP, here, asking nobody.

    FILE is CBOR: an unsigned CoRIM of AMD's profile. Nothing is stored: look at the document, then create it.
    Whoever gave you the file decides what may run: make sure that it is theirs.

    \b
    Examples:
      attestation policy import-corim guest.corim.cbor --name guests > guests.yaml
    """
    from attestation.reference import FORMAT_2, parse_policy
    from attestation.reference.corim import MAX_CORIM_BYTES, parse_corim

    try:
        found = parse_corim(file.read(MAX_CORIM_BYTES + 1))
    except MalformedEvidence as e:
        raise RequestInvalid(f"{clean(file.name)}: {e}") from e
    document = {
        "format": FORMAT_2,
        "name": name,
        "version": version,
        "description": f"from CoRIM {found.corim_id}",
        "sev_snp": found.block,
    }
    parse_policy(document)
    if session.json:
        session.emit_json(document)
    elif session.output != "csv":
        session.emit(yaml_text(document))
    else:
        session.emit_fields([("policy", cell(f"{name}@{version}"))])
    if found.left_out:
        session.note(
            f"Left out, a policy demands none of it: {', '.join(clean(each) for each in found.left_out)}"
        )


@group.command()
@click.argument("file", type=click.File("r", encoding="utf-8"))
@printing
def create(session: Session, file: Any) -> None:
    """Store a policy version from FILE (YAML or JSON, - for stdin). It cannot be changed afterwards.

    It applies nowhere until it is activated.

    \b
    Examples:
      attestation policy create workers.yaml
    """
    document = read_open(file)
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


@group.command()
@click.argument("one", metavar="NAME@VERSION|FILE", shell_complete=complete_policy)
@click.argument("other", metavar="NAME@VERSION|FILE", shell_complete=complete_policy)
@printing
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

    if not any(map(is_ref, named)):
        return [read(read_path(each), each) for each in named]
    with session.client() as client:
        return [
            read(_find(client, each).document if is_ref(each) else read_path(each), each) for each in named
        ]


def _find(client: OperatorClient, policy: str) -> PolicyDetail:
    """Return the policy that *policy* names: a version, or the newest of a name."""
    if is_ref(policy):
        name, _, version = policy.partition("@")
        return client.policy(name, int(version))
    if not NAME.match(policy):
        raise RequestInvalid(f"{clean(policy)[:80]!r} is not NAME or NAME@VERSION")
    versions = [found for found in client.policies().policies if found.name == policy]
    if not versions:
        raise PolicyUnknown(f"no policy is called {policy}")
    return max(versions, key=lambda found: found.version)


def _places(policy: PolicyDetail, assignments: list[PolicyAssignment]) -> str | None:
    reference = f"{policy.name}@{policy.version}"
    places = [place_cell(a.scope, a.subject).text for a in assignments if a.policy == reference]
    if not places and policy.created_at is None:
        return "wherever no other does"
    return ", ".join(places) or None


for command in (activate, assign, unassign, rollback, history, effective, test, learn):
    group.add_command(command)
