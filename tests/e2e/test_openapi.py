"""The OpenAPI document is the truth: schemathesis, an independent judge, holds the service to it.

No 500, no status, media type or body that the document does not name, nothing accepted that its schemas refuse,
with and without an operator's credential, on machines in every status.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from attestation_service.auth import Right
from attestation_testing import SoftwareNode
from tests.fixtures import configurations
from tests.fixtures.effort import often
from tests.fixtures.machine import Machine
from tests.fixtures.openid.provider import new_key
from tests.fixtures.service import Operator, ServiceProcess, StartService

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SECONDS = 1_000
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)
SHADOWED = ("unsupported_method", "allow_header_conformance")
"""By another method somebody asks for a machine, or a version, that is called so."""
ODD: dict[str, tuple[str, ...]] = {
    "/api/v1/machines/enroll": SHADOWED,
    "/api/v1/machines/import": SHADOWED,
    "/api/v1/machines/{machine_id}/patches/active": SHADOWED,
    "/api/v1/machines/{machine_id}/patches/rollback": SHADOWED,
    # 503 where this service was given no base configuration for a role, and no factory answers.
    "/api/v1/machines/{machine_id}/configuration": ("not_a_server_error",),
    "/api/v1/images": ("not_a_server_error",),
    # What is wrong is told in its own language, with status 200 (RFC 6960 §2.3).
    "/pki/ocsp": ("negative_data_rejection",),
}
"""Paths of which a check does not hold, and which."""
CONFIG = """\
hooks = "hooks.py"

[checks.negative_data_rejection]
# What is too large is refused before it is read.
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422, 429, 503]
"""
CLUSTER = {
    "cluster_id": "default",
    "issuer": "https://kubernetes.default.svc",
    "jwks": {"keys": [new_key("RS256").as_dict(private=False)]},
    "service_accounts": {"attestation-approver": ["itl:approver"]},
}
"""Of a service that judges requests of nodes; nobody has a token of it."""
SERIALIZER = """\
import schemathesis

schemathesis.serializer.alias("application/ocsp-request", "application/octet-stream")
"""
HOOKS = """\
import itertools, re, schemathesis

schemathesis.serializer.alias("application/ocsp-request", "application/octet-stream")

MACHINES = itertools.cycle({machines!r})
UUID = re.compile(r"[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")

@schemathesis.hook
def map_path_parameters(context, path_parameters):
    return exist(path_parameters)

@schemathesis.hook
def map_query(context, query):
    return exist(query)

@schemathesis.hook
def before_call(context, case, kwargs):
    # An act needs it without a body too; the form of a header that names the body is not for documents to say.
    if case.method.upper() != "GET" and case.media_type is None:
        # Cases that lack a header on purpose bring headers of their own.
        if kwargs.get("headers") is not None:
            kwargs["headers"]["Content-Type"] = "application/json"

def exist(parameters):
    # What is wrong on purpose stays wrong.
    if parameters and UUID.fullmatch(str(parameters.get("machine_id", ""))):
        parameters["machine_id"] = next(MACHINES)
    return parameters
