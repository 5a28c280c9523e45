"""Settings: every documented one loads, a typo stops the start, the safe value is the default."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from attestation_service.main import main
from attestation_service.settings import Settings, SettingsInvalid

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "settings.md"
DOCUMENTED = sorted(
    set(re.findall(r"^\| `(ITL_[A-Z0-9_]+)`", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
)

SAMPLES: dict[str, tuple[str, Any]] = {
    "ITL_EXTENSIONS": ("one, two", ("one", "two")),
    "ITL_DB_URL": ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    "ITL_SERVICE_URL": ("https://a.example/", "https://a.example"),
    "ITL_ENROLLMENT_CA_DIR": ("/ca", Path("/ca")),
    "ITL_STATE_DIR": ("/state", Path("/state")),
    "ITL_ENROLLMENT_CA_KEY": ("pkcs11:token=T", "pkcs11:token=T"),
    "ITL_ENROLLMENT_CA_PASSPHRASE_FILE": ("/run/pass", Path("/run/pass")),
    "ITL_ENROLLMENT_CA_UNENCRYPTED": ("true", True),
    "ITL_ENROLLMENT_CA_ALGORITHM": ("hybrid", "hybrid"),
    "ITL_ENROLLMENT_CA_ORGANIZATION": ("Example", "Example"),
    "ITL_ENROLLMENT_CA_COUNTRY": ("DE", "DE"),
    "ITL_ENROLLMENT_CA_DAYS": ("365", 365),
    "ITL_ENROLLMENT_CERT_HOURS": ("12", 12),
    "ITL_ENROLLMENT_CERT_DAYS": ("30", 30),
    "ITL_ENROLLMENT_CERT_MINUTES": ("30", 30),
    "ITL_NO_REV_AVAIL": ("node-client, kubernetes-node", ("node-client", "kubernetes-node")),
    "ITL_OPERATOR_CERT_DAYS": ("7", 7),
    "ITL_PKCS11_MODULES": ("softhsm=/a.so, yubi=/b.so", ("softhsm=/a.so", "yubi=/b.so")),
    "ITL_PKCS11_TEST_KEY": ("itl-self-test", "itl-self-test"),
    "ITL_PKI_URL": ("http://pki.example/", "http://pki.example"),
    "ITL_CRL_REFRESH_SECONDS": ("60", 60),
    "ITL_CRL_VALID_SECONDS": ("3600", 3600),
    "ITL_OCSP_VALID_SECONDS": ("60", 60),
    "ITL_ASSURANCE_OID_ARC": ("1.3.6.1.4.1.99999.7", "1.3.6.1.4.1.99999.7"),
    "ITL_CERTIFICATE_HISTORY_DAYS": ("7", 7),
    "ITL_HSM_CA_DAYS": ("30", 30),
    "ITL_HSM_CERTIFICATES_PER_DAY": ("10", 10),
    "ITL_CRYPTO_POLICY": ("cnsa1", "cnsa1"),
    "ITL_ACME_HTTP_NETWORKS": ("10.0.0.0/8,127.0.0.1/32", ("10.0.0.0/8", "127.0.0.1/32")),
    "ITL_ACME_HTTP_PORT": ("8080", 8080),
    "ITL_COMPAT_SERVER_KEYS": ("true", True),
    "ITL_COMPAT_OFFLINE_BUNDLE": ("true", True),
    "ITL_COMPAT_PROTOCOL_1": ("true", True),
    "ITL_SERVICE_KEY": ("file:/k.pem", "file:/k.pem"),
    "ITL_SERVICE_KEY_NEXT": ("file:/next.pem", "file:/next.pem"),
    "ITL_SERVICE_KEY_PREVIOUS": ("file:/previous.pem", "file:/previous.pem"),
    "ITL_CONFIG_CACHE_DIR": ("/configs", Path("/configs")),
    "ITL_TALOS_VERSION": ("v1.13.9", "v1.13.9"),
    "ITL_CONFIG_LINT": ("warn", "warn"),
    "ITL_CONFIG_KEK": ("file:/new, file:/old", ("file:/new", "file:/old")),
    "ITL_CONFIG_ENCRYPTION_KEY": ("ab" * 32, SecretStr("ab" * 32)),
    "ITL_CONFIG_FILE_FALLBACK": ("true", True),
    "ITL_INSTALLER_IMAGE": ("image:1", "image:1"),
    "ITL_ISO_URL": ("https://a.example/talos.iso", "https://a.example/talos.iso"),
    "ITL_FACTORY_URL": ("https://factory.example/", "https://factory.example"),
    "ITL_FACTORY_EXTENSIONS": ("siderolabs/drbd, siderolabs/zfs", ("siderolabs/drbd", "siderolabs/zfs")),
    "ITL_FACTORY_CA_FILE": ("/ca.pem", Path("/ca.pem")),
    "ITL_ADMIN_TOKEN": ("t" * 40, SecretStr("t" * 40)),
    "ITL_BREAK_GLASS_PER_MINUTE": ("5", 5),
    "ITL_BREAK_GLASS_NETWORKS": ("10.0.0.0/8", ("10.0.0.0/8",)),
    "ITL_BREAK_GLASS_EXPIRES_AT": ("2027-01-01T00:00:00Z", datetime(2027, 1, 1, tzinfo=UTC)),
    "ITL_OIDC_ENABLED": ("false", False),
    "ITL_OIDC_ISSUER": ("https://sts.example/realms/itl", "https://sts.example/realms/itl"),
    "ITL_OIDC_AUDIENCE": ("attest", "attest"),
    "ITL_OIDC_CLIENTS": ("a, b", ("a", "b")),
    "ITL_OIDC_ROLE_CLIENT": ("c", "c"),
    "ITL_OIDC_OPERATOR_ROLE": ("ops", "ops"),
    "ITL_OIDC_VIEWER_ROLE": ("view", "view"),
    "ITL_OIDC_AUDITOR_ROLE": ("audit", "audit"),
    "ITL_OIDC_METRICS_ROLE": ("scraper", "scraper"),
    "ITL_OIDC_LEEWAY_SECONDS": ("5", 5),
    "ITL_OIDC_JWKS_SECONDS": ("600", 600),
    "ITL_OIDC_CA_FILE": ("/sts.pem", Path("/sts.pem")),
    "ITL_OPERATOR_CA": ("/operators.pem", Path("/operators.pem")),
    "ITL_PROXY_SECRET": ("p" * 40, SecretStr("p" * 40)),
    "ITL_TLS_MIN_VERSION": ("TLSv1.2", "TLSv1.2"),
    "ITL_TLS_CIPHERS": (
        "TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256",
        ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"),
    ),
    "ITL_HIGH_ASSURANCE": ("true", True),
    "ITL_KUBERNETES_CLUSTERS": (" ", " "),
    "ITL_RUNS_ARCHIVE": (
        "s3://bundles?endpoint=https://s3.example",
        "s3://bundles?endpoint=https://s3.example",
    ),
    "ITL_RUNS_ARCHIVE_DAYS": ("30", 30),
    "ITL_DUAL_CONTROL_ROLES": ("controlplane, worker-infra", ("controlplane", "worker-infra")),
    "ITL_DUAL_CONTROL_QUORUM": ("3", 3),
    "ITL_DUAL_CONTROL_AUTH_SECONDS": ("900", 900),
    "ITL_DUAL_CONTROL_WINDOW_SECONDS": ("60", 60),
    "ITL_AUDIT_ORIGIN": ("log.example/audit", "log.example/audit"),
    "ITL_AUDIT_ED25519_KEY": ("file:/a.pem", "file:/a.pem"),
    "ITL_AUDIT_MLDSA_KEY": ("file:/b.pem", "file:/b.pem"),
    "ITL_AUDIT_CHECKPOINT_ENTRIES": ("10", 10),
    "ITL_AUDIT_CHECKPOINT_SECONDS": ("5", 5),
    "ITL_AUDIT_WITNESSES": ("w+0a+AA https://w.example", ("w+0a+AA https://w.example",)),
    "ITL_TRACES_URL": ("http://127.0.0.1:4318/v1/traces", "http://127.0.0.1:4318/v1/traces"),
    "ITL_TRACES_RATIO": ("0.1", 0.1),
    "ITL_AUDIT_TIMESTAMP_URL": ("https://tsa.example/", "https://tsa.example/"),
    "ITL_AUDIT_TIMESTAMP_CA": ("/tsa.pem", Path("/tsa.pem")),
    "ITL_CHALLENGE_TTL_SECONDS": ("50", 50),
    "ITL_REATTEST_SECONDS": ("30", 30),
    "ITL_REQUIRE_NONCE": ("true", True),
    "ITL_REQUIRE_QUOTE": ("1", True),
    "ITL_TPM_ALLOW_SIMULATOR": ("yes", True),
    "ITL_TPM_VERIFY_CA": ("false", False),
    "ITL_TPM_VERIFY_CA_STRICT": ("true", True),
    "ITL_TPM_CA_BUNDLE_DIR": ("/bundle", Path("/bundle")),
    "ITL_AK_CA_DIR": ("/ak-cas", Path("/ak-cas")),
    "ITL_HSM_VENDOR_DIR": ("/makers", Path("/makers")),
    "ITL_COLLATERAL_FETCH": ("true", True),
    "ITL_COLLATERAL_DIR": ("/collateral", Path("/collateral")),
    "ITL_COLLATERAL_WAIT_SECONDS": ("1.5", 1.5),
    "ITL_AMD_KDS_URL": ("https://kds.example", "https://kds.example"),
    "ITL_INTEL_PCS_URL": ("https://pccs.example", "https://pccs.example"),
    "ITL_TEE_TEST_ANCHORS": ("/test-anchors", Path("/test-anchors")),
    "ITL_TPM_CRL_DIR": ("/crls", Path("/crls")),
    "ITL_TPM_REVOCATION": ("fail-closed", "fail-closed"),
    "ITL_EK_EXPIRY": ("fail", "fail"),
    "ITL_REQUIRE_ENCRYPTED_DELIVERY": ("false", False),
    "ITL_CONFIG_TOKEN_TTL_SECONDS": ("60", 60),
    "ITL_CONFIG_REPEAT_SECONDS": ("0", 0),
    "ITL_PENDING_ANSWER": ("retry", "retry"),
    "ITL_CONSOLE_APPROVAL": ("true", True),
    "ITL_RATE_LIMITS": ("false", False),
    "ITL_RATE_LIMIT_ADDRESS_PER_SECOND": ("2.5", 2.5),
    "ITL_RATE_LIMIT_ADDRESS_BURST": ("7", 7),
    "ITL_RATE_LIMIT_MACHINE_PER_SECOND": ("0.1", 0.1),
    "ITL_RATE_LIMIT_MACHINE_BURST": ("3", 3),
    "ITL_BODY_KIB_PER_SECOND": ("128", 128),
    "ITL_BODY_MEMORY_MIB": ("32", 32),
    "ITL_BODY_MEMORY_MIB_PER_ADDRESS": ("8", 8),
    "ITL_BODY_SECONDS": ("3", 3.0),
    "ITL_BODY_MIN_KIB_PER_SECOND": ("4", 4),
    "ITL_CONNECTIONS": ("99", 99),
    "ITL_CONNECTIONS_PER_ADDRESS": ("9", 9),
    "ITL_HEAD_SECONDS": ("5", 5.0),
    "ITL_WRITE_SECONDS": ("6", 6.0),
    "ITL_REQUESTS_AT_ONCE": ("77", 77),
    "ITL_PENDING_LIMIT": ("5", 5),
    "ITL_PENDING_LIMIT_PER_ADDRESS": ("2", 2),
    "ITL_PENDING_MIB": ("3", 3),
    "ITL_PENDING_MIB_PER_ADDRESS": ("4", 4),
    "ITL_PENDING_DAYS": ("7", 7),
    "ITL_INTRODUCED_MIB": ("5", 5),
    "ITL_INTRODUCED_MIB_PER_NETWORK": ("6", 6),
    "ITL_TEE_EPHEMERAL_ROLES": ("worker-app, generic", ("worker-app", "generic")),
    "ITL_REGISTRATION_NETS": ("10.0.0.0/8", ("10.0.0.0/8",)),
    "ITL_TRUSTED_PROXIES": ("10.0.0.0/8, fd00::/8,", ("10.0.0.0/8", "fd00::/8")),
    "ITL_RESULT_HISTORY": ("9", 9),
    "ITL_EVENT_LOG_CACHE_MIB": ("64", 64),
    "ITL_HEARTBEAT_GRACE_SECONDS": ("30", 30),
    "ITL_REATTEST_SPREAD_PERCENT": ("5", 5),
    "ITL_FIRMWARE_BLOCKLIST_FILE": ("/advisories.json", Path("/advisories.json")),
    "ITL_MAINTENANCE_SECONDS": ("0.5", 0.5),
    "ITL_SHUTDOWN_SECONDS": ("3", 3),
    "ITL_SHUTDOWN_DELAY_SECONDS": ("5", 5),
    "ITL_LOG_LEVEL": ("warning", "warning"),
    "ITL_LOG_FORMAT": ("json", "json"),
    "ITL_ACCESS_LOG": ("0", False),
}
"""A value unlike the default for each setting, as text and as read."""


NAMED = {
    "ITL_SERVICE_URL": "https://attest.example",
    "ITL_ENROLLMENT_CA_ORGANIZATION": "Sample",
    "ITL_ENROLLMENT_CA_COUNTRY": "FR",
}
"""Whose service it is: has no default."""


def load(**environ: str) -> Settings:
    """Load from these variables alone, and names where they give none."""
    given = {name.upper() for name in environ}
    return Settings.load({k: v for k, v in NAMED.items() if k not in given} | environ, env_file=None)


@pytest.mark.threat("T165")
def test_whose_service_it_is_has_no_default() -> None:
    """Not the address, nor the names of its CA; but for an address that only this computer has."""
    with pytest.raises(
        SettingsInvalid, match=r"ITL_SERVICE_URL is not set: .*e\.g\. https://.*127\.0\.0\.1"
    ) as bare:
        Settings.load({}, env_file=None)
    with pytest.raises(
        SettingsInvalid, match=r"ITL_ENROLLMENT_CA_ORGANIZATION and .*COUNTRY are not set: whose CA"
    ):
        Settings.load({**ADDRESS, **CA}, env_file=None)
    with pytest.raises(SettingsInvalid, match=r"^ITL_ENROLLMENT_CA_COUNTRY is not set"):
        Settings.load({**ADDRESS, **CA, "ITL_ENROLLMENT_CA_ORGANIZATION": "Sample"}, env_file=None)
    assert "itlusions" not in str(bare.value).lower()
    # Without a CA there is nothing to be named.
    assert not Settings.load(ADDRESS, env_file=None).is_development
    for local in ("http://127.0.0.1:8080", "https://localhost", "http://[::1]:1"):
        found = Settings.load({"ITL_SERVICE_URL": local, **CA}, env_file=None)
        assert (found.ca_organization, found.ca_country) == ("Development", "ZZ")
    for other in (
        "http://0.0.0.0:8080",
        "http://127.0.0.1.example",
        "http://10.0.0.1",
        "https://localhost.example",
    ):
        with pytest.raises(SettingsInvalid, match="ORGANIZATION"):
            Settings.load({"ITL_SERVICE_URL": other, **CA}, env_file=None)


ADDRESS = {"ITL_SERVICE_URL": "https://attest.example"}
CA = {"ITL_ENROLLMENT_CA_PASSPHRASE_FILE": "/run/passphrase"}


def test_documentation_lists_exactly_the_settings() -> None:
    """Nothing is hidden, nothing is invented."""
    assert {f"ITL_{name.upper()}" for name in Settings.model_fields} == set(DOCUMENTED)


TOGETHER = {
    "ITL_ACME",
    "ITL_DB_PASSWORD_FILE",
    "ITL_ADMIN_TOKEN_FILE",
    "ITL_PROXY_SECRET_FILE",
    "ITL_TLS_CERT_FILE",
    "ITL_TLS_KEY_FILE",
    "ITL_OPERATOR_CRL",
    "ITL_OPERATOR_CERTIFICATES",
    "ITL_HIGH_ASSURANCE",
    "ITL_TEE_TEST_ANCHORS",
}
"""Settings that mean nothing alone; they have tests of their own."""


def test_acme_needs_a_ca() -> None:
    """What it would issue with is there, or the service says at its start that it is not."""
    assert load(ITL_ACME="bound", ITL_ENROLLMENT_CA_UNENCRYPTED="true").acme == "bound"
    with pytest.raises(SettingsInvalid, match="ITL_ACME needs a CA"):
        load(ITL_ACME="open")


@pytest.mark.parametrize("variable", [v for v in DOCUMENTED if v not in TOGETHER])
def test_setting_loads_from_the_environment(variable: str) -> None:
    """Each documented variable sets its field, in any case of letters, and has a sample here."""
    text, expected = SAMPLES[variable]
    for name in (variable, variable.lower()):
        found = getattr(load(**{name: text}), variable.removeprefix("ITL_").lower())
        if isinstance(found, tuple):
            found = tuple(str(item) for item in found)
        assert found == expected


@pytest.mark.parametrize("variable", [v for v in DOCUMENTED if v not in NAMED])
def test_empty_is_unset(variable: str) -> None:
    """Charts and compose files write empty variables; they change nothing."""
    assert load(**{variable: ""}) == load()


@pytest.mark.threat("T30")
def test_unknown_variable_stops_and_names_the_nearest() -> None:
    """A typo must not switch a control off."""
    with pytest.raises(SettingsInvalid, match=r"DELIVERI; did you mean ITL_REQUIRE_ENCRYPTED_DELIVERY\?"):
        load(ITL_REQUIRE_ENCRYPTED_DELIVERI="true")
    for far in ("ITL_ZZZZZZZ", "ITL_PORT", "ITL_CA_CERT", "ITL_DEBUG"):
        with pytest.raises(
            SettingsInvalid, match=rf"^unknown setting {far}; `attestation-service --help` says where"
        ):
            load(**{far: "1"})


def test_variables_of_other_members_are_passed_over() -> None:
    """The CLI's address in the same shell is no reason not to start."""
    assert load(ITL_API_URL="http://localhost:8080", ITL_WEB_PORT="1") == load()


