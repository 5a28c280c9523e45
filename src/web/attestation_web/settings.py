"""Settings: `ITL_WEB_*` variables, read once at the start. An unknown one stops the start."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from attestation.api.said import said
from attestation.client.connection import API_PREFIX, checked_url, is_loopback
from attestation.client.openid.discovery import checked_issuer
from attestation.errors import AttestationError, RequestInvalid
from attestation.log_line import LogFormat

PREFIX: Final = "ITL_WEB_"
SHORTEST_SECRET: Final = 16


class SettingsInvalid(AttestationError):
    """The environment does not describe a program that may start; the text says what to change."""

    code = "settings-invalid"


def _checked(url: str) -> str:
    """Return *url* where it is an address of HTTP that may carry a token.

    Raises:
        ValueError: It is not, in words.
    """
    try:
        url = checked_url(url)
    except RequestInvalid:
        raise ValueError("must be an address like https://attest.example") from None
    if url.startswith("http:") and not is_loopback(url):
        raise ValueError("is not encrypted: what is sent could be read on the way")
    return url


class Settings(BaseModel):
    """What is chosen for one dashboard."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str
    """Address under which browsers reach the dashboard: `https://dash.example`, without a path."""

    service_url: str
    """Address of the attestation service, without `/api/v1`."""

    service_ca_file: Path | None = None
    """PEM file with the only CAs to trust for it; those of the system without."""

    oidc_issuer: str
    """The identity provider, letter by letter as its tokens say in `iss`; the service has the same."""

    oidc_ca_file: Path | None = None
    """PEM file with the only CAs to trust for it; those of the system without."""

    oidc_client_id: Annotated[str, Field(min_length=1, max_length=255)] = "attestation-web"
    """What the provider calls the dashboard; the service must accept it (`ITL_OIDC_CLIENTS`)."""

    oidc_client_secret: SecretStr | None = None
    """Secret of that client."""

    oidc_client_secret_file: Path | None = None
    """File with it, instead."""

    oidc_scope: Annotated[str, Field(pattern=r"^[!#-\[\]-~ ]+$")] = "openid profile email"
    """What is asked for, words with spaces between; `openid` is among them."""

    oidc_acr_values: Annotated[str, Field(pattern=r"^[!#-\[\]-~ ]*$")] = ""
    """How strongly somebody must log in before they decide (`acr`), the best first; empty demands nothing."""

    reauthentication_seconds: Annotated[int, Field(ge=30, le=86_400)] = 300
    """Whoever approves, revokes or wipes has logged in so lately; else they log in again first."""

    session_idle_seconds: Annotated[int, Field(ge=60, le=86_400)] = 1800
    """After so long without a request a session ends."""

    session_seconds: Annotated[int, Field(ge=60, le=604_800)] = 36_000
    """After so long it ends in any case."""

    refresh_seconds: Annotated[int, Field(ge=2, le=3600)] = 10
    """How often a page that shows what changes asks again."""

    tell_address: bool = False
    """The service is told from which address each person asks (`X-Forwarded-For`); it believes that or not."""

    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Where the proxies before the dashboard are, with commas between: they say from which address a person asks."""

    listen_host: str = "127.0.0.1"
    """Where the dashboard listens."""

    listen_port: Annotated[int, Field(ge=0, le=65_535)] = 7788
    """Likewise; 0 takes any that is free."""

    tls_cert_file: Path | None = None
    """PEM file with the certificate for its own TLS; without it TLS ends at a proxy."""

    tls_key_file: Path | None = None
    """PEM file with the key of that certificate."""

    threads: Annotated[int, Field(ge=1, le=128)] = 16
    """How many requests are answered at the same time."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Which events are logged."""

    log_format: LogFormat = "auto"
    """`json`, `text`, or `auto`: text on a terminal."""

    @field_validator("url")
    @classmethod
    def _origin(cls, url: str) -> str:
        url = _checked(url)
        parts = urlsplit(url)
        if parts.path:
            raise ValueError("must have no path: a dashboard shares its origin with nothing else")
        if parts.hostname is None or ":" in parts.hostname:
            raise ValueError("must name a host, or an IPv4 address")
        # As browsers spell an origin (RFC 6454 §6.1): forms are told by it.
        port = "" if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}"

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("service_url")
    @classmethod
    def _service(cls, url: str) -> str:
        if url.rstrip("/").endswith(API_PREFIX):
            raise ValueError(f"is given without {API_PREFIX}")
        return _checked(url)

    @field_validator("oidc_issuer")
    @classmethod
    def _issuer(cls, issuer: str) -> str:
        try:
            return checked_issuer(issuer)
        except RequestInvalid as e:
            raise ValueError(str(e)) from None

    @field_validator("oidc_scope")
    @classmethod
    def _openid(cls, scope: str) -> str:
        if "openid" not in scope.split():
            raise ValueError("must contain openid")
        return scope

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.oidc_client_secret is not None and self.oidc_client_secret_file is not None:
            raise ValueError("OIDC_CLIENT_SECRET and OIDC_CLIENT_SECRET_FILE: one of the two")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("TLS_CERT_FILE and TLS_KEY_FILE: both or none")
        if self.trusted_proxies and not self.tell_address:
            raise ValueError("TRUSTED_PROXIES: is for TELL_ADDRESS, which is off")
        return self

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings.

        Raises:
            SettingsInvalid: One is missing, unknown or wrong. Values are not told.
        """
        known = {f"{PREFIX}{name.upper()}": name for name in cls.model_fields}
        given = {name: value for name, value in environment.items() if name.startswith(PREFIX) and value}
        faults = [_unknown(name, list(known)) for name in sorted(given.keys() - known.keys())]
        try:
            settings = cls.model_validate({known[name]: given[name] for name in given.keys() & known.keys()})
        except ValidationError as e:
            faults += [f"{_where(each['loc'])}{said(each)}" for each in e.errors()]
            raise SettingsInvalid("\n".join(faults)) from None
        if faults:
            raise SettingsInvalid("\n".join(faults))
        return settings

    @property
    def is_encrypted(self) -> bool:
        """Browsers reach the dashboard over TLS."""
        return self.url.startswith("https:")

    def client_secret(self) -> SecretStr | None:
        """Return the secret that the provider knows us by; None for a public client.

        Raises:
            SettingsInvalid: The file cannot be read, or holds none.
        """
        if self.oidc_client_secret_file is None:
            return self.oidc_client_secret
        name = f"{PREFIX}OIDC_CLIENT_SECRET_FILE"
        try:
            text = self.oidc_client_secret_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as e:
            raise SettingsInvalid(f"{name}: cannot be read: {type(e).__name__}") from None
        if not text or not text.isprintable():
            raise SettingsInvalid(f"{name}: holds no secret")
        return SecretStr(text)

    def warnings(self) -> list[str]:
        """Return what weakens this dashboard and was set by somebody."""
        secret = self.client_secret()
        found = []
        if secret is None:
            found.append("no client secret: whoever learns a code and its verifier can log in with it")
        elif len(secret.get_secret_value()) < SHORTEST_SECRET:
            found.append(f"the client secret is shorter than {SHORTEST_SECRET} characters")
        if not self.is_encrypted:
            found.append("browsers reach it without TLS: only for a dashboard on this computer")
        return found


def _where(location: tuple[int | str, ...]) -> str:
    return f"{PREFIX}{str(location[0]).upper()}: " if location else ""


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    return f"unknown setting {name}; " + (
        f"did you mean {close[0]}?"
        if close
        else "`attestation-web --help` says where all of them are explained"
    )
