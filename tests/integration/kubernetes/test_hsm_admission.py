"""What an API server refuses of the kinds of HSM issuers: by the policies that the chart renders, on ours.

What an object must be stands in the kinds themselves, as rules in CEL; these are about who writes.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from attestation_operator import crds
from attestation_operator.objects import HSM_CLUSTER_ISSUER, HSM_KINDS, QUOTE_ATTESTATION, Kind
from attestation_testing.kubernetes import KubernetesAPI, User
from tests.contract.kubernetes import MERGE, done, eventually
from tests.fixtures.hsm_kinds import GOOD
from tests.fixtures.operator_chart import FULL, NAMESPACE, Document, Documents, documents, of, run

__all__ = ["documents", "run"]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:{FULL}-hsm"
PERSON = "person"
VALUES: Document = {
    "settings": {"service_url": "https://attest.example"},
    "controllers": {"approver": False, "signer": False, "nodes": False, "hsm": True},
    "hsm": {"modules": [{"name": "m", "path": "/m.so"}]},
}


def at(kind: Kind, name: str = "", part: str = "") -> str:
    """Return the path of objects of a kind, of one, or of a part of it."""
    place = "/namespaces/default" if kind.namespaced else ""
    return f"/apis/{kind.api_version}{place}/{kind.plural}" + (f"/{name}" if name else "") + part


def raw(kind: Kind, name: str, **spec: Any) -> dict[str, Any]:
    """Return a good object of a kind, changed."""
    said = {key: value for key, value in (GOOD[kind][0] | spec).items() if value is not None}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": said}


@pytest.fixture(scope="module")
def guarded(documents: Documents) -> Iterator[dict[str, httpx.Client]]:
    """Give clients, by user name, of a server with the policies; each of them may everything by RBAC."""
    users = {name: User(name, ("system:masters",)) for name in (CONTROLLER, PERSON, "admin")}
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(KubernetesAPI(users))
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
        for kind in HSM_KINDS:
            assert clients["admin"].post(CRDS, json=crds.definition(kind)).status_code == 201
        for kind in HSM_KINDS:
            eventually(lambda kind=kind: done(clients["admin"].get(at(kind))))  # type: ignore[misc]  # a default binds it
        found = documents(VALUES)
        for kind_, plural in (
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        ):
            made = of(found, kind_)
            assert len(made) == 2
            for each in made.values():
                done(clients["admin"].post(f"{ADMISSION}/{plural}", json=each), 201)
        yield clients


def test_a_status_is_written_by_the_controller_alone(guarded: dict[str, httpx.Client]) -> None:
    """Whoever names another CA there would be believed by all that take it from there."""
    for kind in HSM_KINDS:
        who = guarded[CONTROLLER]
        assert who.post(at(kind), json=raw(kind, "one")).status_code == 201
        status = {"status": GOOD[kind][1]}
        refused = guarded[PERSON].patch(at(kind, "one", "/status"), json=status, headers=MERGE)
        assert refused.status_code == 403, kind.kind
        assert "only the controller of HSM issuers writes this" in refused.text
        assert who.patch(at(kind, "one", "/status"), json=status, headers=MERGE).status_code == 200, kind.kind
    change = {"spec": {"deletionPolicy": "Destroy"}}
    assert guarded[PERSON].patch(at(HSM_CLUSTER_ISSUER, "one"), json=change, headers=MERGE).status_code == 200


def test_a_ca_key_is_asked_for_by_the_controller_alone(guarded: dict[str, httpx.Client]) -> None:
    """Evidence for a request of their own anybody may bring."""
    kind = QUOTE_ATTESTATION
    refused = guarded[PERSON].post(at(kind), json=raw(kind, "theirs"))
    assert refused.status_code == 403
    assert "only the controller of HSM issuers asks for a CA key" in refused.text
    other = raw(kind, "theirs", purpose="CsrAttestation", wrap=None, secretRef=None)
    assert guarded[PERSON].post(at(kind), json=other).status_code == 201
    # The name of what an issuer asks next, taken before it asks.
    refused = guarded[PERSON].post(at(kind), json=other | {"metadata": {"name": "ca-0b5e8c1e-2"}})
    assert refused.status_code == 403
    assert "such a name is that of a question of an HSM issuer" in refused.text
