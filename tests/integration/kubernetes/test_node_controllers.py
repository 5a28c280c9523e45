"""The controllers of nodes as programs, at our Kubernetes API and at the real one: decisions, races, ends, outages."""

from __future__ import annotations

import base64
import itertools
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from attestation.api.node_csr import NodeTrust
from attestation_operator.nodes.objects import ATTESTED_LABEL, OWNER_LABEL, TAINT_KEY
from tests.fixtures.attestation_double import Answer, Double, attestation_double, evidence, problem
from tests.fixtures.controllers import (
    ATTESTATIONS,
    CSRS,
    RBAC,
    binding,
    controller,
    prepared,
    until,
)
from tests.fixtures.kube import CLIENT_KUBELET, SIGNER, KubeAPI, kube, rest
from tests.unit.operator.nodes.world import CA, MACHINE, OTHER, key, pem, pkcs10, subject, trust

__all__ = ["kube"]

NODES = "/api/v1/nodes"
OUR_CA = CA(datetime.now(UTC))
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def ready(kube: KubeAPI) -> Iterator[httpx.Client]:
    """An administrator of a cluster that is ready for us."""
    with prepared(kube) as client:
        yield client


@pytest.fixture
def admin(ready: httpx.Client) -> httpx.Client:
    """The same, where no request waits: a controller decides also what other tests left."""
    for each in ready.get(CSRS).json()["items"]:
        ready.delete(f"{CSRS}/{quote(each['metadata']['name'], safe='')}")
    return ready


@pytest.fixture
def service() -> Iterator[Double]:
    """The service."""
    with attestation_double() as double:
        yield double


def name() -> str:
    """Return a name that nothing else has."""
    return f"g{next(_NUMBERS)}-{uuid.uuid4().hex[:8]}"


class Request:
    """A request of a node that bootstraps."""

    def __init__(
        self,
        kube: KubeAPI,
        admin: httpx.Client,
        say: str = "approve",
        *,
        signer: str = CLIENT_KUBELET,
        called: str | None = None,
        node: str | None = None,
        **more: str,
    ) -> None:
        self.node = node or name()
        self.name = called or f"node-csr-{self.node}"
        self._admin = admin
        self.pkcs10 = pkcs10(subject(self.node))
        said = {"machine_id": MACHINE, "node_name": self.node} | more
        blocks = self.pkcs10 + (evidence(say, **said) if say else b"")
        body = {
            "metadata": {"name": self.name},
            "spec": {
                "request": base64.b64encode(blocks).decode(),
                "signerName": signer,
                "usages": ["digital signature", "key encipherment", "client auth"],
            },
        }
        with rest(kube, "bootstrap") as client:
            made = client.post(CSRS, json=body)
        assert made.status_code == 201, made.text
        self.uid = made.json()["metadata"]["uid"]

    def raw(self) -> dict[str, Any]:
        """Return what it is now."""
        found: dict[str, Any] = self._admin.get(f"{CSRS}/{self.name}").json()
        return found

    def conditions(self) -> list[tuple[str, str]]:
        """Return type and reason of each condition."""
        return [(each["type"], each["reason"]) for each in self.raw()["status"].get("conditions") or ()]

    def decided(self) -> list[tuple[str, str]]:
        """Return the conditions as soon as there is one."""
        return until(self.conditions)

    def approve(self) -> None:
        """Approve it, as somebody else."""
        raw = self.raw()
        raw["status"]["conditions"] = [
            {"type": "Approved", "status": "True", "reason": "Somebody", "message": "x"}
        ]
        assert self._admin.put(f"{CSRS}/{self.name}/approval", json=raw).status_code == 200

    def delete(self) -> None:
        """Delete it."""
        assert self._admin.delete(f"{CSRS}/{self.name}").status_code == 200

    def certificate(self) -> str | None:
        """Return its certificate."""
        found: str | None = self.raw()["status"].get("certificate")
        return found


class Gate:
    """Holds answers of the service until it is opened."""

    def __init__(self, service: Double, parties: int = 1) -> None:
        self._arrived = threading.Semaphore(0)
        self._open = threading.Event()
        self._parties = parties
        service.hold = self._hold

    def _hold(self, uid: str) -> None:
        self._arrived.release()
        assert self._open.wait(60), uid

    def reached(self) -> None:
        """Return when so many requests have arrived."""
        for _ in range(self._parties):
            assert self._arrived.acquire(timeout=60)

    def open(self) -> None:
        """Let them go on."""
        self._open.set()