def test_wrong_value_is_named_without_being_repeated() -> None:
    """A secret in the wrong variable does not end up on a screen."""
    with pytest.raises(SettingsInvalid) as caught:
        load(ITL_CHALLENGE_TTL_SECONDS="hunter2-hunter2")
    assert "ITL_CHALLENGE_TTL_SECONDS" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_all_faults_are_told_at_once() -> None:
    """Each on a line: who has mended the first is not told of the second only then."""
    typo = {"ITL_ADMIN_TOKENN": "x", "ITL_PORT": "1"}
    wrong = {"ITL_LOG_LEVEL": "loud", "ITL_ISO_URL": "there"}
    first = ["unknown setting ITL_ADMIN_TOKENN", "unknown setting ITL_PORT"]
    for given, faults in (
        (typo, [*first, "ITL_SERVICE_URL is not set"]),
        (wrong, ["ITL_ISO_URL", "ITL_LOG_LEVEL", "ITL_SERVICE_URL is not set"]),
        (typo | wrong | NAMED, [*first, "ITL_ISO_URL", "ITL_LOG_LEVEL"]),
    ):
        with pytest.raises(SettingsInvalid) as caught:
            Settings.load(given, env_file=None)
        lines = str(caught.value).splitlines()
        assert sorted(re.split("[;:]| is not", line)[0] for line in lines) == sorted(
            fault.removesuffix(" is not set") for fault in faults
        )


