"""Settings: read once at the start, frozen, passed down; never imported.

Every setting is one environment variable with the prefix `ITL_` (or a line of `.env`). The safe value is the
default; `Settings.warnings` names what an operator weakened. A variable that starts with `ITL_` and is none
of ours stops the start: a typo must not switch a control off.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from dotenv import dotenv_values
from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "ITL_"
SHORT_TOKEN_CHARACTERS = 32

# The other members of the platform share the prefix; a shell may well hold their variables beside ours.
FOREIGN_PREFIXES = ("ITL_API_", "ITL_CA_FILE", "ITL_REG_", "ITL_AGENT_", "ITL_WEB_")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class SettingsInvalid(Exception):
    """The environment does not describe a service that may start; the text says what to change."""


def _split(value: object) -> object:
    """Read a comma list; blanks around the members and empty members are dropped."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


CommaList = NoDecode, BeforeValidator(_split)


class Settings(BaseSettings):
    """What an operator can choose, with the safe value as default."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    # Where things are
    db_url: str = "sqlite:////var/lib/itl-reg/db/machines.db"
    service_url: str = "https://attest.itlusions.com"
    enrollment_ca_dir: Path = Path("/var/lib/itl-reg/ca")
    config_cache_dir: Path = Path("/var/lib/itl-reg/configs")
    service_key: str | None = None
    installer_image: str = ""
    iso_url: str = ""

    # Operators
    admin_token: SecretStr | None = None
    admin_token_file: Path | None = None

    # Proof
    challenge_ttl_seconds: Annotated[int, Field(ge=5, le=60)] = 60
    reattest_seconds: Annotated[int, Field(ge=1, le=3600)] = 45
    require_nonce: bool = True
    require_quote: bool = True
    tpm_allow_simulator: bool = False

    # Delivery
    require_encrypted_delivery: bool = True
    config_token_ttl_seconds: Annotated[int, Field(ge=60, le=86_400)] = 900
    config_repeat_seconds: Annotated[int, Field(ge=0, le=3600)] = 300
    pending_answer: Literal["partial", "retry", "empty"] = "partial"

    # Limits
    rate_limits: bool = True
    rate_limit_address_per_second: Annotated[float, Field(gt=0, le=100_000)] = 100.0
    rate_limit_address_burst: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    rate_limit_machine_per_second: Annotated[float, Field(gt=0, le=1000)] = 1.0
    rate_limit_machine_burst: Annotated[int, Field(ge=1, le=10_000)] = 20
    pending_limit: Annotated[int, Field(ge=1)] = 10_000
    pending_limit_per_address: Annotated[int, Field(ge=1)] = 1_000
    trusted_proxies: Annotated[tuple[Network, ...], *CommaList] = ()

    # Housekeeping
    result_history: Annotated[int, Field(ge=1, le=10_000)] = 20
    maintenance_seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    shutdown_seconds: Annotated[int, Field(ge=1, le=600)] = 30
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = True

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 -- the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- `load` reads the environment itself
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- likewise
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 -- likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values only from the arguments, so that no test or import depends on where it runs."""
        return (init_settings,)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, env_file: Path | None = Path(".env")) -> Self:
        """Read the settings of this process; a variable wins over a line of *env_file*.

        Raises:
            SettingsInvalid: An unknown `ITL_` variable, or a value that is not allowed.
        """
        found: dict[str, str] = {}
        if env_file is not None and env_file.is_file():
            found.update({k.upper(): v for k, v in dotenv_values(env_file).items() if v is not None})
        found.update({k.upper(): v for k, v in (os.environ if environ is None else environ).items()})
        ours = {k: v for k, v in found.items() if k.startswith(PREFIX) and not k.startswith(FOREIGN_PREFIXES)}
        known = {PREFIX + name.upper(): name for name in cls.model_fields}
        for variable in sorted(ours.keys() - known.keys()):
            raise SettingsInvalid(_unknown(variable, list(known)))
        # An empty variable is an unset one: charts and compose files write `ITL_ISO_URL=""`.
        values: dict[str, Any] = {known[k]: v for k, v in ours.items() if v != ""}
        try:
            return cls(**values)
        except ValidationError as e:
            raise SettingsInvalid(
                "; ".join(_invalid(error["loc"], error["msg"]) for error in e.errors())
            ) from None

    @field_validator("service_url", "iso_url")
    @classmethod
    def _plain_url(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url.rstrip("/")

    @field_validator("require_nonce", "require_quote")
    @classmethod
    def _always_on(cls, value: bool) -> bool:
        # Seed settings: the protocol has no form without a challenge and a quote (PROTOCOL §4).
        if not value:
            raise ValueError("cannot be switched off: every attestation carries a quote over our challenge")
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_token_file(cls, values: Any) -> Any:
        if isinstance(values, dict) and (name := values.get("admin_token_file")):
            if values.get("admin_token"):
                raise ValueError("ITL_ADMIN_TOKEN and ITL_ADMIN_TOKEN_FILE are both set; keep one")
            try:
                token = Path(name).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as e:
                raise ValueError(f"ITL_ADMIN_TOKEN_FILE: cannot read {name}: {type(e).__name__}") from None
            if not token:
                raise ValueError(f"ITL_ADMIN_TOKEN_FILE: {name} is empty")
            return {**values, "admin_token": token}
        return values

    @model_validator(mode="after")
    def _one_round_trip(self) -> Self:
        if self.reattest_seconds >= self.challenge_ttl_seconds:
            raise ValueError(
                "ITL_REATTEST_SECONDS must be less than ITL_CHALLENGE_TTL_SECONDS, "
                "or every attestation needs a second round trip"
            )
        return self

    @property
    def service_key_uri(self) -> str:
        """URI of the key that signs directives and results."""
        return self.service_key or f"file:{self.enrollment_ca_dir / 'service-key.pem'}"

    def warnings(self) -> list[str]:
        """Say, one line each, which controls are weaker than the default."""
        token = self.admin_token.get_secret_value() if self.admin_token else None
        found = [
            (
                self.tpm_allow_simulator,
                "ITL_TPM_ALLOW_SIMULATOR=true: software TPMs are accepted; for development only",
            ),
            (
                not self.require_encrypted_delivery,
                "ITL_REQUIRE_ENCRYPTED_DELIVERY=false: configurations with cluster secrets may leave in plaintext",
            ),
            (not self.rate_limits, "ITL_RATE_LIMITS=false: strangers are not slowed down"),
            (
                token is not None and len(token) < SHORT_TOKEN_CHARACTERS,
                f"ITL_ADMIN_TOKEN is shorter than {SHORT_TOKEN_CHARACTERS} characters: it can be guessed",
            ),
            (token is None, "ITL_ADMIN_TOKEN is not set: operator routes answer 503"),
            (
                self.service_url.startswith("http://"),
                "ITL_SERVICE_URL begins with http://: nodes cannot tell this service from another",
            ),
        ]
        return [text for weak, text in found if weak]


def _unknown(variable: str, known: list[str]) -> str:
    close = difflib.get_close_matches(variable, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see docs/operate/settings.md"
    return f"unknown setting {variable}; {hint}"


def _invalid(location: tuple[int | str, ...], message: str) -> str:
    """Name the variable, never its value: it may be a secret."""
    message = message.removeprefix("Value error, ")
    return f"{PREFIX}{str(location[0]).upper()}: {message}" if location else message
