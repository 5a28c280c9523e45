"""What the shell completes by asking the service: names of machines, versions of policies.

Somebody has pressed a key and waits: the answer comes within a second or not at all, and nothing that goes wrong is
shown, because a line is being typed there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from attestation_cli.session import Session

HARMLESS = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}\Z")
HARMLESS_REF = re.compile(r"[a-z0-9][a-z0-9-]{0,62}@[1-9][0-9]{0,8}\Z")
HARMLESS_WORD = re.compile(r"[A-Za-z0-9_=~!-]{1,64}\Z")
HARMLESS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
WORD = re.compile(r"[A-Za-z0-9_!-]*\Z")
"""What is being typed of a word, at the end of a query."""
SECONDS = 1.0
MOST = 50


def complete_machine(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 -- click's signature
    """Return machines whose hostname or id begins with *incomplete*."""
    from click.shell_completion import CompletionItem

    def ask(session: Session, found: list[CompletionItem]) -> None:
        with session.client() as client:
            for machine in client.machine_records(q=incomplete or None, page_size=MOST):
                name, machine_id = machine.optional_text("hostname"), machine.text("machine_id")
                told = clean(f"{machine.text('status')}, {machine.text('trust')}")
                # Nothing that a shell could take for its own syntax, whoever answers there.
                if name and name.startswith(incomplete) and HARMLESS.match(name):
                    found.append(CompletionItem(name, help=told))
                elif machine_id.startswith(incomplete) and HARMLESS.match(machine_id):
                    found.append(CompletionItem(machine_id, help=told))
                if len(found) >= MOST:
                    return

    return _within_a_second(ctx, ask)


def _within_a_second(
    ctx: click.Context, ask: Callable[[Session, list[CompletionItem]], None]
) -> list[CompletionItem]:
    """Return what *ask* has found after a second at the latest."""
    found: list[CompletionItem] = []

    def run() -> None:
        try:
            session = _session(ctx.find_root())
            if not _asks(session):
                ask(session, found)
        except BaseException:  # noqa: BLE001 -- whatever it is, it may not disturb a line being typed
            return

    # A thread, because names and connections have time-outs of their own, longer than a finger waits.
    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return list(found)


def _asks(session: Session) -> bool:
    """True where connecting would ask for the passphrase of a key, in the middle of the line being typed."""
    if session.client_certificate is None:
        return False
    certificate, key = session.client_certificate
    return b"ENCRYPTED" in (key or certificate).read_bytes()


def _session(root: click.Context) -> Session:
    """Return the session that the options typed so far describe; completion does not run the root command."""
    from attestation_cli.session import Session

    session = root.find_object(Session) or Session()
    session.quiet = True
    session.take_options(root.params)
    return session


def complete_query(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 -- click's signature
    """Return *incomplete* with each word that fits at its end: a table, a column, an operator, a function."""
    from click.shell_completion import CompletionItem

    quote = incomplete[:1] if incomplete[:1] in ("'", '"') else ""
    typed = incomplete.removeprefix(quote)

    def ask(session: Session, found: list[CompletionItem]) -> None:
        with session.client() as client:
            fits = client.validate_query(typed, offset=len(typed)).completions
        begun = WORD.search(typed)
        assert begun is not None
        for each in fits[:MOST]:
            # Nothing that a shell could take for its own syntax, whoever answers there.
            if HARMLESS_WORD.match(each.text) and each.text.casefold().startswith(begun[0].casefold()):
                value = f"{quote}{typed[: begun.start()]}{each.text}"
                found.append(CompletionItem(value, help=clean(each.detail)))

    return _within_a_second(ctx, ask)


def complete_saved_query(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return saved queries whose name begins with *incomplete*; to delete, only those of the caller."""
    from click.shell_completion import CompletionItem

    def ask(session: Session, found: list[CompletionItem]) -> None:
        with session.client() as client:
            listed = client.saved_queries().queries
        for each in listed:
            fits = each.name.startswith(incomplete) and HARMLESS_NAME.match(each.name)
            if fits and (each.mine or param.name != "delete") and len(found) < MOST:
                told = each.description or ("yours" if each.mine else f"of {each.owner}")
                found.append(CompletionItem(each.name, help=clean(told)))

    return _within_a_second(ctx, ask)


def complete_policy(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 -- click's signature
    """Return policy versions, newest first, whose `name@version` begins with *incomplete*."""
    from click.shell_completion import CompletionItem

    def ask(session: Session, found: list[CompletionItem]) -> None:
        with session.client() as client:
            listed = client.policies()
        places: dict[str, list[str]] = {}
        for assignment in listed.assignments:
            place = "fleet" if assignment.scope == "fleet" else f"{assignment.scope} {assignment.subject}"
            places.setdefault(assignment.policy, []).append(place)
        for policy in sorted(listed.policies, key=lambda p: (p.name, -p.version)):
            reference = f"{policy.name}@{policy.version}"
            if reference.startswith(incomplete) and HARMLESS_REF.match(reference) and len(found) < MOST:
                told = ", ".join(places.get(reference, ())) or "applies nowhere"
                found.append(CompletionItem(reference, help=clean(told)))

    return _within_a_second(ctx, ask)