@pytest.mark.parametrize(
    "environ",
    [
        {"ITL_CHALLENGE_TTL_SECONDS": "61"},
        {"ITL_CHALLENGE_TTL_SECONDS": "4"},
        {"ITL_REATTEST_SECONDS": "60"},
        {"ITL_SHUTDOWN_SECONDS": "5", "ITL_SHUTDOWN_DELAY_SECONDS": "5"},
        {"ITL_NO_REV_AVAIL": "node-client", "ITL_ENROLLMENT_CERT_DAYS": "8"},
        {"ITL_NO_REV_AVAIL": "operator"},
        {"ITL_ENROLLMENT_CERT_MINUTES": "30", "ITL_ENROLLMENT_CERT_DAYS": "8"},
        {"ITL_REQUIRE_NONCE": "false"},
        {"ITL_REQUIRE_QUOTE": "false"},
        {"ITL_SERVICE_URL": "attest.example"},
        {"ITL_FACTORY_URL": "https://user:word@factory.example"},
        {"ITL_TRUSTED_PROXIES": "10.0.0.0/8,proxy"},
        {"ITL_PENDING_ANSWER": "full"},
        {"ITL_RATE_LIMIT_MACHINE_PER_SECOND": "0"},
        {"ITL_LOG_LEVEL": "loud"},
        {"ITL_LOG_FORMAT": "xml"},
    ],
    ids=str,
)
def test_values_that_cannot_be_right_stop(environ: dict[str, str]) -> None:
    """Out of range, contradicting, or of no known form."""
    with pytest.raises(SettingsInvalid, match=next(iter(environ)).split("_")[1]):
        load(**environ)


