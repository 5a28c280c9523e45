"""Settings: read once at the start, frozen, passed down; never imported.

Every setting is one environment variable with the prefix `ITL_` (or a line of `.env`). The safe value is the
default; `Settings.warnings` names what an operator weakened. A variable that starts with `ITL_` and is none
of ours stops the start: a typo must not switch a control off.
"""

# Longer than 500 lines: each setting stands once, with its bounds and what it is checked against.
# Algorithms for: ca-key, tls-suite
from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from attestation.algorithms import CryptoPolicy, Use, exempt, judge
from attestation.api.said import said
from attestation.errors import RequestInvalid
from attestation.log_line import LogFormat
from attestation.machines import Role
from attestation.pki.profiles import SHORT_LIVED
from attestation.talos.versions import generation_of
from attestation_service.archive_location import Bucket, parse_location
from attestation_service.database_url import weaknesses, with_password_file
from attestation_service.kubernetes_clusters import ClusterRule, read_clusters

PREFIX = "ITL_"
SHORT_TOKEN_CHARACTERS = 32

# The other members of the platform share the prefix; a shell may well hold their variables beside ours.
FOREIGN_PREFIXES = (
    "ITL_API_",
    "ITL_CA_FILE",
    "ITL_OIDC_CLIENT_ID",
    "ITL_PROFILE",
    "ITL_REG_",
    "ITL_AGENT_",
    "ITL_WEB_",
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_loopback(host: str) -> bool:
    """Return True for an address that only this computer has."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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

    EXTENSION_PREFIX: ClassVar = f"{PREFIX}EXT_"
    """Of the settings of extensions: `ITL_EXT_<NAME>_…`."""

    _extension_values: dict[str, str] = PrivateAttr(default_factory=dict)
    _clusters: tuple[ClusterRule, ...] = PrivateAttr(default=())

    # Where things are
    db_url: str = "sqlite:////var/lib/itl-reg/db/machines.db"
    db_password_file: Path | None = None
    service_url: str = ""
    enrollment_ca_dir: Path = Path("/var/lib/itl-reg/ca")
    state_dir: Path | None = None
    config_cache_dir: Path = Path("/var/lib/itl-reg/configs")
    service_key: str | None = None
    service_key_next: str | None = None
    service_key_previous: str | None = None
    talos_version: str = "v1.9.5"
    config_lint: Literal["refuse", "warn"] = "refuse"
    config_kek: Annotated[tuple[str, ...], *CommaList] = ()
    config_encryption_key: SecretStr | None = None
    config_file_fallback: bool = False
    installer_image: str = ""
    iso_url: str = ""
    factory_url: str = "https://factory.talos.dev"
    factory_extensions: Annotated[tuple[str, ...], *CommaList] = ()
    factory_ca_file: Path | None = None

    # Operators: break-glass
    admin_token: SecretStr | None = None
    admin_token_file: Path | None = None
    break_glass_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 60
    break_glass_networks: Annotated[tuple[Network, ...], *CommaList] = ()
    break_glass_expires_at: AwareDatetime | None = None

    # Operators: OpenID Connect
    oidc_enabled: bool = True
    oidc_issuer: str = ""
    oidc_audience: Annotated[str, Field(min_length=1)] = "attestation-service"
    oidc_clients: Annotated[tuple[str, ...], *CommaList] = ("attestation-cli", "attestation-web")
    oidc_role_client: str = ""
    oidc_operator_role: Annotated[str, Field(min_length=1)] = "attestation-operator"
    oidc_viewer_role: Annotated[str, Field(min_length=1)] = "attestation-viewer"
    oidc_auditor_role: Annotated[str, Field(min_length=1)] = "attestation-auditor"
    oidc_metrics_role: Annotated[str, Field(min_length=1)] = "attestation-metrics"
    oidc_leeway_seconds: Annotated[int, Field(ge=0, le=120)] = 30
    oidc_jwks_seconds: Annotated[int, Field(ge=10, le=3600)] = 300
    oidc_ca_file: Path | None = None

    # Operators: client certificates, proxies, TLS
    operator_ca: Path | None = None
    operator_crl: Path | None = None
    trusted_proxies: Annotated[tuple[Network, ...], *CommaList] = ()
    proxy_secret: SecretStr | None = None
    proxy_secret_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_min_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.3"
    tls_ciphers: Annotated[tuple[str, ...], *CommaList] = ("TLS_AES_256_GCM_SHA384",)
    high_assurance: bool = False

    # Kubernetes
    kubernetes_clusters: str = ""
    runs_archive: str = ""
    runs_archive_days: Annotated[int, Field(ge=1, le=36_500)] = 3_650

    # Dual control
    dual_control_roles: Annotated[tuple[Role, ...], *CommaList] = ()
    dual_control_quorum: Annotated[int, Field(ge=2, le=20)] = 2
    dual_control_window_seconds: Annotated[int, Field(ge=30, le=86_400)] = 600
    dual_control_auth_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3600

    # Audit
    audit_origin: Annotated[str, Field(max_length=200, pattern=r"^[^\s+]*$")] = ""
    audit_ed25519_key: str | None = None
    audit_mldsa_key: str | None = None
    audit_checkpoint_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000
    audit_checkpoint_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    audit_witnesses: Annotated[tuple[str, ...], *CommaList] = ()
    audit_timestamp_url: str = ""
    audit_timestamp_ca: Path | None = None

    # Certificates
    enrollment_ca_key: str = ""
    enrollment_ca_algorithm: Literal["ecdsa-p384", "rsa-4096", "ml-dsa-87", "hybrid"] = "ecdsa-p384"
    enrollment_ca_passphrase_file: Path | None = None
    enrollment_ca_unencrypted: bool = False
    enrollment_ca_organization: Annotated[str, Field(max_length=64)] = ""
    enrollment_ca_country: Annotated[str, Field(pattern=r"^([A-Z]{2})?$")] = ""
    enrollment_ca_days: Annotated[int, Field(ge=30, le=9_125)] = 3_650
    enrollment_cert_hours: Annotated[int, Field(ge=1, le=168)] = 24
    enrollment_cert_days: Annotated[int, Field(ge=1, le=398)] | None = None
    enrollment_cert_minutes: Annotated[int, Field(ge=10, le=59)] | None = None
    no_rev_avail: Annotated[
        tuple[Literal["node-client", "node-server", "kubernetes-node"], ...], *CommaList
    ] = ()
    operator_certificates: bool = False
    operator_cert_days: Annotated[int, Field(ge=1, le=398)] = 30
    pkcs11_modules: Annotated[tuple[str, ...], *CommaList] = ()
    pkcs11_test_key: Annotated[str, Field(max_length=255)] = ""
    pki_url: str = ""
    crl_refresh_seconds: Annotated[int, Field(ge=60, le=86_400)] = 21_600
    crl_valid_seconds: Annotated[int, Field(ge=300, le=604_800)] = 86_400
    ocsp_valid_seconds: Annotated[int, Field(ge=10, le=86_400)] = 300
    assurance_oid_arc: Annotated[str, Field(pattern=r"^([0-2](\.(0|[1-9]\d{0,8}))+)?$", max_length=100)] = ""
    certificate_history_days: Annotated[int, Field(ge=1, le=3_650)] = 90
    hsm_ca_days: Annotated[int, Field(ge=1, le=36_500)] = 3_653
    hsm_certificates_per_day: Annotated[int, Field(ge=1, le=100_000_000)] = 250_000
    crypto_policy: Literal["default", "cnsa1", "cnsa2"] = "default"
    acme: Literal["off", "bound", "open"] = "off"
    acme_http_networks: Annotated[tuple[Network, ...], *CommaList] = ()
    acme_http_port: Annotated[int, Field(ge=1, le=65_535)] = 80
    compat_server_keys: bool = False
    compat_offline_bundle: bool = False
    compat_protocol_1: bool = False

    # Proof
    challenge_ttl_seconds: Annotated[int, Field(ge=5, le=60)] = 60
    reattest_seconds: Annotated[int, Field(ge=1, le=3600)] = 45
    reattest_spread_percent: Annotated[int, Field(ge=0, le=50)] = 10
    heartbeat_grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = 30
    firmware_blocklist_file: Path | None = None
    require_nonce: bool = True
    require_quote: bool = True
    tpm_allow_simulator: bool = False

    # Who vouches for TPMs
    tpm_verify_ca: bool = True
    tpm_verify_ca_strict: bool = False
    tpm_ca_bundle_dir: Path | None = None
    tpm_crl_dir: Path | None = None
    ak_ca_dir: Path | None = None
    hsm_vendor_dir: Path | None = None
    tpm_revocation: Literal["record", "fail-closed"] = "record"
    ek_expiry: Literal["record", "fail"] = "record"

    # Who vouches for confidential hardware
    collateral_fetch: bool = False
    collateral_dir: Path | None = None
    collateral_wait_seconds: Annotated[float, Field(ge=0, le=30)] = 3.0
    amd_kds_url: str = "https://kdsintf.amd.com"
    intel_pcs_url: str = "https://api.trustedservices.intel.com"
    tee_test_anchors: Path | None = None

    # Delivery
    require_encrypted_delivery: bool = True
    config_token_ttl_seconds: Annotated[int, Field(ge=60, le=86_400)] = 900
    config_repeat_seconds: Annotated[int, Field(ge=0, le=3600)] = 300
    pending_answer: Literal["partial", "retry", "empty"] = "partial"
    console_approval: bool = False

    # Limits
    rate_limits: bool = True
    rate_limit_address_per_second: Annotated[float, Field(gt=0, le=100_000)] = 100.0
    rate_limit_address_burst: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    rate_limit_machine_per_second: Annotated[float, Field(gt=0, le=1000)] = 1.0
    rate_limit_machine_burst: Annotated[int, Field(ge=1, le=10_000)] = 20
    body_kib_per_second: Annotated[int, Field(ge=64, le=1 << 20)] = 4_096
    body_memory_mib: Annotated[int, Field(ge=8, le=65_536)] = 64
    body_memory_mib_per_address: Annotated[int, Field(ge=4, le=65_536)] = 16
    body_seconds: Annotated[float, Field(ge=1, le=600)] = 10.0
    body_min_kib_per_second: Annotated[int, Field(ge=1, le=1_024)] = 16
    connections: Annotated[int, Field(ge=16, le=1_000_000)] = 4_096
    connections_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    head_seconds: Annotated[float, Field(ge=1, le=600)] = 10.0
    write_seconds: Annotated[float, Field(ge=1, le=600)] = 30.0
    requests_at_once: Annotated[int, Field(ge=1, le=100_000)] = 1_024
    pending_limit: Annotated[int, Field(ge=1)] = 10_000
    pending_limit_per_address: Annotated[int, Field(ge=1)] = 1_000
    pending_mib: Annotated[int, Field(ge=1, le=10_240)] = 128
    pending_mib_per_address: Annotated[int, Field(ge=1, le=10_240)] = 16
    pending_days: Annotated[int, Field(ge=1, le=3_650)] = 30
    introduced_mib: Annotated[int, Field(ge=1, le=10_240)] = 256
    introduced_mib_per_network: Annotated[int, Field(ge=1, le=10_240)] = 32
    registration_nets: Annotated[tuple[Network, ...], *CommaList] = ()

    tee_ephemeral_roles: Annotated[tuple[Role, ...], *CommaList] = ()

    # Extensions
    extensions: Annotated[tuple[str, ...], *CommaList] = ()

    # Housekeeping
    result_history: Annotated[int, Field(ge=1, le=10_000)] = 20
    event_log_cache_mib: Annotated[int, Field(ge=1, le=4096)] = 8
    maintenance_seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    shutdown_seconds: Annotated[int, Field(ge=1, le=600)] = 30
    shutdown_delay_seconds: Annotated[int, Field(ge=0, le=300)] = 0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = "auto"
    access_log: bool = True
    traces_url: str = ""
    traces_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0

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
            SettingsInvalid: Unknown `ITL_` variables, values that are not allowed, or nobody said whose service it
                is: each on a line.
        """
        found: dict[str, str] = {}
        if env_file is not None and env_file.is_file():
            found.update({k.upper(): v for k, v in dotenv_values(env_file).items() if v is not None})
        found.update({k.upper(): v for k, v in (os.environ if environ is None else environ).items()})
        ours = {k: v for k, v in found.items() if k.startswith(PREFIX) and not k.startswith(FOREIGN_PREFIXES)}
        extensions = {k: ours.pop(k) for k in sorted(ours) if k.startswith(cls.EXTENSION_PREFIX)}
        known = {PREFIX + name.upper(): name for name in cls.model_fields}
        unknown = sorted(ours.keys() - known.keys())
        if ours.get(f"{PREFIX}EXTENSIONS"):  # then they may be an extension's; only those know
            extensions |= {k: ours[k] for k in unknown}
            unknown = []
        faults = [_unknown(variable, list(known)) for variable in unknown]
        # An empty variable is an unset one: charts and compose files write `ITL_ISO_URL=""`.
        values: dict[str, Any] = {known[k]: v for k, v in ours.items() if k in known and v != ""}
        try:
            settings = cls(**values)
        except ValidationError as e:
            faults += [_invalid(error["loc"], said(error)) for error in e.errors()]
            if "service_url" not in values:
                faults += cls().unnamed()
            raise SettingsInvalid("\n".join(faults)) from None
        faults += settings.unnamed()
        if faults:
            raise SettingsInvalid("\n".join(faults))
        settings.extension_values.update((k, v) for k, v in extensions.items() if v != "")
        return settings

    @property
    def extension_values(self) -> dict[str, str]:
        """The settings of extensions, by variable: what they mean, only the extensions know."""
        return self._extension_values

    @field_validator(
        "service_url",
        "iso_url",
        "factory_url",
        "oidc_issuer",
        "audit_timestamp_url",
        "traces_url",
        "pki_url",
        "amd_kds_url",
        "intel_pcs_url",
    )
    @classmethod
    def _plain_url(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url

    @field_validator("factory_url")
    @classmethod
    def _everybody_may_read_it(cls, url: str) -> str:
        # It stands in answers, in the audit, in events to webhooks, and in configurations.
        if "@" in urlsplit(url).netloc:
            raise ValueError("must have no user and no password: everybody can read where an image is")
        return url

    @field_validator("talos_version")
    @classmethod
    def _known_version(cls, version: str) -> str:
        try:
            generation_of(version)
        except RequestInvalid as e:
            raise ValueError(str(e)) from None
        return version

    @field_validator("factory_extensions")
    @classmethod
    def _in_any_schematic(cls, extensions: tuple[str, ...]) -> tuple[str, ...]:
        if not extensions:
            return extensions
        from attestation.talos.schematic import Schematic  # only who sets some waits for a YAML library

        try:
            Schematic(official_extensions=extensions)
        except RequestInvalid as e:
            raise ValueError(str(e)) from None
        return extensions

    @field_validator("config_encryption_key")
    @classmethod
    def _thirty_two_bytes(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and re.fullmatch("[0-9A-Fa-f]{64}", key.get_secret_value()) is None:
            raise ValueError("64 hexadecimal digits, as `openssl rand -hex 32` writes them")
        return key

    @field_validator("traces_url")
    @classmethod
    def _traces_go_to_whom_they_are_for(cls, url: str) -> str:
        if not url:
            return url
        parts = urlsplit(url)
        if parts.username is not None or parts.query or parts.fragment or not parts.hostname:
            raise ValueError("a URL without user, query and fragment is needed")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ValueError("plain http is for this computer alone; https is needed")
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
            raise ValueError("needs the extra traces: itl-attestation-service[traces]")
        return url

    @field_validator("runs_archive")
    @classmethod
    def _archive_can_be_used(cls, url: str) -> str:
        if url and isinstance(parse_location(url), Bucket) and find_spec("botocore") is None:
            raise ValueError("needs the extra s3: itl-attestation-service[s3]")
        return url

    @field_validator("service_url", "iso_url", "factory_url", "pki_url")
    @classmethod
    def _no_slash(cls, url: str) -> str:
        # Not the issuer's: it is compared letter by letter with what tokens say (OpenID Connect Discovery §4.3).
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
    def _read_secret_files(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for secret in ("admin_token", "proxy_secret"):
                values = _with_secret_of_file(values, secret)
        return values

    @model_validator(mode="before")
    @classmethod
    def _name_password_file(cls, values: Any) -> Any:
        if isinstance(values, dict) and (file := values.get("db_password_file")):
            return {**values, "db_url": with_password_file(str(values.get("db_url", "")), str(file))}
        return values

    @model_validator(mode="after")
    def _one_round_trip(self) -> Self:
        if self.reattest_seconds >= self.challenge_ttl_seconds:
            raise ValueError(
                "ITL_REATTEST_SECONDS must be less than ITL_CHALLENGE_TTL_SECONDS, "
                "or every attestation needs a second round trip"
            )
        return self

    @model_validator(mode="after")
    def _time_for_requests(self) -> Self:
        if self.shutdown_delay_seconds >= self.shutdown_seconds:
            raise ValueError(
                "ITL_SHUTDOWN_DELAY_SECONDS is a part of ITL_SHUTDOWN_SECONDS, and must be less: requests need some too"
            )
        return self

    @model_validator(mode="after")
    def _one_change_of_keys(self) -> Self:
        if self.service_key_next and self.service_key_previous:
            raise ValueError(
                "ITL_SERVICE_KEY_NEXT and ITL_SERVICE_KEY_PREVIOUS: finish one change before the next"
            )
        if self.service_key_uri in (self.service_key_next, self.service_key_previous):
            raise ValueError("ITL_SERVICE_KEY_NEXT or _PREVIOUS is the key that signs now")
        return self

    @model_validator(mode="after")
    def _operators_consistent(self) -> Self:
        roles = (
            self.oidc_operator_role,
            self.oidc_viewer_role,
            self.oidc_auditor_role,
            self.oidc_metrics_role,
        )
        if len(set(roles)) != len(roles):
            # One word for two duties would let whoever reads also act.
            raise ValueError(
                "ITL_OIDC_OPERATOR_ROLE, _VIEWER_ROLE, _AUDITOR_ROLE and _METRICS_ROLE must differ"
            )
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("ITL_TLS_CERT_FILE and ITL_TLS_KEY_FILE belong together; set both or none")
        if self.operator_crl is not None and self.operator_ca is None:
            raise ValueError("ITL_OPERATOR_CRL revokes nothing without ITL_OPERATOR_CA")
        if self.operator_certificates and not self.has_ca:
            raise ValueError(
                "ITL_OPERATOR_CERTIFICATES needs a CA: ITL_ENROLLMENT_CA_PASSPHRASE_FILE or _KEY"
            )
        if self.operator_certificates and self.enrollment_ca_algorithm == "ml-dsa-87":
            raise ValueError(
                "ITL_OPERATOR_CERTIFICATES: no TLS knows ml-dsa-87; take hybrid, or another algorithm"
            )
        return self

    @model_validator(mode="after")
    def _one_lifetime(self) -> Self:
        if self.enrollment_cert_days is not None and self.enrollment_cert_minutes is not None:
            raise ValueError("ITL_ENROLLMENT_CERT_DAYS and ITL_ENROLLMENT_CERT_MINUTES: one of them")
        if self.no_rev_avail and (self.enrollment_cert_days or 0) > SHORT_LIVED.days:
            # A revocation that nobody sees must not matter for long (RFC 9608, 4).
            raise ValueError(
                f"ITL_NO_REV_AVAIL: certificates that cannot be revoked live {SHORT_LIVED.days} days at most; "
                "see ITL_ENROLLMENT_CERT_DAYS"
            )
        return self

    @model_validator(mode="after")
    def _software_only_for_development(self) -> Self:
        if self.tee_test_anchors is not None and not self.tpm_allow_simulator:
            raise ValueError(
                "ITL_TEE_TEST_ANCHORS believes hardware that software imitates: only with ITL_TPM_ALLOW_SIMULATOR=true"
            )
        return self

    @model_validator(mode="after")
    def _read_clusters(self) -> Self:
        try:
            found = read_clusters(self.kubernetes_clusters)
        except ValueError as e:
            raise ValueError(f"ITL_KUBERNETES_CLUSTERS: {e}") from None
        if self.oidc and any(rule.issuer == self.oidc_issuer for rule in found):
            # One token would name a person and a program.
            raise ValueError("ITL_KUBERNETES_CLUSTERS: the issuer of a cluster is not that of operators")
        self._clusters = found
        return self

    @model_validator(mode="after")
    def _acme_has_a_ca(self) -> Self:
        if self.acme != "off" and not self.has_ca:
            raise ValueError("ITL_ACME needs a CA: ITL_ENROLLMENT_CA_PASSPHRASE_FILE or _KEY")
        return self

    @model_validator(mode="after")
    def _no_name_of_kubernetes(self) -> Self:
        if self.enrollment_ca_organization.startswith("system:"):
            # It stands as O in certificates, and O is a group to an API server that believes the CA.
            raise ValueError(
                "ITL_ENROLLMENT_CA_ORGANIZATION must not begin with system:, which Kubernetes reads"
            )
        return self

    @model_validator(mode="after")
    def _within_crypto_policy(self) -> Self:
        policy = CryptoPolicy(self.crypto_policy)
        if policy is CryptoPolicy.DEFAULT:
            return self
        chosen = self.enrollment_ca_algorithm
        halves = ("ecdsa-p384", "ml-dsa-87") if chosen == "hybrid" else (chosen,)
        found = (
            *(("ITL_ENROLLMENT_CA_ALGORITHM", Use.CA, each) for each in halves if self.has_ca),
            *(("ITL_TLS_CIPHERS", Use.TLS_SUITE, each) for each in self.tls_ciphers if self.tls_cert_file),
            *((("ITL_COMPAT_SERVER_KEYS", Use.SERVER_KEY, "sha256"),) if self.compat_server_keys else ()),
            *(
                (("ITL_COMPAT_OFFLINE_BUNDLE", Use.SERVER_KEY, "sha256"),)
                if self.compat_offline_bundle
                else ()
            ),
        )
        refused = [f"{variable}: {reason}" for variable, *what in found if (reason := judge(policy, *what))]
        if refused:
            raise ValueError("; ".join(refused))
        return self

    @model_validator(mode="after")
    def _high_assurance_whole(self) -> Self:
        if not self.high_assurance:
            return self
        if self.tls_cert_file is None and self.proxy_secret is None:
            raise ValueError(
                "ITL_HIGH_ASSURANCE=true would refuse every request: set ITL_TLS_CERT_FILE and ITL_TLS_KEY_FILE, "
                "or ITL_PROXY_SECRET_FILE for the proxy where TLS ends"
            )
        if weak := self.weakened():
            raise ValueError(f"ITL_HIGH_ASSURANCE=true allows no weakened control: {'; '.join(weak)}")
        return self

    def unnamed(self) -> list[str]:
        """Say, one line each, what nobody has named although others will read it: no default could be right."""
        found = []
        if not self.service_url:
            found.append(
                "ITL_SERVICE_URL is not set: the address at which machines and operators reach this service, e.g. "
                "https://attest.example.org. Results, certificates and the audit log carry it. To try the service on "
                "this computer alone: ITL_SERVICE_URL=http://127.0.0.1:8080"
            )
        elif self.has_ca and not self.is_development:
            missing = [
                variable
                for variable, value in (
                    ("ITL_ENROLLMENT_CA_ORGANIZATION", self.enrollment_ca_organization),
                    ("ITL_ENROLLMENT_CA_COUNTRY", self.enrollment_ca_country),
                )
                if not value
            ]
            if missing:
                found.append(
                    f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set: whose CA it is, and in "
                    "which country, stands in its name and in every certificate, for good; e.g. Example Ltd and DE"
                )
        return found

    @property
    def clusters(self) -> tuple[ClusterRule, ...]:
        """The clusters whose nodes' requests are judged here."""
        return self._clusters

    def cluster(self, cluster_id: str) -> ClusterRule | None:
        """Return the rule of one cluster; None where none of its requests is judged here."""
        return next((rule for rule in self._clusters if rule.cluster_id == cluster_id), None)

    @property
    def is_development(self) -> bool:
        """True where the service's address is one that only this computer has: nobody else can rely on it."""
        return is_loopback(urlsplit(self.service_url).hostname or "")

    @property
    def ca_organization(self) -> str:
        """O in the names of CAs and certificates."""
        return self.enrollment_ca_organization or "Development"

    @property
    def ca_country(self) -> str:
        """C in them; ZZ is no country (ISO 3166-1 leaves it to its users)."""
        return self.enrollment_ca_country or "ZZ"

    @property
    def oidc(self) -> bool:
        """True where operators may come with tokens of an identity provider."""
        return self.oidc_enabled and bool(self.oidc_issuer)

    @property
    def service_key_uri(self) -> str:
        """URI of the key that signs directives and results."""
        return self.service_key or f"file:{self.enrollment_ca_dir / 'service-key.pem'}"

    @property
    def keeps_configurations(self) -> bool:
        """True where base configurations are kept in the database, sealed; else they are files."""
        return bool(self.config_kek) or self.config_encryption_key is not None

    @property
    def archive_url(self) -> str:
        """Where sealed bundles are kept: a directory beside that of the keys, unless chosen."""
        return self.runs_archive or (self.enrollment_ca_dir.absolute().parent / "bundles").as_uri()

    @property
    def has_ca(self) -> bool:
        """True where the service has a CA of its own and issues certificates."""
        named = bool(self.enrollment_ca_key) or self.enrollment_ca_passphrase_file is not None
        return named or self.enrollment_ca_unencrypted

    @property
    def issues_to_operators(self) -> bool:
        """True where the service has a CA of its own for operators too."""
        return self.has_ca and self.operator_certificates

    @property
    def revocation_url(self) -> str:
        """Base of the addresses in certificates where revocation and CA certificates are found, without `/pki`."""
        return self.pki_url or self.service_url

    @property
    def audit_log_origin(self) -> str:
        """Name of the audit log and of its keys: host of the service's URL with `/audit`, unless chosen."""
        return self.audit_origin or f"{urlsplit(self.service_url).netloc.rpartition('@')[2]}/audit"

    @property
    def audit_ed25519_uri(self) -> str:
        """URI of the Ed25519 key that signs checkpoints."""
        return self.audit_ed25519_key or f"file:{self.enrollment_ca_dir / 'audit-ed25519.pem'}"

    @property
    def audit_mldsa_uri(self) -> str:
        """URI of the ML-DSA-44 key that signs checkpoints."""
        return self.audit_mldsa_key or f"file:{self.enrollment_ca_dir / 'audit-mldsa44.pem'}"

    def weakened(self) -> list[str]:
        """Say, one line each, which controls are weaker than they should be; high assurance allows none."""
        token = self.admin_token.get_secret_value() if self.admin_token else None
        found = [
            (
                self.tpm_allow_simulator,
                "ITL_TPM_ALLOW_SIMULATOR=true: software TPMs are accepted; for development only",
            ),
            (
                self.tee_test_anchors is not None,
                "ITL_TEE_TEST_ANCHORS: confidential hardware made of software is believed; for development only",
            ),
            (
                not self.tpm_verify_ca,
                "ITL_TPM_VERIFY_CA=false: no vendor's word about a TPM is asked for; for development only",
            ),
            (
                not self.require_encrypted_delivery,
                "ITL_REQUIRE_ENCRYPTED_DELIVERY=false: configurations with cluster secrets may leave in plaintext",
            ),
            (
                self.enrollment_ca_unencrypted,
                "ITL_ENROLLMENT_CA_UNENCRYPTED=true: the keys of the CA lie on disk in plaintext; for development only",
            ),
            (
                self.compat_server_keys,
                "ITL_COMPAT_SERVER_KEYS=true: keys of machines may be made here, outside their TPM",
            ),
            (
                self.compat_offline_bundle,
                "ITL_COMPAT_OFFLINE_BUNDLE=true: a machine's key and configuration may leave in one file",
            ),
            (
                self.compat_protocol_1,
                "ITL_COMPAT_PROTOCOL_1=true: old agents get orders and configurations that others can be made to obey",
            ),
            (not self.rate_limits, "ITL_RATE_LIMITS=false: strangers are not slowed down"),
            (
                token is not None and len(token) < SHORT_TOKEN_CHARACTERS,
                f"ITL_ADMIN_TOKEN is shorter than {SHORT_TOKEN_CHARACTERS} characters: it can be guessed",
            ),
            (
                self.oidc and self.oidc_issuer.startswith("http://"),
                "ITL_OIDC_ISSUER begins with http://: a stranger on the way can name operators",
            ),
            (
                self.service_url.startswith("http://"),
                "ITL_SERVICE_URL begins with http://: nodes cannot tell this service from another",
            ),
            (
                self.factory_url.startswith("http://"),
                "ITL_FACTORY_URL begins with http://: a stranger on the way can give machines another image",
            ),
            (
                self.proxy_secret is not None
                and len(self.proxy_secret.get_secret_value()) < SHORT_TOKEN_CHARACTERS,
                f"ITL_PROXY_SECRET is shorter than {SHORT_TOKEN_CHARACTERS} characters: it can be guessed",
            ),
            (
                self.tls_cert_file is not None and self.tls_min_version != "TLSv1.3",
                "ITL_TLS_MIN_VERSION=TLSv1.2: older connections are accepted",
            ),
        ]
        return [*(text for weak, text in found if weak), *weaknesses(self.db_url)]

    def notices(self) -> list[str]:
        """Say, one line each, what an operator may miss at a start; nothing in it is weaker than it should be."""
        named = "ITL_ENROLLMENT_CA_PASSPHRASE_FILE or ITL_ENROLLMENT_CA_KEY"
        return [] if self.has_ca else [f"no certificates are issued: {named} is not set"]

    def warnings(self) -> list[str]:
        """Say, one line each, what an operator should know at every start: weakened controls, and what is missing."""
        found = [
            (
                not (self.admin_token or self.oidc or self.operator_ca),
                "operator routes answer 503 until ITL_OIDC_ISSUER, ITL_OPERATOR_CA or ITL_ADMIN_TOKEN is set",
            ),
            (
                bool(self.dual_control_roles) and not (self.oidc or self.operator_ca),
                "ITL_DUAL_CONTROL_ROLES is set, but only break-glass can log in, and it never counts as a vote",
            ),
            (
                self.operator_ca is not None and self.operator_crl is None,
                "ITL_OPERATOR_CA is set without ITL_OPERATOR_CRL: a certificate cannot be taken back before it expires",
            ),
            (
                bool(self.trusted_proxies)
                and (self.operator_ca is not None or self.issues_to_operators)
                and self.proxy_secret is None,
                "ITL_TRUSTED_PROXIES is set without ITL_PROXY_SECRET: proxies are not believed about certificates",
            ),
        ]
        found.append(
            (
                bool(self.no_rev_avail),
                f"ITL_NO_REV_AVAIL={','.join(self.no_rev_avail)}: no relying party sees a revocation or a lock",
            )
        )
        outside = ", ".join(exempt(CryptoPolicy(self.crypto_policy)))
        see = f"attestation crypto inventory --policy {self.crypto_policy}"
        found.append(
            (
                bool(outside),
                f"ITL_CRYPTO_POLICY={self.crypto_policy} lets through what its suite does not name: {outside}; {see}",
            )
        )
        return [*self.weakened(), *(text for missing, text in found if missing)]


def _with_secret_of_file(values: dict[str, Any], secret: str) -> dict[str, Any]:
    """Return *values* with the setting *secret* read from the file that `<secret>_file` names."""
    name = values.get(f"{secret}_file")
    if not name:
        return values
    variable = f"{PREFIX}{secret.upper()}"
    if values.get(secret):
        raise ValueError(f"{variable} and {variable}_FILE are both set; keep one")
    try:
        found = Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"{variable}_FILE: cannot read {name}: {type(e).__name__}") from None
    if not found:
        raise ValueError(f"{variable}_FILE: {name} is empty")
    return {**values, secret: found}


def _unknown(variable: str, known: list[str]) -> str:
    # What all of them begin with makes any two alike: by default far ones are named too.
    close = difflib.get_close_matches(variable, known, n=1, cutoff=0.85)
    hint = (
        f"did you mean {close[0]}?"
        if close
        else "`attestation-service --help` says where all of them are explained"
    )
    return f"unknown setting {variable}; {hint}"


def _invalid(location: tuple[int | str, ...], words: str) -> str:
    """Name the variable, never its value: it may be a secret."""
    return f"{PREFIX}{str(location[0]).upper()}: {words}" if location else words
