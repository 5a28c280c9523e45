"""What one run of the command line knows: where the service is, who we are, how to print."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from attestation import output
from attestation.client.text import ago, clean, short_ids
from attestation.errors import AttestationError, Conflict, MachineUnknown, RequestInvalid, Unauthenticated
from attestation_cli.listing import arranged
from attestation_cli.login.profiles import OUTPUTS, Profile, Resolved, config_path, load, resolve
from attestation_cli.render import (
    Cell,
    Column,
    cell,
    column_name,
    csv_line,
    exact,
    fields,
    json_text,
    plain,
    table,
    time_cell,
    yaml_text,
)

if TYPE_CHECKING:
    import httpx
    from pydantic import BaseModel

    from attestation.api import MachineDetail, PendingApproval
    from attestation.client import OperatorClient, PublicClient
    from attestation.client.acts import Acts
    from attestation.client.trace import Exchange
    from attestation_cli.login.current import Wanted

DEFAULT_URL = "http://localhost:8080"
FULL_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
SHORTEST_PREFIX = 4
MOST_CANDIDATES = 20
DIGEST_DIGITS = 16
"""So many digits of a digest are printed to be typed: nobody finds another proposal that begins so too."""

Command = TypeVar("Command", bound=Callable[..., Any])
Model = TypeVar("Model")


class Ambiguous(Conflict):
    """Several machines answer to the name given."""

    code = "ambiguous"


class Refused(RequestInvalid):
    """The command would destroy something and nobody confirmed it."""

    code = "not-confirmed"


class OtherTPM(RequestInvalid):
    """The machine has another EK than the one that somebody read from it."""

    code = "another-tpm"


@dataclass(slots=True)
class Session:
    """The settings of one run, and what every command does with them."""

    url: str = DEFAULT_URL
    url_source: str = "default"
    options: dict[str, str] = field(default_factory=dict)
    """Settings given before the command, by the names of `login.profiles`."""
    profile_name: str = "default"
    profile: Profile = field(default_factory=Profile)
    token_file: Path | None = None
    ca_file: Path | None = None
    client_certificate: tuple[Path, Path | None] | None = None
    """With which to come to the service; then no token is sent."""
    allow_plain_http: bool = False
    output: str = "table"
    transport: httpx.BaseTransport | None = None
    """For tests: what carries the requests instead of the network."""
    login_transport: httpx.BaseTransport | None = None
    """For tests: the same, to the identity provider."""
    output_given: bool = False
    arguments: tuple[str, ...] = ()
    """What the operator typed behind `attestation`."""
    again: str | None = None
    """The key of an earlier run, whose acts are asked for again."""
    acted: bool = False
    """An act was given its key: from now on it may have been done."""
    asks_again: bool = False
    """This run asks again for the acts of an earlier one; known when there is a client."""
    _acts: Acts | None = None
    columns: tuple[str, ...] = ()
    """The columns of a list that were asked for, by name; none are all."""
    order: tuple[str, ...] = ()
    """The columns to sort a list by; a minus in front turns one round."""
    debug: bool = False
    """Tell of each request on stderr."""
    beside_others: bool = False
    """Propose what is asked for although another proposal about the same thing waits."""
    quiet: bool = False
    """Print no remarks: somebody is typing a line, or a program reads stderr."""
    _told_break_glass: bool = False

    # Talking to the service

    def client(self, token: str | None = None) -> OperatorClient:
        """Connect to the service as operator: with *token*, the client certificate, or the token that is configured.

        Raises:
            Unauthenticated: There is no token.
            RequestInvalid: Address, token or CA file cannot be used.
        """
        # Imported here: pydantic and httpx take longer to load than --help takes to print.
        from attestation.client import OperatorClient

        certificate = self.client_certificate if token is None else None
        client = OperatorClient(
            self.url,
            self._token() if token is None and certificate is None else token,
            ca_file=self.ca_file,
            client_certificate=certificate,
            allow_plain_http=self.allow_plain_http,
            transport=self.transport,
            acts=self._named_acts(),
        )
        return client.beside_others() if self.beside_others else client

    def _named_acts(self) -> Acts:
        """Return the names of this run's acts, one after the other, whichever of its clients asks."""
        from attestation.client.acts import Acts, new_base

        if self._acts is None:
            self.asks_again = self.again is not None
            self.again = self.again or new_base()
            self._acts = Acts(keys=self._keys(), on_lost=self._tell_lost)
        return self._acts

    def _keys(self) -> Iterator[str]:
        from attestation.client.acts import keys_of

        # Not before the first act: until then `seen` may add to what they are made of.
        assert self.again is not None
        self.acted = True
        yield from keys_of(self.again)

    def seen(self, version: int) -> int:
        """Return the version of a machine to act on: *version*, or what an earlier run saw that is asked again for.

        The key ends with it. What was done made a newer one, and a request for that would be another.
        """
        _, _, told = (self.again or "").partition("-")
        if told.isdecimal():
            return int(told)
        if not self.asks_again:
            self.again = f"{self.again}-{version}"
        return version

    def _tell_lost(self, error: Exception) -> None:
        self.note(f"note: the answer was lost ({clean(str(error))}); asking whether it happened")

    def repeat(self) -> str:
        """Return the command that asks for the acts of this run again, and does each at most once."""
        arguments = list(self.arguments)
        if "--again" not in arguments and self.again is not None:
            arguments = ["--again", self.again, *arguments]
        return shlex.join(["attestation", *arguments])

    def public(self) -> PublicClient:
        """Connect to the service as anybody."""
        from attestation.client import PublicClient

        return PublicClient(self.url, ca_file=self.ca_file, transport=self.transport)

    def setting(self, name: str, option: str | None = None) -> Resolved:
        """Return what applies for a setting: *option* or the global one, the environment, the profile, the default."""
        given = option if option is not None else self.options.get(name)
        return resolve(name, option=given, environ=os.environ, name=self.profile_name, profile=self.profile)

    def take_options(
        self,
        *,
        profile: str | None,
        api_url: str | None,
        token_file: Path | None,
        ca_file: str | None,
        client_cert: str | None = None,
        client_key: str | None = None,
        allow_plain_http: bool,
    ) -> None:
        """Take the options before the command, and what environment and profile say besides."""
        options = {
            "api_url": api_url, "ca_file": ca_file, "client_cert": client_cert, "client_key": client_key,
        }  # fmt: skip
        self.options = {name: given for name, given in options.items() if given is not None}
        self.profile_name, self.profile = load(config_path()).chosen(profile)
        self.token_file = token_file
        self.apply_settings()
        self.allow_plain_http = allow_plain_http

    def apply_settings(self) -> None:
        """Take address, CA file and form of the output from options, environment and profile."""
        url, ca_file = self.setting("api_url"), self.setting("ca_file")
        assert url.value is not None
        self.url, self.url_source = url.value, url.source
        self.ca_file = None if ca_file.value is None else Path(ca_file.value).expanduser()
        certificate, key = self.setting("client_cert").value, self.setting("client_key").value
        if key is not None and certificate is None:
            raise RequestInvalid("a client key without its certificate proves nothing: --client-cert")
        self.client_certificate = (
            None
            if certificate is None
            else (Path(certificate).expanduser(), None if key is None else Path(key).expanduser())
        )
        if self.profile.output is not None and not self.output_given:
            self.output = self.profile.output

    def wanted(
        self, *, issuer: str | None = None, client_id: str | None = None, user: str | None = None
    ) -> Wanted:
        """Return which login this run means; the arguments are options of its command and go before all else."""
        from attestation_cli.login.current import Wanted

        client = self.setting("client_id", client_id).value
        assert client is not None
        return Wanted(
            issuer=self.setting("issuer", issuer).value,
            client_id=client,
            user=user or self.profile.user,
            api_url=self.url,
            ca_file=self.setting("issuer_ca_file").value or self.setting("ca_file").value,
        )

    def _token(self) -> str:
        """Return the break-glass token where one is given, else that of the login."""
        if self.token_file is None:
            token = os.environ.get("ITL_ADMIN_TOKEN", "").strip()
            if not token:
                # Imported here: --help needs no login.
                from attestation_cli.login.cache import LoginCache
                from attestation_cli.login.current import bearer

                return bearer(LoginCache(note=self.note), self.wanted(), transport=self.login_transport)
            self._tell_break_glass("ITL_ADMIN_TOKEN")
            return token
        self._tell_break_glass(str(self.token_file))
        try:
            with self.token_file.open(encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                token = file.read(4097).strip()
        except (OSError, UnicodeDecodeError) as e:
            reason = e.strerror if isinstance(e, OSError) else "not text"
            raise RequestInvalid(f"token file {self.token_file}: {reason}") from e
        if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            self.note(f"warning: {self.token_file} can be read by others; chmod 600 it")
        if not token:
            raise Unauthenticated(f"token file {self.token_file} is empty")
        return token

    def _tell_break_glass(self, source: str) -> None:
        # Programs chose it on purpose; a person may have forgotten a variable.
        if sys.stderr.isatty() and not self._told_break_glass:
            self.note(f"note: using break-glass, the token of {source}, and no login")
            self._told_break_glass = True

    def find(self, client: OperatorClient, name: str) -> MachineDetail:
        """Return the machine that *name* means: its id, an unambiguous prefix of it, or its hostname.

        Raises:
            MachineUnknown: None.
            Ambiguous: More than one; the message lists them.
            RequestInvalid: Too short to mean anything.
        """
        name = name.strip().lower()
        if FULL_ID.match(name):
            return client.machine(name)
        if not name:
            raise RequestInvalid("the name of a machine is empty")
        # Three hex digits mean too many machines one day; a hostname is whole, so it may be as short as it likes.
        by_prefix = len(name) >= SHORTEST_PREFIX
        found: list[MachineDetail] = []
        for machine in client.machines(q=name):
            if machine.hostname == name or (by_prefix and machine.machine_id.startswith(name)):
                found.append(machine)
            if len(found) > MOST_CANDIDATES:
                break
        if not found and not by_prefix:
            raise MachineUnknown(
                f"no machine is called {clean(name)!r}, and an id needs at least {SHORTEST_PREFIX} characters"
            )
        if not found:
            raise MachineUnknown(f"no machine's id begins with {clean(name)!r}, and none is called that")
        if len(found) > 1:
            lines = [
                f"{m.machine_id}  {m.status}  {clean(m.hostname or '-')}" for m in found[:MOST_CANDIDATES]
            ]
            more = ["…"] if len(found) > MOST_CANDIDATES else []
            raise Ambiguous("\n".join([f"{clean(name)!r} may mean any of", *lines, *more]))
        return found[0]

    def find_id(self, client: OperatorClient, name: str) -> str:
        """Return the id that *name* means; a full id stands for itself, even where its record is deleted."""
        return name.lower() if FULL_ID.match(name.lower()) else self.find(client, name).machine_id

    # Talking to the operator

    @property
    def json(self) -> bool:
        """True where the output is one document for programs: JSON, or the same as YAML."""
        return self.output in ("json", "yaml")

    @property
    def colour(self) -> bool:
        """True where colours help: on a terminal, unless NO_COLOR (no-color.org) or a dumb one."""
        return _coloured(sys.stdout)

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where the output goes to a file or a pipe, which have no edge."""
        if not _is_terminal(sys.stdout):
            return None
        import shutil

        return shutil.get_terminal_size().columns

    def emit(self, text: str) -> None:
        """Print *text*, which is clean already, to stdout.

        Raises:
            OutcomeUnknown: It cannot be written, and an act may have been done of which it tells.
            RequestInvalid: It cannot be written.
        """
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        try:
            click.echo(text, color=self.colour, nl=False)
        except BrokenPipeError:
            raise  # who reads has enough
        except OSError as e:
            output.give_up()
            raise self.unwritten("the output", e) from e

    def unwritten(self, what: str, error: OSError) -> AttestationError:
        """Return what is to be raised where *what*, the answer, cannot be written: of an act it is lost."""
        why = f"the answer came, but {what} cannot be written: {error.strerror}"
        if not self.acted:
            return RequestInvalid(why)
        from attestation.client.errors import OutcomeUnknown

        return OutcomeUnknown(why, key=self.again or "")

    def note(self, text: str) -> None:
        """Print a remark to stderr, where it disturbs no program that reads stdout."""
        if not self.quiet:
            click.echo(text, err=True, color=_coloured(sys.stderr))

    def tell_exchange(self, exchange: Exchange) -> None:
        """Print what is known of a request; never what it carried."""
        answer = exchange.failure or str(exchange.status)
        request = f", request {exchange.request_id}" if exchange.request_id else ""
        took = f"{exchange.milliseconds:.0f} ms"
        self.note(f"debug: {exchange.method} {exchange.url}: {answer} after {took}{request}")

    def emit_json(
        self, value: BaseModel | Mapping[str, Any] | Iterator[BaseModel] | Iterator[Mapping[str, Any]]
    ) -> None:
        """Print *value* as JSON or YAML; an iterator as a list, written as its values arrive.

        Raises:
            RequestInvalid: Columns were asked for, or an order.
        """
        if self.columns or self.order:
            raise RequestInvalid(
                f"--columns and --sort arrange tables; -o {self.output} is what the service said, in its order. "
                "Choose -o table, wide or csv, or arrange the document afterwards (jq)"
            )
        if self.output == "yaml":
            self._emit_yaml(value)
            return
        if not isinstance(value, Iterator):
            self.emit(json_text(value))
            return
        first = True
        for item in value:
            self.emit(("[\n" if first else ",\n") + json_text(item))
            first = False
        self.emit("[]" if first else "]")

    def _emit_yaml(
        self, value: BaseModel | Mapping[str, Any] | Iterator[BaseModel] | Iterator[Mapping[str, Any]]
    ) -> None:
        if not isinstance(value, Iterator):
            self.emit(yaml_text(plain(value)))
            return
        empty = True
        for item in value:
            self.emit(yaml_text([plain(item)]))
            empty = False
        if empty:
            self.emit("[]")

    def emit_table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], empty: str) -> None:
        """Print a table, or the sentence *empty* to stderr.

        As a table for people, wide columns are left out, and so is a column that may go and says nothing; `wide` and
        `csv` show every column, exactly and whole. Where columns were asked for, exactly these.

        Raises:
            RequestInvalid: A column that was asked for, to see or to sort by, does not exist.
        """
        columns, rows = arranged(columns, rows, wanted=self.columns, order=self.order)
        if self.output == "csv":
            self._emit_csv([column_name(c.title) for c in columns], rows)
            return
        if not rows:
            self.note(empty)
            return
        if self.output == "wide":
            whole = [Column(c.title) for c in columns]
            values = [[Cell(exact(c) or "-", c.colour) for c in row] for row in rows]
            for line in table(whole, values, width=None, colour=self.colour):
                self.emit(line)
            return
        told = [
            i
            for i, c in enumerate(columns)
            if self.columns or (not c.wide and (not c.drop or any(row[i].text != "-" for row in rows)))
        ]
        columns, rows = [columns[i] for i in told], [[row[i] for i in told] for row in rows]
        for line in table(columns, rows, width=self.width, colour=self.colour):
            self.emit(line)

    def emit_fields(self, pairs: Iterable[tuple[str, Cell]], *, indent: str = "") -> None:
        """Print names and values, one pair a line; as CSV, a heading and one record."""
        pairs = list(pairs)
        if self.output == "csv":
            self._emit_csv([column_name(name) for name, _ in pairs], [[value for _, value in pairs]])
            return
        if self.output == "wide":
            pairs = [(name, Cell(exact(value) or "-", value.colour)) for name, value in pairs]
        width = None if self.width is None else self.width - len(indent)
        for line in fields(pairs, colour=self.colour, width=width):
            self.emit(f"{indent}{line}")

    def emit_done(self, sentence: str, members: Mapping[str, str | int | bool | None]) -> None:
        """Say that an act was done: as a *sentence*, or with its *members* where a program asked."""
        if self.json:
            self.emit_json(members)
        elif self.output == "csv":
            self.emit_fields((name, cell(value)) for name, value in members.items())
        else:
            self.emit(sentence)

    def emit_pending(self, pending: PendingApproval, subject: str) -> None:
        """Say that a vote counts, how many are missing, and what the others must call.

        Args:
            pending: What the service answered, with 202.
            subject: What the act is about, clean.
        """
        # Nobody looks at what a program agrees to, so it needs the whole digest.
        digits = None if self.json else DIGEST_DIGITS
        call = f"attestation approval approve {pending.proposal_digest[:digits]}"
        if self.json:
            self.emit_json({**pending.model_dump(mode="json"), "next_command": call})
            return
        now = datetime.now(UTC)
        count = f"{pending.approvals_received} of {pending.approvals_required}"
        rows = [
            ("approvals", cell(count)),
            ("voted", cell(", ".join(pending.voters))),
            ("expires", time_cell(pending.expires_at, now)),
            ("your vote", cell(pending.approval_id)),
        ]
        if self.output == "csv":
            self.emit_fields(
                [
                    ("status", cell(pending.status)),
                    ("action", cell(pending.action)),
                    *rows,
                    ("next command", cell(call)),
                ]
            )
            return
        headline = (
            f"{subject}: {count} approvals, expires {ago(pending.expires_at, now)}; nothing is changed yet"
        )
        self.emit(click.style(headline, fg="yellow"))
        self.emit_fields(rows[1:], indent="  ")
        self.emit("  another operator must run")
        # Whole, on a line of its own: it is copied.
        self.emit(f"    {call}")
        self.emit("  and to take your vote back")
        self.emit(f"    attestation approval withdraw {pending.approval_id}")

    def _emit_csv(self, heading: list[str], rows: Iterable[Sequence[Cell]]) -> None:
        self._write(csv_line(heading))
        for row in rows:
            self._write(csv_line(exact(value) for value in row))

    def confirm(self, question: str, *, yes: bool, phrase: str | None = None) -> None:
        """Go on only if the operator agrees; *phrase* must then be typed out.

        Raises:
            Refused: Nobody can be asked, because stdin is not a terminal.
            click.exceptions.Exit: The operator said no.
        """
        if yes:
            return
        if not is_terminal():
            raise Refused("this needs a confirmation, and stdin is not a terminal")
        if phrase is None:
            agreed = click.confirm(question, err=True)
        else:
            prompt = f"{question}\nType {phrase} to go on"
            agreed = click.prompt(prompt, default="", show_default=False, err=True) == phrase
        if not agreed:
            self.note("Nothing was changed.")
            raise click.exceptions.Exit(1)


def _is_terminal(stream: TextIO | None) -> bool:
    # None where the shell closed it.
    return stream is not None and stream.isatty()


def _coloured(stream: TextIO | None) -> bool:
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal() -> bool:
    """True where somebody can be asked."""
    return sys.stdin.isatty()


def name_of(machine: MachineDetail) -> str:
    """Return what operators call *machine*: hostname and short id, or the short id."""
    short = short_ids([machine.machine_id])[machine.machine_id]
    return f"{clean(machine.hostname)} ({short})" if machine.hostname else short


def checked(build: Callable[[], Model]) -> Model:
    """Return the request that *build* makes of what the operator typed.

    Raises:
        RequestInvalid: A value is not what the API accepts; nothing was sent.
    """
    from pydantic import ValidationError

    from attestation.api.said import said

    try:
        return build()
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestInvalid(f"{where} {said(first)}" if where else said(first)) from None


def _set_output(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        session = ctx.ensure_object(Session)
        session.output, session.output_given = value, True


def _set_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    session = ctx.ensure_object(Session)
    if value and not session.debug:
        from attestation.client.trace import watching

        session.debug = True
        # Until the whole run ends: a group's own context is closed before its commands are done.
        ctx.find_root().with_resource(watching(session.tell_exchange))


def output_option(command: Command) -> Command:
    """Add `-o/--output` and `-v/--debug`; both may stand before or after the command."""
    command = click.option(
        "-v",
        "--debug",
        is_flag=True,
        callback=_set_debug,
        expose_value=False,
        is_eager=True,
        help="Tell of each request on stderr.",
    )(command)
    return click.option(
        "-o",
        "--output",
        type=click.Choice(OUTPUTS),
        callback=_set_output,
        expose_value=False,
        is_eager=True,
        help="How to print [default: table]",
    )(command)


def _set_arrangement(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise click.BadParameter("name at least one column, as the heading of -o csv does", ctx, param)
    session = ctx.ensure_object(Session)
    if param.name == "sort":
        session.order = names
    else:
        session.columns = names


def listing_options(command: Command) -> Command:
    """Add `--columns`, `--sort` and `-o/--output`: for a command that prints one list, with `emit_table`."""
    for name, text in (
        ("--sort", "Sort what is listed by these columns; a minus in front (-seen) turns one round."),
        ("--columns", "Show only these columns, in this order; the heading of `-o csv` names them."),
    ):
        command = click.option(
            name, metavar="NAME,…", callback=_set_arrangement, expose_value=False, help=text
        )(command)
    return output_option(command)


def new_proposal_option(command: Command) -> Command:
    """Add `--new-proposal`, for an act that several may have to agree to."""
    return click.option(
        "--new-proposal",
        is_flag=True,
        callback=_set_beside_others,
        expose_value=False,
        help="Propose it although another proposal about the same thing waits for votes.",
    )(command)


def _set_beside_others(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Session).beside_others = value


pass_session = click.make_pass_decorator(Session, ensure=True)