def test_token_from_a_file(tmp_path: Path) -> None:
    """`_FILE` holds the token with a line end; both variables together are a contradiction."""
    file = tmp_path / "token"
    file.write_text("a" * 40 + "\n")
    settings = load(ITL_ADMIN_TOKEN_FILE=str(file))
    assert settings.admin_token == SecretStr("a" * 40)
    with pytest.raises(SettingsInvalid, match="both"):
        load(ITL_ADMIN_TOKEN_FILE=str(file), ITL_ADMIN_TOKEN="b" * 40)
    with pytest.raises(SettingsInvalid, match="cannot read"):
        load(ITL_ADMIN_TOKEN_FILE=str(tmp_path / "absent"))
    file.write_text("\n")
    with pytest.raises(SettingsInvalid, match="empty"):
        load(ITL_ADMIN_TOKEN_FILE=str(file))


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    """A line of `.env` is a default of the directory, and its unknown names stop the start too."""
    file = tmp_path / ".env"
    file.write_text("ITL_RESULT_HISTORY=5\nITL_PENDING_LIMIT=6\n")
    settings = Settings.load({"ITL_RESULT_HISTORY": "7", **ADDRESS}, env_file=file)
    assert (settings.result_history, settings.pending_limit) == (7, 6)
    file.write_text("ITL_RESULT_HISTORI=5\n")
    with pytest.raises(SettingsInvalid, match="ITL_RESULT_HISTORY"):
        Settings.load({}, env_file=file)


