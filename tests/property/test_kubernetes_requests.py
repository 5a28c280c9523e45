"""Whatever is sent to our Kubernetes API, it answers: no request ends in an error that is not one of its own."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from attestation_testing.kubernetes import Answer, Cluster, Request, User, Watching
from attestation_testing.kubernetes.certificates import pem_blocks
from attestation_testing.kubernetes.objects import field_selector, label_selector
from attestation_testing.kubernetes.status import StatusError

ADMIN = User("admin", ("system:masters",))
MAPS = "/api/v1/namespaces/default/configmaps"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{ADMISSION}/validatingadmissionpolicies"
HOOKS = f"{ADMISSION}/validatingwebhookconfigurations"

_PATHS = st.sampled_from(
    [
        MAPS,
        f"{MAPS}/a",
        CSRS,
        f"{CSRS}/a",
        f"{CSRS}/a/status",
        f"{CSRS}/a/approval",
        "/api/v1/nodes/a",
        POLICIES,
        f"{POLICIES}bindings",
        HOOKS,
        "/apis",
        "/x",
    ]
)
_TYPES = st.sampled_from(
    [
        "application/json",
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ]
)
_KEYS = st.sampled_from(
    [
        "metadata",
        "spec",
        "status",
        "name",
        "labels",
        "conditions",
        "type",
        "request",
        "usages",
        "op",
        "path",
        "value",
        "data",
    ]
)
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("a"),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_KEYS, below, max_size=4),
    max_leaves=12,
)
_OBJECT = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("a")}, optional={"labels": _JSON, "finalizers": _JSON}
        )
    },
    optional=dict.fromkeys(("spec", "status", "data", "kind"), _JSON),
)
_CSR = st.fixed_dictionaries(
    {
        "metadata": st.just({"name": "a"}),
        "spec": st.dictionaries(
            st.sampled_from(["request", "usages", "signerName", "expirationSeconds", "extra"]), _JSON
        ),
        "status": st.dictionaries(st.sampled_from(["conditions", "certificate"]), _JSON),
    }
)
_ADMISSION = st.fixed_dictionaries(
    {
        "metadata": st.just({"name": "a"}),
        "spec": st.dictionaries(
            st.sampled_from(
                [
                    "validations",
                    "variables",
                    "matchConstraints",
                    "failurePolicy",
                    "validationActions",
                    "policyName",
                ]
            ),
            _JSON
            | st.lists(
                st.dictionaries(st.sampled_from(["name", "expression"]), st.text(max_size=5), max_size=2)
            )
            | st.fixed_dictionaries({"resourceRules": _JSON, "namespaceSelector": _JSON}),
        ),
        "webhooks": _JSON
        | st.lists(st.dictionaries(st.sampled_from(["name", "rules", "clientConfig"]), _JSON)),
    }
)
_BODY = (_JSON | _OBJECT | _CSR | _ADMISSION).map(json.dumps) | st.text()
_QUERY = st.dictionaries(
    st.sampled_from(
        ["fieldManager", "force", "watch", "limit", "resourceVersion", "labelSelector", "fieldSelector"]
    ),
    st.sampled_from(["", "a", "1", "true", "a=b", "a in (b", "metadata.name=a"]),
    max_size=3,
)


@given(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE"]),
    _PATHS,
    _TYPES,
    _QUERY,
    _BODY,
)
def test_each_request_has_an_answer(
    method: str, path: str, kind: str, query: dict[str, str], body: str
) -> None:
    """A mistake of the caller is told to the caller."""
    cluster = Cluster(seed=1)
    cluster.make("", "configmaps", {"metadata": {"name": "a"}, "data": {"a": "1"}}, namespace="default")
    request = Request(
        method=method,
        path=path,
        query=query,
        content_type=kind,
        body=body.encode("utf-8", "replace"),
        user=ADMIN,
    )
    answer = cluster.answer(request)
    assert isinstance(answer, Answer | Watching)
    if isinstance(answer, Answer):
        assert 200 <= answer.status < 600


@given(st.binary(max_size=300) | st.text("-BEGIND CRTFAO\n:=A", max_size=200).map(str.encode))
def test_any_bytes_may_be_pem(data: bytes) -> None:
    """What is none is passed over."""
    for kind, content in pem_blocks(data):
        assert isinstance(kind, str)
        assert isinstance(content, bytes)


@given(st.text("ab=!,() innotx", max_size=30))
def test_selectors_select_or_are_refused(said: str) -> None:
    """In no other way."""
    value = {"metadata": {"name": "a", "labels": {"a": "b"}}}
    for read in (label_selector, lambda text: field_selector(text, ())):
        try:
            matches = read(said)
        except StatusError:
            continue
        assert matches is None or matches(value) in (True, False)