"""


@pytest.fixture(scope="module")
def quiet_service(start_service: StartService, tmp_path_factory: pytest.TempPathFactory) -> ServiceProcess:
    """A service that does not log each of thousands of requests, and believes what we say of addresses."""
    return start_service(
        ITL_ACCESS_LOG="false",
        ITL_LOG_LEVEL="error",
        ITL_TRUSTED_PROXIES="127.0.0.1/32",
        ITL_ENROLLMENT_CA_UNENCRYPTED="true",
        ITL_OPERATOR_CERTIFICATES="true",
        ITL_KUBERNETES_CLUSTERS=json.dumps([CLUSTER]),
        ITL_CONFIG_KEK=configurations.key(tmp_path_factory.mktemp("kek")),
    )


@pytest.fixture
def operator(quiet_service: ServiceProcess) -> Iterator[Operator]:
    """Its operator."""
    found = quiet_service.operator()
    yield found
    found.http.close()


def _fleet(service: ServiceProcess, operator: Operator) -> list[str]:
    """Return the ids of machines in every status, so that requests reach what is behind the 404."""
    acts: dict[str, list[str]] = {
        "pending": [],
        "registered": ["approve"],
        "attested": ["approve", "attest"],
        "locked": ["approve", "attest", "lock"],
        "revoked": ["approve", "attest", "revoke"],
        "rejected": ["reject"],
    }
    found = []
    with httpx.Client(base_url=service.url, timeout=60) as http:
        for seed, steps in enumerate(list(acts.values()) * 2):
            machine = Machine(SoftwareNode(seed), http)
            machine.enrol()
            for step in steps:
                if step == "attest":
                    machine.attest()
                else:
                    body = {"approve": {"role": "worker-app"}, "reject": {"reason": "test"}}.get(step, {})
                    operator.act(machine.machine_id, step, **body)
            found.append(machine.machine_id)
    return found


def _paths_of_operators(service: ServiceProcess) -> list[str]:
    """Return the paths that have no operation for anybody else."""
    paths = httpx.get(f"{service.url}/openapi.json", timeout=60).json()["paths"]
    rights = set(Right)
    return [
        path for path, methods in paths.items() if {each["x-access"] for each in methods.values()} <= rights
    ]


def _without(paths: Iterable[str]) -> list[str]:
    return [part for path in paths for part in ("--exclude-path", path)]


@pytest.mark.parametrize("who", ["operator", "stranger"])
def test_schemathesis_finds_nothing(
    quiet_service: ServiceProcess, operator: Operator, tmp_path: Path, who: str
) -> None:
    """Examples of the document, the edges of every schema, random and wrong data, calls in sequences."""
    checks: tuple[str, ...] = CHECKS
    more = ["--max-examples", "3", "-H", "X-Forwarded-For: 203.0.113.66"]
    # For operators alone: what a stranger sends is not read, so the edges of its schema tell nothing.
    theirs = sorted(set(_paths_of_operators(quiet_service)) - set(ODD))
    if who == "operator":
        # An operator's requests reach what is behind the 401 and the 404. Strangers may not try: ten wrong
        # credentials from one address, and even the right one has to wait.
        checks = (*CHECKS, "missing_required_header")
        more = ["--max-examples", str(often(5, 10))]
        more += ["-H", f"Authorization: Bearer {quiet_service.admin_token}"]
        (tmp_path / "hooks.py").write_text(HOOKS.format(machines=_fleet(quiet_service, operator)))
    else:
        (tmp_path / "hooks.py").write_text(SERIALIZER)
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    chosen = [*_without(ODD), "--checks", ",".join(checks), *more]
    if who == "operator":
        judge(quiet_service, tmp_path, chosen)
    else:
        judge(quiet_service, tmp_path, [*chosen, "--phases", "examples,fuzzing"])
        judge(quiet_service, tmp_path, [*chosen, "--phases", "coverage", *_without(theirs)])
        more += ["--phases", "examples,coverage,fuzzing"]
    for path, without in ODD.items():
        left = ",".join(check for check in checks if check not in without)
        judge(quiet_service, tmp_path, ["--include-path", path, "--checks", left, *more])
    assert operator.audit_is_valid()
    assert '"request.failed"' not in quiet_service.log()


def judge(service: ServiceProcess, directory: Path, chosen: list[str]) -> None:
    """Run schemathesis; it must find nothing."""
    arguments = [
        *(str(SCHEMATHESIS), "--config-file", "schemathesis.toml"),
        *("run", f"{service.url}/openapi.json", "--seed", "20261121", "--no-color"),
        *("--request-timeout", "20", "--continue-on-failure", "--no-shrink"),
        *chosen,
    ]
    done = subprocess.run(
        arguments, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, (
        done.stdout[-20_000:].replace(service.admin_token, "***") + done.stderr[-2000:]
    )
    assert "Tested: " in done.stdout


def test_every_operation_documents_its_answers(quiet_service: ServiceProcess) -> None:
    """Each has a summary, an id, a success and the errors of its kind; each problem has an example."""
    document = httpx.get(f"{quiet_service.url}/openapi.json", timeout=60).json()
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) > 30
    assert len({operation["operationId"] for _, _, operation in operations}) == len(operations)
    for method, path, operation in operations:
        where = f"{method} {path}"
        assert operation["summary"], where
        codes = set(operation["responses"])
        assert codes & {"200", "201", "202", "204"}, where
        if path.startswith("/api/v1/") and operation.get("security"):
            assert {"401", "429", "503"} <= codes, where
        for status, answer in operation["responses"].items():
            problem = answer.get("content", {}).get("application/problem+json")
            if int(status) >= 400 and path.startswith("/api/v1/"):
                assert problem, f"{where}: {status} is no problem"
                assert problem["examples"], f"{where}: {status} without an example"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/api/v1/allow-list", "GET, POST"),
        ("/api/v1/machines/7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d", "DELETE, GET"),
        ("/api/v1/attest", "POST"),
        ("/healthz", "GET"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    quiet_service: ServiceProcess, path: str, allowed: str
) -> None:
    """`Allow` names every method of the resource, not only those of one route (RFC 9110 §10.2.1)."""
    answer = httpx.patch(f"{quiet_service.url}{path}", timeout=60)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.headers["content-type"] == "application/problem+json"