def test_settings_are_frozen_and_hide_the_token() -> None:
    """Nothing changes after the start; the token is in no text of them."""
    settings = load(ITL_ADMIN_TOKEN="canary-token-canary-token-canary-token")
    with pytest.raises(ValueError, match="frozen"):
        settings.rate_limits = False
    assert "canary" not in repr(settings)


@pytest.mark.threat("T30", "T184")
@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"ITL_TPM_ALLOW_SIMULATOR": "true"}, "SIMULATOR"),
        ({"ITL_TPM_VERIFY_CA": "false"}, "VERIFY_CA"),
        ({"ITL_REQUIRE_ENCRYPTED_DELIVERY": "false"}, "ENCRYPTED_DELIVERY"),
        ({"ITL_RATE_LIMITS": "false"}, "RATE_LIMITS"),
        ({"ITL_ENROLLMENT_CA_UNENCRYPTED": "true"}, "CA_UNENCRYPTED"),
        ({"ITL_COMPAT_SERVER_KEYS": "true"}, "COMPAT_SERVER_KEYS"),
        ({"ITL_COMPAT_OFFLINE_BUNDLE": "true"}, "COMPAT_OFFLINE_BUNDLE"),
        ({"ITL_COMPAT_PROTOCOL_1": "true"}, "COMPAT_PROTOCOL_1"),
        ({"ITL_ADMIN_TOKEN": "t" * 31}, "ADMIN_TOKEN"),
        ({"ITL_ADMIN_TOKEN": ""}, "operator routes answer 503"),
        ({"ITL_OIDC_ISSUER": "http://sts.example"}, "OIDC_ISSUER"),
        ({"ITL_DUAL_CONTROL_ROLES": "controlplane"}, "DUAL_CONTROL_ROLES"),
        ({"ITL_SERVICE_URL": "http://a.example"}, "SERVICE_URL"),
        ({"ITL_OPERATOR_CA": "/ca.pem"}, "OPERATOR_CRL"),
        ({"ITL_PROXY_SECRET": "ttt"}, "PROXY_SECRET"),
        ({"ITL_DB_URL": "postgresql://itl:ttt@/itl?host=/run/postgresql"}, "DB_PASSWORD_FILE"),
        ({"ITL_DB_URL": "postgresql+psycopg://itl@/itl?password=ttt"}, "DB_PASSWORD_FILE"),
        ({"ITL_DB_URL": "postgresql+psycopg://itl@db.example/itl"}, "verify-full"),
        ({"ITL_DB_URL": "postgresql+psycopg://itl@10.0.0.1:5433/itl?sslmode=verify-ca"}, "verify-full"),
        ({"ITL_DB_URL": "postgresql+psycopg://itl@/itl?host=/run,db.example"}, "verify-full"),
        ({"ITL_DB_URL": "postgresql+psycopg://itl@localhost/itl?hostaddr=10.0.0.1"}, "verify-full"),
        (
            {
                "ITL_TRUSTED_PROXIES": "10.0.0.0/8",
                "ITL_OPERATOR_CA": "/ca.pem",
                "ITL_OPERATOR_CRL": "/crl.pem",
            },
            "PROXY_SECRET",
        ),
        (
            {
                "ITL_TLS_MIN_VERSION": "TLSv1.2",
                "ITL_TLS_CERT_FILE": "/c.pem",
                "ITL_TLS_KEY_FILE": "/k.pem",
            },
            "TLS_MIN_VERSION",
        ),
    ],
    ids=str,
)
def test_weakened_controls_are_warned_of(environ: dict[str, str], word: str) -> None:
    """Each weakening has its own line; without any there is none."""
    good = {"ITL_ADMIN_TOKEN": "t" * 32}
    assert load(**good).warnings() == []
    (warning,) = load(**(good | environ)).warnings()
    assert word in warning
    assert "ttt" not in warning


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://itl@/itl",
        "postgresql+psycopg://itl@/itl?host=/run/postgresql",
        "postgresql+psycopg://itl@/itl?host=@itl",
        "postgresql+psycopg://itl@localhost/itl",
        "postgresql://itl@127.0.0.1:5433/itl",
        "postgresql://itl@[::1]:5433/itl",
        "postgresql+psycopg://itl@db.example/itl?sslmode=verify-full&sslrootcert=/ca.pem",
        "postgresql://[db.example/itl",
        "sqlite:///a?b",
    ],
)
def test_a_way_to_the_database_that_nobody_stands_in_is_not_warned_of(url: str) -> None:
    assert load(ITL_DB_URL=url, ITL_ADMIN_TOKEN="t" * 32).warnings() == []


