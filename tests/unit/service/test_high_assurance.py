"""High assurance: TLS 1.3 with AES-256-GCM on every request, HSTS, and a start without any weakened control."""

from __future__ import annotations

from typing import Any

import pytest

from attestation_service.border.middleware import PROBES, SIGNED
from attestation_service.border.proxies import AES_256_GCM_SHA384, TLS_1_2, TLS_1_3
from attestation_service.settings import Settings, SettingsInvalid
from tests.unit.service.conftest import OPERATOR, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_problems import is_problem

pytestmark = pytest.mark.anyio

SECRET = "proxy-secret-of-more-than-32-characters"
ASSURED = {
    "Itl-Proxy-Secret": SECRET,
    "X-Forwarded-Proto": "https",
    "X-TLS-Version": "TLSv1.3",
    "X-TLS-Cipher": "TLS_AES_256_GCM_SHA384",
}
STRICT = "max-age=31536000; includeSubDomains"


@pytest.fixture
async def assured(start: Starter) -> Service:
    """A service in high assurance behind a proxy at the address of the test's client."""
    return await start(high_assurance=True, proxy_secret=SECRET, trusted_proxies="192.0.2.0/24")


async def test_over_tls_13_everything_works(assured: Service) -> None:
    """A whole life of a machine, with every request as the proxy asserts it."""
    assured.http.headers.update(ASSURED)
    node = SoftwareNode()
    answer = await assured.admitted(node)
    assert (await assured.fetch(answer["config_token"])).status_code == 200


@pytest.mark.threat("T41")
@pytest.mark.parametrize(
    "changed",
    [
        {"Itl-Proxy-Secret": None},
        {"Itl-Proxy-Secret": SECRET + "x"},
        {"X-Forwarded-Proto": None},
        {"X-Forwarded-Proto": "http"},
        {"X-Forwarded-Proto": "https, http"},
        {"X-TLS-Version": None},
        {"X-TLS-Version": "TLSv1.2"},
        {"X-TLS-Version": "TLSv1.3 "},
        {"X-TLS-Cipher": None},
        {"X-TLS-Cipher": "TLS_AES_128_GCM_SHA256"},
        {"X-TLS-Cipher": "ECDHE-RSA-AES256-GCM-SHA384"},
        {"X-TLS-Cipher": ""},
    ],
    ids=str,
)
async def test_what_nobody_asserts_is_not_so(assured: Service, changed: dict[str, str | None]) -> None:
    """Each of the four facts is needed, whole and right."""
    # "TLSv1.3 " stands for something a proxy never sends; the transport of the tests does not strip it.
    headers = {k: v for k, v in (ASSURED | changed).items() if v is not None}
    answer = await assured.get("/api/v1/machines", headers=headers | OPERATOR)
    is_problem(answer, 403, "high-assurance-required")


@pytest.mark.threat("T41")
async def test_no_route_is_left_out(assured: Service) -> None:
    """Every path of the application is refused over plain HTTP, unknown ones too; probes and lists are not."""
    paths = {
        *assured.app.openapi()["paths"],
        "/openapi.json",
        "/docs",
        "/nothing",
        "/api/v1/attest",
        "/healthz/",
        "//healthz",
    }
    public = {path for path in paths if path.startswith(SIGNED)}
    assert public == {
        "/pki/crl",
        "/pki/crl/{issuer_id}",
        "/pki/ocsp",
        "/pki/ocsp/{request}",
        "/pki/ca/{issuer_id}",
        "/pki/hsm/{issuer_id}.crl",
        "/pki/hsm/{issuer_id}.crt",
    }
    for path in public:
        # Signed, and asked for by programs that have no TLS: what is answered is that nothing is there.
        assert (await assured.get(path.replace("{issuer_id}", "0" * 16))).status_code in (503, 405, 404)
    for path in sorted(paths - PROBES - public):
        for method in ("GET", "POST"):
            # Of a configuration it would be words for a console, to who does not ask for JSON.
            headers = OPERATOR | {"Accept": "application/json"}
            answer = await assured.http.request(method, path, headers=headers)
            is_problem(answer, 403, "high-assurance-required")
    for path in PROBES:
        assert (await assured.get(path)).status_code == 200


@pytest.mark.threat("T41")
async def test_the_attestation_route_is_not_left_out(assured: Service) -> None:
    """A good attestation, for which there is a lane of its own, proves nothing over plain HTTP."""
    assured.http.headers.update(ASSURED)
    node = SoftwareNode()
    await assured.introduce(node)
    await assured.act(node, "approve", {"role": "worker-app"})
    body = node.attestation(await assured.challenge(node))
    for name in ASSURED:
        del assured.http.headers[name]
    is_problem(await assured.post("/api/v1/attest", body), 403, "high-assurance-required")
    assert (await assured.http.post("/api/v1/attest", json=body, headers=ASSURED)).status_code == 200