class TestApprover:
    """Conditions follow the service's word."""

    def test_decisions(self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path) -> None:
        """Good and bad requests of both signers, and one without evidence; no trace of us but conditions and Events."""
        good = bad = None
        with controller("approver", kube, service, tmp_path) as running:
            for signer in (CLIENT_KUBELET, SIGNER):
                good = Request(kube, admin, signer=signer)
                bad = Request(kube, admin, "deny", reason="PolicyFailed", signer=signer)
                assert good.decided() == [("Approved", "TpmAttested")]
                assert bad.decided() == [("Denied", "PolicyFailed")]
                metadata = good.raw()["metadata"]
                assert not metadata.get("annotations")
                assert not metadata.get("finalizers")
                assert running.metric("itl_operator_csr_decisions_total", signer=signer, outcome="approved")
            plain = Request(kube, admin, "", signer=SIGNER)
            assert plain.decided() == [("Denied", "EvidenceMissing")]
            left = Request(kube, admin, "", signer=CLIENT_KUBELET)
            assert good is not None
            assert bad is not None
            wanted = {
                (good.name, "TpmAttested"),
                (bad.name, "PolicyFailed"),
                (left.name, "EvidenceMissing"),
            }

            def told() -> set[tuple[str, str]]:
                events = admin.get("/apis/events.k8s.io/v1/namespaces/default/events").json()["items"]
                return {(each["regarding"]["name"], each["reason"]) for each in events}

            until(lambda: wanted <= told())
            assert running.metric("itl_operator_csr_decisions_total", signer=CLIENT_KUBELET, outcome="left")
            assert left.conditions() == []
            assert left.uid not in service.asked
        assert service.tokens == {"Bearer token-of-the-pod"}

    def test_with_the_service_away_nothing_is_decided(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """And when it is back, everything is."""
        service.away = True
        with controller("approver", kube, service, tmp_path) as running:
            good, bad = Request(kube, admin), Request(kube, admin, "deny", reason="NotMember")
            until(lambda: running.metric("itl_operator_handled_total", outcome="away") >= 4)
            assert (good.conditions(), bad.conditions()) == ([], [])
            service.away = False
            assert good.decided() == [("Approved", "TpmAttested")]
            assert bad.decided() == [("Denied", "NotMember")]

    def test_approved_by_another_first(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """While the service thinks: the other's condition stays, ours is refused, one audit outcome (§24 m)."""
        gate = Gate(service)
        with controller("approver", kube, service, tmp_path) as running:
            request = Request(kube, admin, "deny", reason="PolicyFailed")
            gate.reached()
            request.approve()
            gate.open()
            until(
                lambda: running.metric(
                    "itl_operator_csr_decisions_total", signer=CLIENT_KUBELET, outcome="skipped"
                )
            )
            assert request.conditions() == [("Approved", "Somebody")]
        assert list(service.audit) == [request.uid]

    def test_deleted_in_between(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """The decision finds nothing; another request under the name is decided for itself (§24 m)."""
        gate = Gate(service)
        with controller("approver", kube, service, tmp_path):
            first = Request(kube, admin)
            gate.reached()
            first.delete()
            second = Request(kube, admin, "deny", reason="NotMember", called=first.name)
            gate.open()
            assert second.decided() == [("Denied", "NotMember")]
        assert set(service.audit) == {first.uid, second.uid}

    def test_two_replicas_without_a_lease(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """Both ask, both decide: one condition, one audit outcome (§24 m)."""
        gate = Gate(service, parties=2)
        (tmp_path / "two").mkdir()
        with (
            controller("approver", kube, service, tmp_path),
            controller("approver", kube, service, tmp_path / "two", identity="2", lease_in="kube-system"),
        ):
            request = Request(kube, admin)
            gate.reached()
            gate.open()
            assert request.decided() == [("Approved", "TpmAttested")]
        assert request.conditions() == [("Approved", "TpmAttested")]
        assert list(service.audit) == [request.uid]

    def test_two_replicas_with_a_lease(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """The second asks nothing before the first ends, and goes on where that one was."""
        gate = Gate(service)
        (tmp_path / "two").mkdir()
        with controller("approver", kube, service, tmp_path, identity="1") as first:
            request = Request(kube, admin)
            gate.reached()
            with controller(
                "approver", kube, service, tmp_path / "two", identity="2", leading=False
            ) as second:
                until(lambda: second.program.port and second.readyz().status_code == 200)
                assert second.metric("itl_operator_leading") == 0
                assert service.asked == {request.uid: 1}
                # Its request is on the way: what it would have done with the answer is lost.
                gate.open()
                first.stop()
                until(lambda: second.metric("itl_operator_leading") == 1)
                assert request.decided() == [("Approved", "TpmAttested")]
        assert list(service.audit) == [request.uid]

    def test_the_node_of_another_machine(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """It is told to the service; where it may go, it goes before the approval."""
        with controller("approver", kube, service, tmp_path):
            request = self._beside_a_node(kube, admin)
            assert request.decided() == [("Approved", "TpmAttested")]
            assert service.audit[request.uid]["node"]["machine_id"] == OTHER
            assert admin.delete(f"{NODES}/{request.node}").status_code == 200
            with attestation(admin, {"deleteStaleNodes": True}):
                until(lambda: self._decided_without(kube, admin))

    def _beside_a_node(self, kube: KubeAPI, admin: httpx.Client) -> Request:
        node = name()
        made = admin.post(NODES, json={"metadata": {"name": node, "labels": {OWNER_LABEL: OTHER}}})
        assert made.status_code == 201, made.text
        return Request(kube, admin, node=node)

    def _decided_without(self, kube: KubeAPI, admin: httpx.Client) -> bool:
        """Return whether the Node was gone when the request was approved: not before the change was seen."""
        request = self._beside_a_node(kube, admin)
        assert request.decided() == [("Approved", "TpmAttested")]
        gone = admin.get(f"{NODES}/{request.node}").status_code == 404
        if not gone:
            admin.delete(f"{NODES}/{request.node}")
        return gone


class attestation:  # noqa: N801 -- used as a function
    """NodeAttestation/cluster, for as long as the block lasts."""

    def __init__(self, admin: httpx.Client, spec: dict[str, Any]) -> None:
        self._admin, self._spec = admin, spec

    def __enter__(self) -> None:
        """Have it."""
        raw = {
            "apiVersion": "attestation.itl.io/v1alpha1",
            "kind": "NodeAttestation",
            "metadata": {"name": "cluster"},
            "spec": self._spec,
        }
        made = self._admin.post(ATTESTATIONS, json=raw)
        assert made.status_code == 201, made.text

    def __exit__(self, *_: object) -> None:
        """Have it no more."""
        assert self._admin.delete(f"{ATTESTATIONS}/cluster").status_code == 200


class TestSigner:
    """Certificates are issued for what was approved, and nothing else is."""

    def test_an_approved_request_gets_a_certificate_for_its_key(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """Not before it is approved; a denied one never; the signer beside ours is left alone."""
        service.sign = signed
        with controller("signer", kube, service, tmp_path, anchors=pem(OUR_CA.root).encode()):
            waits, denied = Request(kube, admin, signer=SIGNER), Request(kube, admin, signer=SIGNER)
            raw = denied.raw()
            raw["status"]["conditions"] = [
                {"type": "Denied", "status": "True", "reason": "x", "message": "x"}
            ]
            assert admin.put(f"{CSRS}/{denied.name}/approval", json=raw).status_code == 200
            request = Request(kube, admin, signer=SIGNER)
            request.approve()
            found = base64.b64decode(str(until(request.certificate))).decode()
            assert found.count("BEGIN CERTIFICATE") == 2
            assert (waits.certificate(), denied.certificate()) == (None, None)
            assert {waits.uid, denied.uid} & set(service.asked) == set()

    def test_a_bad_backend_issues_nothing(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """Each answer of §24 i, then a good one: only that one is issued."""
        wrong = iter(bad_answers())
        heard: list[int] = []

        def sign(body: dict[str, Any]) -> Answer:
            answer = next(wrong, None)
            if answer is None:
                return signed(body)
            heard.append(answer.status)
            return answer

        def reached(number: int) -> bool:
            return len(heard) > number

        service.sign = sign
        with controller("signer", kube, service, tmp_path, anchors=pem(OUR_CA.root).encode()):
            requests = []
            for number in range(len(bad_answers())):
                request = Request(kube, admin, signer=SIGNER)
                request.approve()
                until(partial(reached, number))
                requests.append(request)
            for request in requests:
                assert all(kind != "Failed" for kind, _ in request.conditions())
            last = Request(kube, admin, signer=SIGNER)
            last.approve()
            until(last.certificate)

    def test_what_the_service_judged_bad_fails(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """Somebody approved it by hand."""
        with controller("signer", kube, service, tmp_path, anchors=pem(OUR_CA.root).encode()):
            request = Request(kube, admin, signer=SIGNER)
            request.approve()
            until(lambda: len(request.conditions()) == 2)
            assert sorted(request.conditions()) == [("Approved", "Somebody"), ("Failed", "NotAttested")]
            assert request.certificate() is None


def signed(body: dict[str, Any]) -> Answer:
    """Answer as a good service: a certificate for the key of the request."""
    blocks = base64.b64decode(body["csr"]["request"])
    request = blocks[: blocks.index(b"-----END CERTIFICATE REQUEST-----\n") + 34]
    return Answer(body=OUR_CA.answer(request, at=datetime.now(UTC)).model_dump(mode="json"))


def bad_answers() -> list[Answer]:
    """Return what a broken backend might answer (§24 i)."""
    at = datetime.now(UTC)
    other = OUR_CA.answer(pkcs10(of=key()), at=at).model_dump(mode="json")
    nobody = {**other, "certificate_pem": ""}
    return [
        Answer(status=199),
        Answer(status=204),
        Answer(status=302, headers={"Location": "/elsewhere"}),
        problem("http-404", 404),
        Answer(b"not json", status=500),
        Answer(b"", status=200),
        Answer({}, status=200),
        Answer(nobody, status=200),
        Answer(other, status=200),
        Answer(other, status=201),
    ]


class TestNodes:
    """Nodes say what their machines are worth, within seconds."""

    def test_labels_and_taints_follow_trust(
        self, kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
    ) -> None:
        """Claimed and attested, then locked: label and taint; unlocked: both back."""
        node = name()
        service.machines = [listed(node)]

        def labels() -> dict[str, str]:
            found: dict[str, str] = admin.get(f"{NODES}/{node}").json()["metadata"].get("labels") or {}
            return found

        def taints() -> list[dict[str, Any]]:
            spec = admin.get(f"{NODES}/{node}").json()["spec"]
            return [each for each in spec.get("taints") or [] if each["key"] == TAINT_KEY]

        with (
            attestation(admin, {"onTrustLapse": {"taint": True, "cordon": True}}),
            controller("nodes", kube, service, tmp_path),
        ):
            assert admin.post(NODES, json={"metadata": {"name": node}}).status_code == 201
            until(lambda: labels().get(ATTESTED_LABEL) == "true")
            assert labels()[OWNER_LABEL] == MACHINE
            service.machines = [listed(node, status="locked", trusted=False)]
            until(lambda: labels().get(ATTESTED_LABEL) == "false")
            assert [each["effect"] for each in taints()] == ["NoExecute"]
            assert admin.get(f"{NODES}/{node}").json()["spec"]["unschedulable"] is True
            service.machines = [listed(node)]
            until(lambda: labels().get(ATTESTED_LABEL) == "true")
            assert taints() == []
            assert not admin.get(f"{NODES}/{node}").json()["spec"].get("unschedulable")
            assert not admin.get(f"{NODES}/{node}").json()["metadata"].get("finalizers")
        assert admin.delete(f"{NODES}/{node}").status_code == 200


def listed(node: str, **changes: Any) -> dict[str, Any]:
    """Return what the service says of a machine now."""
    at = datetime.now(UTC)
    said: NodeTrust = trust(
        hostname=node,
        trust_expires_at=at + timedelta(hours=1),
        node_certificate_at=at - timedelta(minutes=1),
        **changes,
    )
    return said.model_dump(mode="json")


def test_an_approver_beside_ours_holds_back(
    kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
) -> None:
    """While a binding exists the probe says no and a condition names it; without it, at the next start, it is ready."""
    role = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
    made = admin.post(
        f"{RBAC}/clusterrolebindings", json=binding("test-auto", role, "Group", "system:bootstrappers")
    )
    assert made.status_code == 201, made.text

    def active() -> str | None:
        status = admin.get(f"{ATTESTATIONS}/cluster").json().get("status") or {}
        return next(
            (
                each["status"]
                for each in status.get("conditions") or ()
                if each["type"] == "InTreeApproverActive"
            ),
            None,
        )

    with ExitStack() as stack:
        stack.callback(lambda: admin.delete(f"{RBAC}/clusterrolebindings/test-auto"))
        stack.enter_context(attestation(admin, {}))
        with controller("approver", kube, service, tmp_path) as running:
            until(lambda: active() == "True")
            assert running.readyz().status_code == 503
            assert "test-auto" in running.readyz().text
        assert admin.delete(f"{RBAC}/clusterrolebindings/test-auto").status_code == 200
        with controller("approver", kube, service, tmp_path) as running:
            until(lambda: active() == "False")
            until(lambda: running.readyz().status_code == 200)


def test_a_name_that_is_a_path_is_left_alone(
    kube: KubeAPI, admin: httpx.Client, service: Double, tmp_path: Path
) -> None:
    """`x?` must not stand for `x`: the request of that name is not even asked about, and the one beside it is."""
    with controller("approver", kube, service, tmp_path):
        other = Request(kube, admin)
        odd = f"{other.name}?dryRun=All"
        body = {**other.raw(), "metadata": {"name": odd}, "status": {}}
        with rest(kube, "bootstrap") as client:
            made = client.post(CSRS, json=body)
        assert made.status_code == 201, made.text
        assert other.decided() == [("Approved", "TpmAttested")]
        last = Request(kube, admin)
        assert last.decided() == [("Approved", "TpmAttested")]
        assert made.json()["metadata"]["uid"] not in service.asked
    found = admin.get(CSRS).json()["items"]
    assert [each["status"] for each in found if each["metadata"]["name"] == odd] == [{}]