@pytest.mark.threat("T184")
def test_a_password_of_the_database_stands_in_one_place() -> None:
    """In its file, which is read at each connection; not in the URL as well."""
    file = {"ITL_DB_PASSWORD_FILE": "/run/secrets/db"}
    found = load(ITL_DB_URL="postgresql+psycopg://itl@/itl", **file)
    assert found.db_url == "postgresql+psycopg://itl@/itl?password_file=%2Frun%2Fsecrets%2Fdb"
    assert load(ITL_DB_URL="postgresql://itl@/itl?a=b", **file).db_url.endswith(
        "a=b&password_file=%2Frun%2Fsecrets%2Fdb"
    )
    with pytest.raises(SettingsInvalid, match="is for PostgreSQL"):
        load(**file)
    with pytest.raises(SettingsInvalid, match="carries a password") as caught:
        load(ITL_DB_URL="postgresql://itl:canary@/itl", **file)
    assert "canary" not in str(caught.value)


def test_a_service_without_a_ca_says_so() -> None:
    """It is a choice and no weakening: told, not warned of."""
    assert "ITL_ENROLLMENT_CA_PASSPHRASE_FILE" in load().notices()[0]
    for named in ("PASSPHRASE_FILE", "KEY"):
        assert load(**{f"ITL_ENROLLMENT_CA_{named}": "file:/x"}).notices() == []


