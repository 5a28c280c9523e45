"""What an API server refuses of attestation runs (CONFIDENTIAL §4).

By the policies that the chart renders, on ours; by the webhook, on ours and on the real one, which has neither
policies nor rules in CEL.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation.clock import SystemClock
from attestation_operator import crds
from attestation_operator.objects import POLICY, RESULT, RUN, SECURITY_EVENT, Kind
from attestation_operator.runs.admission import KINDS
from attestation_operator.runs.webhook import PATH, serve
from attestation_operator.runs.webhook_settings import WebhookSettings
from attestation_testing.kubernetes import KubernetesAPI, User
from tests.contract.kubernetes import MERGE, done, eventually, new_name
from tests.fixtures.admission_cases import (
    AGENT,
    CASES,
    COLLECTOR,
    CONTROLLER,
    OTHERS,
    OWNED,
    PERSON,
    Case,
    name_of,
)
from tests.fixtures.attestation_kinds import GOOD
from tests.fixtures.kube import KubeAPI, kube, rest
from tests.fixtures.operator_chart import FULL, NAMESPACE, Document, Documents, documents, of, run
from tests.unit.operator.doubles import Log
from tools.ports import free_port

__all__ = ["documents", "kube", "run"]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TEAM = "itl-test-admission"
VALUES: Document = {
    "settings": {"service_url": "https://attest.example"},
    "controllers": {"approver": False, "signer": False, "nodes": False, "runs": True},
    "runs": {"clusterID": "default"},
    "admission": {"webhook": {"enabled": True}},
}


def at(kind: Kind, name: str = "", part: str = "") -> str:
    """Return the path of objects of a kind, of one, or of a part of it."""
    place = f"/namespaces/{TEAM}" if kind.namespaced else ""
    return f"/apis/{kind.api_version}{place}/{kind.plural}" + (f"/{name}" if name else "") + part


def have(admin: httpx.Client, path: str, raw: dict[str, Any]) -> None:
    """Create an object that may be there."""
    answer = admin.post(path, json=raw)
    assert answer.status_code in (201, 409), answer.text


def install_kinds(admin: httpx.Client) -> None:
    """Install our kinds and a namespace; both stay, for the tests of other files may find the kinds."""
    have(admin, "/api/v1/namespaces", {"metadata": {"name": TEAM}})
    for kind in KINDS:
        have(admin, CRDS, crds.definition(kind))
    for kind in KINDS:
        eventually(lambda kind=kind: done(admin.get(at(kind))))  # type: ignore[misc]  # a default binds it


# ---------------------------------------------------------------- policies


@pytest.fixture(scope="module")
def guarded(documents: Documents) -> Iterator[dict[str, httpx.Client]]:
    """Give clients, by user name, of a server with the policies; each of them may everything by RBAC."""
    users = {name: User(name, ("system:masters",)) for name in (CONTROLLER, AGENT, PERSON, COLLECTOR)}
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(KubernetesAPI({**users, "admin": User("admin", ("system:masters",))}))
        tls = ssl.create_default_context(cafile=api.ca_file)
        clients = {
            name: stack.enter_context(
                httpx.Client(
                    base_url=api.url,
                    verify=tls,
                    headers={"Authorization": f"Bearer {api.token(name)}"},
                    trust_env=False,
                    timeout=30,
                )
            )
            for name in users
        }
        admin = clients[PERSON]
        install_kinds(admin)
        found = documents(VALUES)
        for kind, plural in (
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        ):
            for each in of(found, kind).values():
                done(admin.post(f"{ADMISSION}/{plural}", json=each), 201)
        yield clients


@pytest.mark.threat("T286")
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_policies_and_schema_let_through_what_may_be(guarded: dict[str, httpx.Client], case: Case) -> None:
    """Who may everything by RBAC is refused all the same."""
    client, name = guarded[case.user], new_name("a")
    raw = case.new() if case.before is None else case.old()
    raw["metadata"] |= {"name": case.metadata.get("name", name), "namespace": TEAM}
    if case.before is None:
        answer = client.post(at(case.kind), json=raw)
        assert answer.status_code == 201 if case.allowed else answer.status_code in (403, 422), answer.text
        return
    old = done(guarded[CONTROLLER].post(at(case.kind), json=raw), 201)
    if case.said is not None:
        said = {**old, "status": case.said}
        old = done(guarded[CONTROLLER].put(at(case.kind, name, "/status"), json=said), 200)
    new = {**old, "spec": case.spec(case.change), "status": case.says or {}}
    new["metadata"] = {name: value for name, value in old["metadata"].items() if name != "ownerReferences"}
    new["metadata"] |= {**case.metadata, "labels": {"x": "y"}}
    answer = client.put(at(case.kind, name, "/status" if case.status else ""), json=new)
    assert answer.status_code == 200 if case.allowed else answer.status_code in (403, 422), answer.text


# ---------------------------------------------------------------- webhook


class Hook:
    """The webhook, as a pod of the chart would run it: its ServiceAccount, its Secret, its configuration.

    Args:
        kube: The API server.
        admin: Who may everything.
        found: What the chart renders.
        folder: For its kubeconfig.
    """

    def __init__(self, kube: KubeAPI, admin: httpx.Client, found: list[Document], folder: Path) -> None:
        self._admin = admin
        self._port = free_port()
        self._name = f"{NAMESPACE}-{FULL}-webhook"
        account = f"{FULL}-webhook"
        namespace = f"/api/v1/namespaces/{NAMESPACE}"
        have(admin, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        for kind, path in (
            ("ServiceAccount", f"{namespace}/serviceaccounts"),
            ("Secret", f"{namespace}/secrets"),
            ("ClusterRole", f"{rbac}/clusterroles"),
            ("ClusterRoleBinding", f"{rbac}/clusterrolebindings"),
            ("Role", f"{rbac}/namespaces/{NAMESPACE}/roles"),
            ("RoleBinding", f"{rbac}/namespaces/{NAMESPACE}/rolebindings"),
        ):
            for each in of(found, kind).values():
                have(admin, path, each)
        [configuration] = of(found, "ValidatingWebhookConfiguration").values()
        for each in configuration["webhooks"]:
            # Where a Service is in a cluster there is this port here; all else is as the chart has it.
            each["clientConfig"] = {"url": f"https://localhost:{self._port}{PATH}"}
        have(admin, f"{ADMISSION}/validatingwebhookconfigurations", configuration)
        self.settings = WebhookSettings.load(
            {
                "ITL_OPERATOR_CONTROLLER_USER": CONTROLLER,
                "ITL_OPERATOR_CERTIFICATE_SECRET": f"{NAMESPACE}/{account}",
                "ITL_OPERATOR_WEBHOOK_CONFIGURATION": self._name,
                "ITL_OPERATOR_SERVER_NAME": "localhost",
                "ITL_OPERATOR_KUBECONFIG": str(_kubeconfig(kube, admin, account, folder)),
                "ITL_OPERATOR_WEBHOOK_BIND_ADDRESS": f"127.0.0.1:{self._port}",
                "ITL_OPERATOR_HEALTH_PROBE_BIND_ADDRESS": "127.0.0.1:0",
                "ITL_OPERATOR_METRICS_BIND_ADDRESS": "127.0.0.1:0",
            }
        )

        self._log = Log()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run it on a thread, and wait until it answers."""
        self._log, self._stop = Log(), threading.Event()

        async def until_stopped() -> None:
            stopped = asyncio.Event()
            serving = asyncio.create_task(serve(self.settings, stopped, clock=SystemClock(), log=self._log))
            await asyncio.to_thread(self._stop.wait)
            stopped.set()
            await serving

        self._thread = threading.Thread(target=lambda: asyncio.run(until_stopped()))
        self._thread.start()

        def starts() -> None:
            assert "webhook.starts" in self._log.events, self._log.said

        eventually(starts)

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)

    def remove(self) -> None:
        """Have nobody ask it any more."""
        self._admin.delete(f"{ADMISSION}/validatingwebhookconfigurations/{self._name}")


