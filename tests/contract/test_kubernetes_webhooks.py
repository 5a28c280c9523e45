"""Webhooks that are asked before something is written: the same at our API server and at the real one."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation_testing.kubernetes.authority import ClusterCA
from tests.contract.kubernetes import MERGE, causes, done, eventually, new_name, refused
from tests.fixtures.kube import KubeAPI, kube, rest

__all__ = ["kube"]

HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MAPS = "/api/v1/namespaces/default/configmaps"
LABEL = "webhooks.tests.itl.io/name"
MAPS_RULE = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE", "UPDATE", "DELETE"],
    "resources": ["configmaps"],
}


class Quiet(ThreadingHTTPServer):
    """Says nothing of those who do not trust its certificate."""

    def handle_error(self, *_: object) -> None:
        """Pass it over."""


class Webhook:
    """Somebody who is asked: allows what `allows` says, and remembers what it was asked.

    Args:
        folder: For its certificate.
    """

    def __init__(self, folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self.response: dict[str, Any] = {"allowed": True}
        self.status = 200
        ca = ClusterCA(lambda: datetime.now(UTC))
        pair = ca.server()
        (folder / "hook.pem").write_bytes(pair.certificate + pair.key)
        self.ca_bundle = base64.b64encode(ca.pem).decode()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(review)
                answer = {
                    "apiVersion": "admission.k8s.io/v1",
                    "kind": "AdmissionReview",
                    "response": {"uid": review["request"]["uid"], **outer.response},
                }
                body = json.dumps(answer).encode()
                self.send_response(outer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "hook.pem")
        # The handshake is the handler's, not that of who accepts.
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}/admit"


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Webhook]:
    """One that answers."""
    made = Webhook(tmp_path)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


@pytest.fixture(scope="module")
def admin(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may everything."""
    with rest(kube) as client:
        yield client


def configuration(webhook: Webhook, name: str, **how: Any) -> dict[str, Any]:
    """Return a configuration of one webhook, about the ConfigMaps that have its name as a label."""
    hook = {
        "name": "hook.tests.itl.io",
        "clientConfig": {"url": webhook.url, "caBundle": webhook.ca_bundle},
        "rules": [MAPS_RULE],
        "objectSelector": {"matchLabels": {LABEL: name}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
        **how,
    }
    return {"metadata": {"name": name}, "webhooks": [hook]}


def config(name: str, hook: str) -> dict[str, Any]:
    """Return a ConfigMap that a webhook is asked about."""
    return {"metadata": {"name": name, "labels": {LABEL: hook}}, "data": {"a": "1"}}


@contextmanager
def asked(admin: httpx.Client, webhook: Webhook, **how: Any) -> Iterator[str]:
    """Have it asked while the block runs; yield the name of the configuration."""
    name = new_name("hook")
    done(admin.post(HOOKS, json=configuration(webhook, name, **how)), 201)
    try:
        yield name
    finally:
        done(admin.delete(f"{HOOKS}/{name}"))


def wait(admin: httpx.Client, webhook: Webhook, hook: str) -> None:
    """Wait until it is asked: the real server reads configurations a moment later."""

    def check() -> None:
        done(admin.post(MAPS, params={"dryRun": "All"}, json=config(new_name(), hook)), 201)
        assert webhook.asked

    eventually(check)
    webhook.asked.clear()


def test_who_is_asked_sees_what_is_written(admin: httpx.Client, webhook: Webhook) -> None:
    """What it becomes, what it was, by whom; of a deletion what it was."""
    with asked(admin, webhook) as hook:
        wait(admin, webhook, hook)
        name = new_name()
        done(admin.post(MAPS, json=config(name, hook)), 201)
        done(admin.patch(f"{MAPS}/{name}", json={"data": {"a": "2"}}, headers=MERGE))
        done(admin.delete(f"{MAPS}/{name}"))
        requests = [each["request"] for each in webhook.asked]
        assert [each["operation"] for each in requests] == ["CREATE", "UPDATE", "DELETE"]
        values = [
            tuple((each.get(which) or {}).get("data", {}).get("a") for which in ("oldObject", "object"))
            for each in requests
        ]
        assert values == [(None, "1"), ("1", "2"), ("2", None)]
        for each in requests:
            assert (each["name"], each["namespace"]) == (name, "default")
            assert each["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
            assert each["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
            assert "system:masters" in each["userInfo"]["groups"]
            assert each["dryRun"] is False


def test_it_refuses_in_its_words(admin: httpx.Client, webhook: Webhook) -> None:
    """With its code; without one it is 400."""
    with asked(admin, webhook) as hook:
        wait(admin, webhook, hook)
        name = new_name()
        said = 'admission webhook "hook.tests.itl.io" denied the request'
        webhook.response = {"allowed": False, "status": {"code": 422, "reason": "Invalid", "message": "no"}}
        assert refused(admin.post(MAPS, json=config(name, hook)), 422, f"{said}: no")["reason"] == "Invalid"
        webhook.response = {"allowed": False}
        refused(admin.post(MAPS, json=config(name, hook)), 400, f"{said} without explanation")
        refused(admin.get(f"{MAPS}/{name}"), 404)
        done(admin.post(MAPS, json=config(name, "other")), 201)
        done(admin.delete(f"{MAPS}/{name}"))


def test_one_that_cannot_be_asked_holds_up(admin: httpx.Client, webhook: Webhook) -> None:
    """Unless its failures are ignored: an error, an answer to something else, a certificate of another."""
    with asked(admin, webhook) as hook:
        wait(admin, webhook, hook)
        words = 'failed calling webhook "hook.tests.itl.io"'
        webhook.status = 500
        refused(admin.post(MAPS, json=config(new_name(), hook)), 500, words)
        webhook.status, webhook.response = 200, {"allowed": True, "uid": "another"}
        refused(admin.post(MAPS, json=config(new_name(), hook)), 500, words)
    webhook.response = {"allowed": True}
    other = base64.b64encode(ClusterCA(lambda: datetime.now(UTC)).pem).decode()
    with asked(admin, webhook, clientConfig={"url": webhook.url, "caBundle": other}) as hook:
        eventually(
            lambda: refused(
                admin.post(MAPS, params={"dryRun": "All"}, json=config(new_name(), hook)), 500, words
            )
        )
    webhook.status = 500
    with asked(admin, webhook, failurePolicy="Ignore") as hook:
        wait(admin, webhook, hook)
        name = new_name()
        done(admin.post(MAPS, json=config(name, hook)), 201)
        assert webhook.asked
        done(admin.delete(f"{MAPS}/{name}"))


def test_a_configuration_has_a_form(admin: httpx.Client, webhook: Webhook) -> None:
    """What it leaves open, the API server would have to guess."""
    for how, field in (
        ({"sideEffects": "Some"}, "webhooks[0].sideEffects"),
        ({"admissionReviewVersions": []}, "webhooks[0].admissionReviewVersions"),
        ({"clientConfig": {"url": "http://127.0.0.1:1/"}}, "webhooks[0].clientConfig.url"),
        ({"clientConfig": {}}, "webhooks[0].clientConfig"),
    ):
        answer = admin.post(HOOKS, json=configuration(webhook, new_name("hook"), **how))
        assert field in causes(refused(answer, 422))
