"""`attestation secret …`, `attestation shared-secret …`: values go in by file or standard input, and never come out."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attestation.errors import RequestInvalid
from attestation_cli.plugin import (
    FILE_PATH,
    Column,
    Session,
    cell,
    checked,
    clean,
    listing,
    moment_cell,
    printing,
    time_cell,
)

if TYPE_CHECKING:
    from attestation_cli.plugin import OperatorClient
    from attestation_extensions.secret_vault import wire

    Shown = wire.SecretResponse | wire.SharedSecretResponse

Command = TypeVar("Command", bound=Callable[..., Any])

# Values


def _read(file: Path | None) -> dict[str, str]:
    """Return the members of a value: of *file* as it is, of standard input without the end of its last line."""
    from attestation_extensions.secret_vault.sealing import MAX_VALUE_BYTES

    if file is not None and str(file) != "-":
        try:
            value = file.read_bytes()
        except OSError as e:
            raise RequestInvalid(f"{file}: {e.strerror}") from e
    elif sys.stdin.isatty():
        value = click.prompt("Value", hide_input=True, confirmation_prompt=True, err=True).encode()
    else:
        # One more than a value with the end of a line: what goes on after it is seen, and refused.
        value = sys.stdin.buffer.read(MAX_VALUE_BYTES + len(b"\r\n") + 1)
        value = value.removesuffix(b"\n").removesuffix(b"\r")
    if not 0 < len(value) <= MAX_VALUE_BYTES:
        raise RequestInvalid(
            f"a value of 1 to {MAX_VALUE_BYTES} bytes is expected, not {'more' if value else 'none'}"
        )
    try:
        return {"value": value.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}


_value = click.option(
    "--value-file",
    type=FILE_PATH,
    help="File with the value, as it is; - or nothing reads standard input.",
)


def _terms(command: Command) -> Command:
    """Add what is said of a secret beside its value."""
    for name, text in (
        ("--expires-at", "When it is released no more: 2027-01-31T00:00:00Z."),
        ("--rule", "When it is released: CEL over machine, vector and quote."),
        ("--description", "For people."),
    ):
        command = click.option(name, help=text)(command)
    return command


def _given(**members: str | None) -> dict[str, str]:
    return {name: value for name, value in members.items() if value is not None}


# Secrets by name


def _pages(page: Callable[[str], Any]) -> Iterator[Any]:
    after = ""
    while found := page(after).secrets:
        yield from found
        after = found[-1].name


def _own(session: Session, client: OperatorClient, secret: str) -> wire.SecretResponse:
    """Return the secret `MACHINE/NAME`, or of this id."""
    from attestation_extensions.commands.secrets_api import Vault
    from attestation_extensions.secret_vault.desk import SecretUnknown

    machine, between, name = secret.partition("/")
    if not between:
        return client.ask(Vault.show, secret)
    machine_id = session.find_id(client, machine)
    for each in _pages(lambda after: client.ask(Vault.of_machine, machine_id, after)):
        if each.name == name:
            found: wire.SecretResponse = each
            return found
    raise SecretUnknown(f"{machine} has no secret {name}")


def _shared(client: OperatorClient, name: str) -> wire.SharedSecretResponse:
    """Return the shared secret of this name."""
    from attestation_extensions.commands.secrets_api import Vault
    from attestation_extensions.secret_vault.desk import SecretUnknown

    for each in _pages(lambda after: client.ask(Vault.all_shared, after)):
        if name in (each.name, each.shared_secret_id):
            found: wire.SharedSecretResponse = each
            return found
    raise SecretUnknown(f"there is no shared secret {name}")


def _id(shown: Shown) -> str:
    return str(getattr(shown, "secret_id", None) or getattr(shown, "shared_secret_id", None))


def _show(session: Session, shown: Shown) -> None:
    if session.json:
        session.emit_json(shown)
        return
    now = datetime.now(UTC)
    rows = [("secret id", cell(_id(shown))), ("name", cell(shown.name)), ("version", cell(shown.version))]
    if machine := getattr(shown, "machine_id", None):
        rows.insert(1, ("machine", cell(machine)))
    else:
        rows.append(("machines", cell(getattr(shown, "authorized_machine_count", 0))))
    rows += [
        ("rule", cell(shown.rule or "none: who may have it gets it whenever it is verified")),
        ("description", cell(shown.description or "-")),
        ("expires", moment_cell(shown.expires_at, now) if shown.expires_at else cell("never")),
        ("released", cell(f"{shown.access_count} times")),
        ("last", moment_cell(shown.last_accessed_at, now) if shown.last_accessed_at else cell("never")),
        ("created", moment_cell(shown.created_at, now)),
        ("by", cell(shown.created_by)),
        ("key", cell(shown.encryption_key_id or "-")),
    ]
    session.emit_fields(rows)


def _list(session: Session, found: Iterator[Any], *, shared: bool) -> None:
    now = datetime.now(UTC)
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("NAME"): lambda s: s.name,
        Column("VERSION"): lambda s: s.version,
    }
    if shared:
        columns[Column("MACHINES")] = lambda s: s.authorized_machine_count
    columns |= {
        Column("RELEASED"): lambda s: s.access_count,
        Column("LAST", drop=2): lambda s: (
            time_cell(s.last_accessed_at, now) if s.last_accessed_at else "never"
        ),
        Column("RULE", shrink_to=12, drop=1): lambda s: s.rule,
        Column("EXPIRES", drop=3): lambda s: moment_cell(s.expires_at, now) if s.expires_at else "never",
        Column("SECRET ID", wide=True): _id,
        Column("CREATED", wide=True): lambda s: moment_cell(s.created_at, now),
        Column("BY", wide=True): lambda s: s.created_by,
    }
    session.emit_list(found, columns, "No secrets.")


# attestation secret


@click.group("secret")
def secret() -> None:
    """Secrets of one machine each. No command shows a value: the machine gets it, when it proves itself.

    A SECRET is named by MACHINE/NAME or by its id.

    \b
    Examples:
      pwgen -s 40 1 | attestation secret create w-1 -n database
      attestation secret list w-1
    """


@secret.command("create")
@click.argument("machine")
@click.option("-n", "--name", required=True, help="Letters, digits, '.', '_' and '-'.")
@_value
@_terms
@printing
def create(session: Session, machine: str, name: str, value_file: Path | None, **terms: str | None) -> None:
    """Keep a secret of MACHINE; the value comes from standard input or a file.

    \b
    Examples:
      attestation secret create w-1 -n database --value-file db.password
    """
    from attestation_extensions.commands.secrets_api import Vault
    from attestation_extensions.secret_vault import wire

    body = {"name": name, **_read(value_file), **_given(**terms)}
    request = checked(lambda: wire.CreateSecret.model_validate(body))
    with session.client() as client:
        _show(session, client.ask(Vault.create, session.find_id(client, machine), request))


@secret.command("list")
@click.argument("machine")
@listing
def list_(session: Session, machine: str) -> None:
    """List the secrets of MACHINE, without their values."""
    from attestation_extensions.commands.secrets_api import Vault

    with session.client() as client:
        machine_id = session.find_id(client, machine)
        _list(session, _pages(lambda after: client.ask(Vault.of_machine, machine_id, after)), shared=False)


@secret.command("get")
@click.argument("secret_", metavar="SECRET")
@click.argument("name", required=False)
@printing
def get(session: Session, secret_: str, name: str | None) -> None:
    """Show a secret, without its value: MACHINE NAME says the same as MACHINE/NAME."""
    with session.client() as client:
        _show(session, _own(session, client, secret_ if name is None else f"{secret_}/{name}"))


@secret.command("rewrap")
@printing
def rewrap(session: Session) -> None:
    """Bring the data keys of all values under the newest key-encryption key; no value is opened for it."""
    from attestation_extensions.commands.secrets_api import Vault

    with session.client() as client:
        done = client.ask(Vault.rewrap)
    session.emit_done(
        f"{done.rewrapped} data keys wrapped anew, {done.unreachable} under a key that is not set",
        done.model_dump(),
    )


# attestation shared-secret


@click.group("shared-secret")
def shared_secret() -> None:
    """Secrets that several machines may have. No command shows a value: a machine gets it, when it proves itself.

    \b
    Examples:
      attestation shared-secret create registry --value-file token
      attestation shared-secret grant registry --machines w-1,w-2
    """


@shared_secret.command("create")
@click.argument("name")
@_value
@_terms
@printing
def create_shared(session: Session, name: str, value_file: Path | None, **terms: str | None) -> None:
    """Keep a shared secret; the value comes from standard input or a file. No machine has it until it is granted."""
    from attestation_extensions.commands.secrets_api import Vault
    from attestation_extensions.secret_vault import wire

    body = {"name": name, **_read(value_file), **_given(**terms)}
    request = checked(lambda: wire.CreateSharedSecret.model_validate(body))
    with session.client() as client:
        _show(session, client.ask(Vault.create_shared, request))


@shared_secret.command("list")
@listing
def list_shared(session: Session) -> None:
    """List the shared secrets, without their values."""
    from attestation_extensions.commands.secrets_api import Vault

    with session.client() as client:
        _list(session, _pages(lambda after: client.ask(Vault.all_shared, after)), shared=True)


@shared_secret.command("get")
@click.argument("name")
@printing
def get_shared(session: Session, name: str) -> None:
    """Show a shared secret, without its value."""
    with session.client() as client:
        _show(session, _shared(client, name))


_machines = click.option(
    "--machines", required=True, metavar="A,B,…", help="Ids, hostnames, or beginnings of ids."
)


def _machine_ids(session: Session, client: OperatorClient, machines: str) -> wire.Machines:
    from attestation_extensions.secret_vault import wire

    found = [session.find_id(client, each.strip()) for each in machines.split(",") if each.strip()]
    return checked(lambda: wire.Machines(machine_ids=found))


@shared_secret.command("grant")
@click.argument("name")
@_machines
@printing
def grant(session: Session, name: str, machines: str) -> None:
    """Let machines have a shared secret."""
    from attestation_extensions.commands.secrets_api import Vault

    with session.client() as client:
        found = _shared(client, name)
        done = client.ask(Vault.grant, _id(found), _machine_ids(session, client, machines))
    session.emit_done(f"{clean(name)}: granted to {done.granted} more", {"granted": done.granted})


@shared_secret.command("revoke")
@click.argument("name")
@_machines
@printing
def revoke(session: Session, name: str, machines: str) -> None:
    """Let machines have a shared secret no more. What they read they have: rotate it."""
    from attestation_extensions.commands.secrets_api import Vault

    with session.client() as client:
        found = _shared(client, name)
        done = client.ask(Vault.revoke, _id(found), _machine_ids(session, client, machines))
    session.emit_done(f"{clean(name)}: taken back from {done.revoked}", {"revoked": done.revoked})


@shared_secret.command("access")
@click.argument("name")
@listing
def access(session: Session, name: str) -> None:
    """List which machines may have a shared secret, and how often each got it."""
    from attestation_extensions.commands.secrets_api import Vault

    now = datetime.now(UTC)
    with session.client() as client:
        secret_id = _id(_shared(client, name))

        def grants() -> Iterator[wire.AccessGrant]:
            after = ""
            while found := client.ask(Vault.grants, secret_id, after).access_grants:
                yield from found
                after = found[-1].machine_id

        session.emit_list(
            grants(),
            {
                Column("MACHINE"): lambda g: g.machine_id,
                Column("RELEASED"): lambda g: g.access_count,
                Column("LAST"): lambda g: (
                    time_cell(g.last_accessed_at, now) if g.last_accessed_at else "never"
                ),
                Column("GRANTED", drop=1): lambda g: moment_cell(g.granted_at, now),
                Column("BY", drop=2): lambda g: g.granted_by,
            },
            "No machine may have it.",
        )


# The same for both


def _for_both(group: click.Group, *, shared: bool) -> None:
    """Add to *group* what is done alike to a secret of one machine and to a shared one."""
    word = "name" if shared else "secret"

    def find(session: Session, client: OperatorClient, named: str) -> Shown:
        return _shared(client, named) if shared else _own(session, client, named)

    def changed(client: OperatorClient, secret_id: str, request: Mapping[str, str | None]) -> Shown:
        from attestation_extensions.commands.secrets_api import Vault

        if shared:
            return client.ask(Vault.change_shared, secret_id, request)
        return client.ask(Vault.change, secret_id, request)

    @group.command("rotate")
    @click.argument("named", metavar=word.upper())
    @_value
    @printing
    def rotate(session: Session, named: str, value_file: Path | None) -> None:
        """Exchange the value, which comes from standard input or a file; machines get it when they ask next."""
        request = _read(value_file)
        with session.client() as client:
            secret_id = _id(find(session, client, named))
            _show(session, changed(client, secret_id, request))

    @group.command("change")
    @click.argument("named", metavar=word.upper())
    @_terms
    @printing
    def change(session: Session, named: str, **terms: str | None) -> None:
        """Change what is said of it; an empty text takes a rule, a description or an end away."""
        from attestation_extensions.secret_vault import wire

        members = {name: text or None for name, text in terms.items() if text is not None}
        if not members:
            raise RequestInvalid("say what is to change: --rule, --description or --expires-at")
        checked(lambda: wire.ChangeSecret.model_validate(members))
        with session.client() as client:
            secret_id = _id(find(session, client, named))
            _show(session, changed(client, secret_id, members))

    @group.command("delete")
    @click.argument("named", metavar=word.upper())
    @click.option("--yes", is_flag=True, help="Do not ask.")
    @printing
    def delete(session: Session, named: str, *, yes: bool) -> None:
        """Delete it: its values are erased, for good."""
        from attestation_extensions.commands.secrets_api import Vault

        with session.client() as client:
            found = find(session, client, named)
            session.confirm(f"Erase the secret {clean(found.name)}?", yes=yes)
            if shared:
                client.ask(Vault.delete_shared, _id(found))
            else:
                client.ask(Vault.delete, _id(found))
        session.emit_done(f"{clean(found.name)}: deleted", {"secret_id": _id(found), "deleted": True})

    @group.command("versions")
    @click.argument("named", metavar=word.upper())
    @listing
    def versions(session: Session, named: str) -> None:
        """List the values that are kept, without what they are."""
        from attestation_extensions.commands.secrets_api import Vault

        now = datetime.now(UTC)
        with session.client() as client:
            secret_id = _id(find(session, client, named))
            session.emit_list(
                iter(client.ask(Vault.versions, secret_id).versions),
                {
                    Column("VERSION"): lambda v: v.version,
                    Column("CREATED"): lambda v: moment_cell(v.created_at, now),
                    Column("BY", drop=1): lambda v: v.created_by,
                    Column("TOKEN ID", drop=2): lambda v: v.token_id,
                    Column("KEY", wide=True): lambda v: v.encryption_key_id,
                },
                "No value is kept.",
            )

    @group.command("restore")
    @click.argument("named", metavar=word.upper())
    @click.argument("version", type=click.IntRange(1))
    @printing
    def restore(session: Session, named: str, version: int) -> None:
        """Make the value VERSION the newest again."""
        from attestation_extensions.commands.secrets_api import Vault
        from attestation_extensions.secret_vault import wire

        with session.client() as client:
            secret_id = _id(find(session, client, named))
            kept = client.ask(Vault.restore, secret_id, wire.RestoreSecret(version=version)).versions
        session.emit_done(
            f"{clean(named)}: version {kept[0].version} is what version {version} was",
            {"secret_id": secret_id, "version": kept[0].version},
        )

    @group.command("preview")
    @click.argument("named", metavar=word.upper())
    @click.option("--rule", help="To be tried in place of the one that is set.")
    @listing
    def preview(session: Session, named: str, rule: str | None) -> None:
        """Try a release rule on the fleet as it attested last: who would get the value, and why not."""
        from attestation_extensions.commands.secrets_api import Vault

        with session.client() as client:
            secret_id = _id(find(session, client, named))
            found = client.ask(Vault.preview, secret_id, rule)
            session.emit_list(
                iter(found.machines),
                {
                    Column("MACHINE", shrink_to=8): lambda m: m.machine_id,
                    Column("HOSTNAME"): lambda m: m.hostname,
                    Column("RELEASED"): lambda m: "yes" if m.released else "no",
                    Column("WHY NOT"): lambda m: m.why,
                },
                "No machine is admitted.",
            )
        session.note(f"{found.released} would get it, {found.refused} not")


_for_both(secret, shared=False)
_for_both(shared_secret, shared=True)