def _kubeconfig(kube: KubeAPI, admin: httpx.Client, account: str, folder: Path) -> Path:
    """Write how a ServiceAccount of the chart reaches the API server."""
    token = _token(admin, NAMESPACE, account)
    path = folder / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: it\n"
        f"clusters: [{{name: it, cluster: {{server: '{kube.url}', certificate-authority: '{kube.ca_file}'}}}}]\n"
        f"users: [{{name: it, user: {{token: '{token}'}}}}]\n"
        "contexts: [{name: it, context: {cluster: it, user: it}}]\n"
    )
    return path


def _token(admin: httpx.Client, namespace: str, account: str) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    answer = admin.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", json=request)
    return str(done(answer, 201)["status"]["token"])


@pytest.fixture(scope="module")
def hook(
    kube: KubeAPI, documents: Documents, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Hook, httpx.Client, httpx.Client]]:
    """Run the webhook; give it, somebody who may everything, and the controller."""
    with rest(kube) as admin:
        install_kinds(admin)
        found = Hook(kube, admin, documents(VALUES), tmp_path_factory.mktemp("hook"))
        try:
            found.start()
            token = _token(admin, NAMESPACE, f"{FULL}-runs")
            with httpx.Client(
                base_url=kube.url,
                verify=ssl.create_default_context(cafile=kube.ca_file),
                headers={"Authorization": f"Bearer {token}"},
                trust_env=False,
                timeout=30,
            ) as controller:
                eventually(lambda: _refused(admin.post(at(RESULT), json=made(RESULT))))
                yield found, admin, controller
        finally:
            found.remove()
            found.stop()


