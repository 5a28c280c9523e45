"""`attestation policy effective`, `test` and `learn`: a policy and the machines that there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attestation.client.policy_text import commented
from attestation.client.policy_words import member, place_words, rule_words
from attestation.client.text import clean
from attestation.machines import Role
from attestation_cli.complete import complete_machine, complete_policy
from attestation_cli.options import FILE_PATH, printing
from attestation_cli.policy_file import is_ref, read_path
from attestation_cli.policy_place import place_of, place_options
from attestation_cli.policy_trial import Trial
from attestation_cli.progress import Progress
from attestation_cli.render import Cell, Column, cell, wrap
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import LearnedPolicy


@click.command()
@click.argument("machine", metavar="MACHINE", shell_complete=complete_machine)
@printing
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

    def expected(path: str) -> Cell:
        rule = member(found.document, path)
        return cell(rule_words(rule), rule_words(rule, None))

    session.emit_rows(
        sorted((sources if isinstance(sources, Mapping) else {}).items(), key=_natural),
        {
            Column("RULE"): lambda rule: rule[0],
            Column("EXPECTED", shrink_to=24): lambda rule: expected(rule[0]),
            Column("FROM", shrink_to=12): lambda rule: rule[1].get("policy"),
            Column("MODE", drop=1): lambda rule: rule[1].get("mode"),
        },
        "It demands nothing beyond identity, a fresh quote and plausible counters: boot state not appraised.",
    )


def _natural(item: tuple[str, Any]) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in item[0].split(".")]


@click.command()
@click.argument("policy", metavar="NAME@VERSION|FILE", shell_complete=complete_policy)
@place_options
@printing
def test(session: Session, policy: str, **where: Any) -> None:
    """Judge what the fleet proved last as if a policy applied there; nothing is changed.

    Without a place: --fleet. What is assigned elsewhere applies as it does now. Exit code 1 if a machine would newly
    fail.

    \b
    Examples:
      attestation policy test workers.yaml --role worker-app
      attestation policy test workers@2
    """
    from attestation.api import PolicyTestRequest

    document = None if is_ref(policy) else read_path(policy)
    with session.client() as client:
        scope, subject = place_of(session, client, where, otherwise=("fleet", "*"))
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


@click.command()
@click.option(
    "--machine",
    "machines",
    metavar="ID",
    multiple=True,
    help="From this machine, trusted or not; may be repeated.",
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
@click.option("-f", "--file", "path", type=FILE_PATH, help="Write the proposal there, as YAML.")
@printing
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
                "warning: values that hold no measurement are taken for reference values; a machine that measures "
                "nothing will keep this policy"
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
    session.emit_rows(
        learned.groups,
        {
            Column("OF"): lambda each: each.subject,
            Column("VALUE", shrink_to=20): lambda each: each.value,
            Column("MACHINES", shrink_to=12): lambda each: (
                f"{len(each.machines)}: {', '.join(each.machines)}"
            ),
        },
        "They have nothing in common.",
    )
    if session.output == "csv":
        return
    if learned.outliers:
        session.emit("")
        session.emit_rows(
            learned.outliers,
            {
                Column("OUTLIER", shrink_to=12): lambda each: each.machine,
                Column("WHY", shrink_to=20): lambda each: each.reason,
            },
            "",
        )
    width = session.width or 100
    for note in learned.notes:
        session.note(wrap(clean(note), width, first="note: ", rest="      "))