def test_what_belongs_together_is_set_together(tmp_path: Path) -> None:
    """A certificate without its key, a CRL without its CA, two duties with one word: each stops the start."""
    pair = {"ITL_TLS_CERT_FILE": "/c.pem", "ITL_TLS_KEY_FILE": "/k.pem"}
    assert load(**pair).tls_key_file == Path("/k.pem")
    for name, value in pair.items():
        with pytest.raises(SettingsInvalid, match="belong together"):
            load(**{name: value})
    assert load(ITL_OPERATOR_CA="/ca.pem", ITL_OPERATOR_CRL="/crl.pem").operator_crl == Path("/crl.pem")
    with pytest.raises(SettingsInvalid, match="ITL_OPERATOR_CA"):
        load(ITL_OPERATOR_CRL="/crl.pem")
    ca = {"ITL_ENROLLMENT_CA_UNENCRYPTED": "true"}
    assert load(ITL_OPERATOR_CERTIFICATES="true", **ca).issues_to_operators
    assert not load(**ca).issues_to_operators
    with pytest.raises(SettingsInvalid, match="needs a CA"):
        load(ITL_OPERATOR_CERTIFICATES="true")
    with pytest.raises(SettingsInvalid, match="no TLS knows"):
        load(ITL_OPERATOR_CERTIFICATES="true", ITL_ENROLLMENT_CA_ALGORITHM="ml-dsa-87", **ca)
    with pytest.raises(SettingsInvalid, match="must differ"):
        load(ITL_OIDC_VIEWER_ROLE="attestation-operator")
    secret = tmp_path / "secret"
    secret.write_text("s" * 40 + "\n")
    assert load(ITL_PROXY_SECRET_FILE=str(secret)).proxy_secret == SecretStr("s" * 40)


def test_an_issuer_keeps_its_slash() -> None:
    """Tokens carry it letter by letter."""
    assert load(ITL_OIDC_ISSUER="https://sts.example/").oidc_issuer == "https://sts.example/"
    with pytest.raises(SettingsInvalid, match="http"):
        load(ITL_OIDC_ISSUER="sts.example")


def test_nothing_is_read_on_import_or_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `load` looks at the environment."""
    monkeypatch.setenv("ITL_RESULT_HISTORY", "3")
    assert Settings().result_history == 20


def test_main_refuses_a_typo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The process says what is wrong and ends with 2, before it touches anything."""
    monkeypatch.setenv("ITL_ADMIN_TOKENN", "x")
    monkeypatch.setenv("ITL_LOG_LEVEL", "loud")
    assert main([]) == 2
    told = capsys.readouterr().err
    assert "did you mean ITL_ADMIN_TOKEN?\nattestation-service: ITL_LOG_LEVEL:" in told