def made(kind: Kind, **change: Any) -> dict[str, Any]:
    """Return an object, with members of `spec` that it has instead."""
    spec = {name: value for name, value in {**GOOD[kind][0], **change}.items() if value is not None}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": new_name("a")},
        "spec": spec,
    }


def _refused(answer: httpx.Response) -> None:
    assert answer.status_code in (403, 422), answer.text
    assert "denied the request" in answer.text, answer.text


Hooked = tuple[Hook, httpx.Client, httpx.Client]


def test_the_webhook_lets_through_what_may_be(hook: Hooked) -> None:
    """Whoever may, by RBAC, asks and says what is demanded."""
    _, admin, controller = hook
    for kind in (RUN, POLICY):
        name = done(admin.post(at(kind), json=made(kind)), 201)["metadata"]["name"]
        done(controller.patch(at(kind, name, "/status"), json={"status": {}}, headers=MERGE))
        done(admin.patch(at(kind, name), json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE))
        done(admin.delete(at(kind, name)))


def test_the_webhook_knows_the_rules_that_this_server_does_not(hook: Hooked) -> None:
    """A real server of 1.20 drops rules in CEL from definitions: an object that breaks one is refused all the same."""
    _, admin, controller = hook
    for client, kind, change in (
        (admin, RUN, {"timeout": "301s"}),
        (admin, RUN, {"policyRef": {"name": "p"}}),
        (admin, POLICY, {"tpm": None, "sevSnp": None, "tdx": None, "sgx": None}),
        (controller, SECURITY_EVENT, {"subject": {"kind": "Node", "name": "a"}}),
    ):
        answer = client.post(at(kind), json=made(kind, **change))
        assert answer.status_code == 422, (kind.kind, answer.text)


def test_the_webhook_knows_whose_a_run_is(hook: Hooked) -> None:
    """Only its controller makes a run the run of a schedule; and the name of a run leaves room for its Result's."""
    _, admin, controller = hook
    for refused in (OWNED, {"name": "n" * 247}):
        raw = made(RUN)
        raw["metadata"] |= refused
        _refused(admin.post(at(RUN), json=raw))
    raw = made(RUN)
    raw["metadata"] |= OTHERS
    done(admin.post(at(RUN), json=raw), 201)
    # Of its own: what has owners that are not there goes at any moment.
    name = done(admin.post(at(RUN), json=made(RUN)), 201)["metadata"]["name"]
    _refused(admin.patch(at(RUN, name), json={"metadata": OWNED}, headers=MERGE))
    raw = made(RUN)
    raw["metadata"] |= OWNED
    done(controller.post(at(RUN), json=raw), 201)


def test_the_webhook_knows_who_writes(hook: Hooked) -> None:
    """An administrator writes no verdict, nor does the controller change one."""
    _, admin, controller = hook
    _refused(admin.post(at(RESULT), json=made(RESULT)))
    name = done(controller.post(at(RESULT), json=made(RESULT)), 201)["metadata"]["name"]
    changed = controller.patch(at(RESULT, name), json={"spec": {"verdict": "failed"}}, headers=MERGE)
    assert changed.status_code == 422
    _refused(admin.patch(at(RESULT, name), json={"metadata": {"labels": {"a": "b"}}}, headers=MERGE))
    _refused(admin.patch(at(RESULT, name, "/status"), json={"status": {"trusted": True}}, headers=MERGE))
    done(controller.patch(at(RESULT, name, "/status"), json={"status": {"trusted": True}}, headers=MERGE))
    done(controller.delete(at(RESULT, name)))


@pytest.mark.threat("T287")
def test_without_the_webhook_nothing_is_written(hook: Hooked) -> None:
    """`failurePolicy: Fail`: nobody there to ask is a no; back again, it serves what its Secret holds."""
    found, admin, _ = hook
    found.stop()
    try:
        answer = admin.post(at(RUN), json=made(RUN))
        assert answer.status_code == 500, answer.text
        assert "failed calling webhook" in answer.text
    finally:
        found.start()
    eventually(lambda: done(admin.post(at(RUN), json=made(RUN)), 201))
