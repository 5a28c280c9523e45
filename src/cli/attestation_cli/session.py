"""What one run of the command line knows: where the service is, and who we are."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attestation.client.text import clean, short_ids
from attestation.errors import Conflict, MachineUnknown, RequestInvalid, Unauthenticated
from attestation_cli.login.profiles import Profile, Resolved, config_path, load, resolve
from attestation_cli.screen import Screen

if TYPE_CHECKING:
    from attestation.api import MachineDetail
    from attestation.client import OperatorClient, PublicClient
    from attestation.client.acts import Acts
    from attestation.client.carrier import Carrier
    from attestation_cli.login.current import Wanted

DEFAULT_URL = "http://localhost:8080"
FULL_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
SHORTEST_PREFIX = 4
MOST_CANDIDATES = 20

Model = TypeVar("Model")


class Ambiguous(Conflict):
    """Several machines answer to the name given."""

    code = "ambiguous"


class OtherTPM(RequestInvalid):
    """The machine has another EK than the one that somebody read from it."""

    code = "another-tpm"


@dataclass(slots=True)
class Session(Screen):
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
    carrier: Carrier | None = None
    """For tests: what carries the requests instead of the network."""
    login_carrier: Carrier | None = None
    """For tests: the same, to the identity provider."""
    arguments: tuple[str, ...] = ()
    """What the operator typed behind `attestation`."""
    asks_again: bool = False
    """This run asks again for the acts of an earlier one; known when there is a client."""
    _acts: Acts | None = None
    beside_others: bool = False
    """Propose what is asked for although another proposal about the same thing waits."""
    _told_break_glass: bool = False

    # Talking to the service

    def client(self, token: str | None = None) -> OperatorClient:
        """Connect to the service as operator: with *token*, the client certificate, or the token that is configured.

        Raises:
            Unauthenticated: There is no token.
            RequestInvalid: Address, token or CA file cannot be used.
        """
        # Imported here: pydantic takes longer to load than --help takes to print.
        from attestation.client import OperatorClient

        certificate = self.client_certificate if token is None else None
        client = OperatorClient(
            self.url,
            self._token() if token is None and certificate is None else token,
            ca_file=self.ca_file,
            client_certificate=certificate,
            allow_plain_http=self.allow_plain_http,
            carrier=self.carrier,
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

        return PublicClient(self.url, ca_file=self.ca_file, carrier=self.carrier)

    def setting(self, name: str, option: str | None = None) -> Resolved:
        """Return what applies for a setting: *option* or the global one, the environment, the profile, the default."""
        given = option if option is not None else self.options.get(name)
        return resolve(name, option=given, environ=os.environ, name=self.profile_name, profile=self.profile)

    def take_options(self, given: Mapping[str, Any]) -> None:
        """Take the options before the command, by their names, and what environment and profile say besides."""
        settings = ("api_url", "ca_file", "client_cert", "client_key")
        self.options = {name: given[name] for name in settings if given.get(name) is not None}
        self.profile_name, self.profile = load(config_path()).chosen(given.get("profile"))
        self.token_file = given.get("token_file")
        self.apply_settings()
        self.allow_plain_http = bool(given.get("allow_plain_http"))

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

                return bearer(LoginCache(note=self.note), self.wanted(), carrier=self.login_carrier)
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


pass_session = click.make_pass_decorator(Session, ensure=True)