async def test_hsts_stands_on_every_answer(assured: Service) -> None:
    """Good, bad and refused answers tell browsers to come by TLS for a year; without the mode none does."""
    for path, headers in (("/healthz", {}), ("/nothing", ASSURED), ("/api/v1/machines", {})):
        answer = await assured.get(path, headers=headers)
        assert answer.headers["strict-transport-security"] == STRICT


async def test_the_default_says_nothing_of_transport(service: Service) -> None:
    """Without the mode plain HTTP is served, for a proxy that ends TLS, and HSTS is that proxy's to set."""
    answer = await service.operator("GET", "/machines")
    assert answer.status_code == 200
    assert "strict-transport-security" not in answer.headers


@pytest.mark.parametrize(
    ("version", "suite", "served"),
    [
        (TLS_1_3, AES_256_GCM_SHA384, True),
        (TLS_1_3, 0x1301, False),
        (TLS_1_3, 0x1303, False),
        (TLS_1_2, 0xC030, False),
        (None, AES_256_GCM_SHA384, False),
        (TLS_1_3, None, False),
    ],
)
async def test_what_our_own_tls_saw_counts(
    start: Starter, version: int | None, suite: int | None, served: bool
) -> None:
    """The facts of the connection decide where TLS ends here; headers of its client change nothing."""
    service = await start(high_assurance=True, proxy_secret=SECRET)
    extension: dict[str, Any] = {"tls_version": version, "cipher_suite": suite, "client_cert_chain": []}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.lower().encode(), value.encode()) for name, value in (OPERATOR | ASSURED).items()]
    scope = {
        "type": "http", "method": "GET", "path": "/api/v1/machines", "raw_path": b"/api/v1/machines",
        "query_string": b"", "headers": headers, "scheme": "https", "root_path": "", "http_version": "1.1",
        "client": ("192.0.2.7", 1), "server": ("192.0.2.1", 443), "extensions": {"tls": extension},
    }  # fmt: skip
    await service.app(scope, receive, send)
    assert sent[0]["status"] == (200 if served else 403)


GOOD = {"ITL_HIGH_ASSURANCE": "true", "ITL_ADMIN_TOKEN": "t" * 32, "ITL_PROXY_SECRET": SECRET}


def load(**environ: str) -> Settings:
    """Load from these variables alone, and the names that every service needs."""
    named = {
        "ITL_SERVICE_URL": "https://attest.example",
        "ITL_ENROLLMENT_CA_ORGANIZATION": "Sample",
        "ITL_ENROLLMENT_CA_COUNTRY": "FR",
    }
    return Settings.load(named | environ, env_file=None)


@pytest.mark.threat("T41")
@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"ITL_ADMIN_TOKEN": "t" * 31}, "ITL_ADMIN_TOKEN"),
        ({"ITL_SERVICE_URL": "http://attest.example"}, "ITL_SERVICE_URL"),
        ({"ITL_REQUIRE_ENCRYPTED_DELIVERY": "false"}, "ITL_REQUIRE_ENCRYPTED_DELIVERY"),
        ({"ITL_RATE_LIMITS": "false"}, "ITL_RATE_LIMITS"),
        ({"ITL_TPM_ALLOW_SIMULATOR": "true"}, "ITL_TPM_ALLOW_SIMULATOR"),
        ({"ITL_OIDC_ISSUER": "http://sts.example"}, "ITL_OIDC_ISSUER"),
        ({"ITL_PROXY_SECRET": "t" * 31}, "ITL_PROXY_SECRET"),
        ({"ITL_PROXY_SECRET": ""}, "ITL_TLS_CERT_FILE"),
        (
            {
                "ITL_TLS_MIN_VERSION": "TLSv1.2",
                "ITL_TLS_CERT_FILE": "/c.pem",
                "ITL_TLS_KEY_FILE": "/k.pem",
            },
            "ITL_TLS_MIN_VERSION",
        ),
    ],
    ids=str,
)
def test_a_weakened_control_stops_the_start(environ: dict[str, str], word: str) -> None:
    """High assurance with a hole is none: the start is refused, and the variable is named, not its value."""
    assert load(**GOOD).high_assurance
    with pytest.raises(SettingsInvalid, match=word) as caught:
        load(**(GOOD | environ))
    assert "ttt" not in str(caught.value)


def test_tls_of_our_own_is_enough() -> None:
    """Where TLS ends in the service, no proxy need be known."""
    environ = GOOD | {
        "ITL_PROXY_SECRET": "", "ITL_TLS_CERT_FILE": "/c.pem", "ITL_TLS_KEY_FILE": "/k.pem",
    }  # fmt: skip
    assert load(**environ).high_assurance
