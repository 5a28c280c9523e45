"""`~/.itl/config.toml`: for each profile, which service and which identity provider.

    profile = "prod"                 # used where neither --profile nor ITL_PROFILE names another

    [profiles.prod]
    api_url = "https://attest.example"
    issuer = "https://id.example/realms/itl"

What is not known is an error: a misspelt `ca_file` would silently trust every CA. For one setting the command line
is asked first, then the environment, the profile, the default.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from attestation_cli.login import private_files
from attestation_cli.login.errors import CacheUnsafe, ConfigInvalid

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
OUTPUTS = ("table", "wide", "csv", "yaml", "json")
LONGEST_VALUE = 2048
DEFAULT_PROFILE = "default"

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "api_url": ("ITL_API_URL", "ATTESTATION_API_URL"),
    "issuer": ("ITL_OIDC_ISSUER",),
    "client_id": ("ITL_OIDC_CLIENT_ID", "KEYCLOAK_CLIENT_ID"),
    "ca_file": ("ITL_CA_FILE",),
    "issuer_ca_file": ("ITL_OIDC_CA_FILE",),
    "client_cert": ("ITL_API_CLIENT_CERT",),
    "client_key": ("ITL_API_CLIENT_KEY",),
}
"""Which environment variables speak for a setting; the first that is set wins. `KEYCLOAK_URL` see `environment`."""

DEFAULTS: Mapping[str, str] = {
    "api_url": "http://localhost:8080",
    "client_id": "attestation-cli",
    "output": "table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The settings of one profile; None where it says nothing.

    Args:
        api_url: Address of the service, without `/api/v1`.
        issuer: The identity provider, exactly as it names itself.
        client_id: How the provider knows this program.
        ca_file: PEM file with the only CAs to trust.
        issuer_ca_file: The same for the provider; `system` for those of the system. Default: as `ca_file`.
        client_cert: PEM file of the certificate with which to come to the service, instead of a login.
        client_key: PEM file of its key; default: in the same file.
        output: How to print.
        user: Whose login to use, where several people share this account: their name or `sub`.
        keyring: Keep tokens in the keyring of the system instead of in a file.
    """

    api_url: str | None = None
    issuer: str | None = None
    client_id: str | None = None
    ca_file: str | None = None
    issuer_ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    output: str | None = None
    user: str | None = None
    keyring: bool | None = None


SETTINGS = tuple(f.name for f in fields(Profile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole file."""

    profile: str | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    def chosen(self, name: str | None) -> tuple[str, Profile]:
        """Return the profile *name*, else the one that the file prefers, else an empty one.

        Raises:
            ConfigInvalid: It was named, but is not there.
        """
        wanted = name or self.profile
        if wanted is None:
            return DEFAULT_PROFILE, self.profiles.get(DEFAULT_PROFILE, Profile())
        if wanted not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise ConfigInvalid(f"there is no profile {wanted!r}; there are: {known}")
        return wanted, self.profiles[wanted]

    def with_profile(self, name: str, profile: Profile) -> Config:
        """Return this configuration with *profile* under *name*; the first profile becomes the preferred one."""
        check_name(name)
        preferred = self.profile if self.profiles or self.profile else name
        return replace(self, profile=preferred, profiles={**self.profiles, name: profile})


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting and who said so: `--api-url`, `ITL_API_URL`, `profile prod`, `default`, or `unset`."""

    value: str | None
    source: str


def config_path() -> Path:
    """Return where the file is: `~/.itl/config.toml`."""
    return Path.home() / ".itl" / "config.toml"


def resolve(
    setting: str, *, option: str | None, environ: Mapping[str, str], name: str, profile: Profile
) -> Resolved:
    """Return what applies for *setting*: option, environment, profile *name*, default, in this order."""
    if option is not None:
        return Resolved(option, f"--{setting.replace('_', '-')}")
    if (found := environment(setting, environ)) is not None:
        return found
    value = getattr(profile, setting)
    if value is not None:
        return Resolved(str(value).lower() if isinstance(value, bool) else value, f"profile {name}")
    default = DEFAULTS.get(setting)
    return Resolved(default, "unset" if default is None else "default")


def environment(setting: str, environ: Mapping[str, str]) -> Resolved | None:
    """Return what the environment says about *setting*; an empty variable says nothing.

    `KEYCLOAK_URL` with `KEYCLOAK_REALM` (default `itlusions`) are read as an issuer, as earlier versions did.
    """
    for variable in VARIABLES.get(setting, ()):
        if value := environ.get(variable, "").strip():
            return Resolved(value, variable)
    if setting == "issuer" and (base := environ.get("KEYCLOAK_URL", "").strip()):
        return Resolved(keycloak_issuer(base, environ.get("KEYCLOAK_REALM", "").strip()), "KEYCLOAK_URL")
    return None


def keycloak_issuer(url: str, realm: str | None) -> str:
    """Return the issuer of a Keycloak realm."""
    return f"{url.rstrip('/')}/realms/{realm or 'itlusions'}"


def load(path: Path) -> Config:
    """Read the file; where there is none, everything is at its default.

    Raises:
        ConfigInvalid: It cannot be read or understood, or others may change it.
    """
    try:
        # Links are followed: configuration is often kept elsewhere and linked.
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(private_files.LONGEST_FILE + 1)
    except FileNotFoundError:
        return Config()
    except OSError as e:
        raise ConfigInvalid(f"{path} cannot be read: {e.strerror}") from e
    # It decides which CAs and which provider are trusted.
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigInvalid(f"{path} can be changed by other users; chmod 600 it")
    if len(data) > private_files.LONGEST_FILE:
        raise ConfigInvalid(f"{path} is longer than {private_files.LONGEST_FILE} bytes")
    return parse(data, str(path))


def parse(data: bytes, where: str) -> Config:
    """Parse the text of a configuration.

    Raises:
        ConfigInvalid: Not TOML, an unknown name, or a value of the wrong kind.
    """
    import tomllib

    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as e:
        raise ConfigInvalid(f"{where}: {e}") from None
    _only(document, ("profile", "profiles"), where)
    preferred = document.get("profile")
    tables = document.get("profiles", {})
    if not isinstance(tables, dict):
        raise ConfigInvalid(f"{where}: profiles must be tables: [profiles.NAME]")
    if preferred is not None and (not isinstance(preferred, str) or preferred not in tables):
        raise ConfigInvalid(f"{where}: profile must name one of the profiles below")
    profiles = {}
    for name, table in tables.items():
        check_name(name)
        if not isinstance(table, dict):
            raise ConfigInvalid(f"{where}: profiles.{name} must be a table")
        _only(table, SETTINGS, f"{where}: profiles.{name}")
        profiles[name] = Profile(
            **{key: check_value(key, value, f"{where}: profiles.{name}") for key, value in table.items()}  # type: ignore[arg-type]  # checked by name
        )
    return Config(profile=preferred, profiles=profiles)


def _only(table: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
            raise ConfigInvalid(f"{where}: {name!r} is not known{hint}")


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a profile.

    Raises:
        ConfigInvalid: Other than 1 to 64 letters, digits, `-` and `_`.
    """
    if not NAME.match(name):
        raise ConfigInvalid(f"{name!r} cannot be the name of a profile: 1 to 64 letters, digits, - and _")


def check_value(setting: str, value: object, where: str) -> str | bool:
    """Return *value* where it can be that of *setting*.

    Raises:
        ConfigInvalid: It cannot.
    """
    if setting == "keyring":
        if not isinstance(value, bool):
            raise ConfigInvalid(f"{where}: keyring must be true or false")
        return value
    if not isinstance(value, str) or not value or len(value) > LONGEST_VALUE or not value.isprintable():
        raise ConfigInvalid(f"{where}: {setting} must be a text of 1 to {LONGEST_VALUE} printable characters")
    if setting == "output" and value not in OUTPUTS:
        raise ConfigInvalid(f"{where}: output must be one of {', '.join(OUTPUTS)}")
    return value


def serialise(config: Config) -> bytes:
    """Return the text of *config*; `parse` gives it back."""
    lines = ["# Written by `attestation`; comments are not kept."]
    if config.profile is not None:
        lines.append(f"profile = {_quoted(config.profile)}")
    for name, profile in config.profiles.items():
        lines += ["", f"[profiles.{name}]"]
        for setting in SETTINGS:
            value = getattr(profile, setting)
            if value is not None:
                text = str(value).lower() if isinstance(value, bool) else _quoted(value)
                lines.append(f"{setting} = {text}")
    return ("\n".join(lines) + "\n").encode()


def _quoted(text: str) -> str:
    # A TOML basic string (toml.io 1.0.0, String); control characters cannot occur, see `check_value`.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def save(path: Path, config: Config) -> None:
    """Write the file, mode 0600, whole or not at all.

    Raises:
        ConfigInvalid: It cannot be written.
    """
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        # Where the file is a link, what it points to is replaced, not the link.
        path = path.resolve() if path.is_symlink() else path
        directory_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise ConfigInvalid(f"{directory}: {e.strerror}") from e
    try:
        private_files.write(path.parent, directory_fd, path.name, serialise(config))
    except CacheUnsafe as e:
        raise ConfigInvalid(str(e)) from e
    finally:
        os.close(directory_fd)
