"""Tokens of ServiceAccounts: bound, for us alone, for a day at most; the one duty of their account, and no other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import certifi
import httpx
import pytest

from attestation.errors import Forbidden, IdentityProviderUnavailable, NodeMismatch, Unauthenticated
from attestation_service.auth.cluster_keys import MAX_DOCUMENT_BYTES, Clusters
from attestation_service.context.identity import BoundNode, Controller
from attestation_service.context.request import Origin
from attestation_service.kubernetes_clusters import ControllerDuty
from attestation_service.settings import Settings, SettingsInvalid
from tests.fixtures.openid.provider import b64url, sign
from tests.unit.service.conftest import HeldClock, settings_for
from tests.unit.service.realm import a_key, streamed

pytestmark = pytest.mark.anyio

ISSUER = "https://kubernetes.default.svc.cluster.local"
ORIGIN = Origin(request_id="r", address="192.0.2.7")
ACCOUNTS = {
    "attestation-approver": ["itl:approver"],
    "attestation-signer": ["itl:signer"],
    "attestation-controller": ["itl:nodes", "itl:more-nodes"],
    "attestation-runs": ["itl:runs"],
    "attestation-run-agent": ["priv:agent"],
    "attestation-hsm": ["itl:hsm"],
}


def jwks(*keys: Any) -> dict[str, Any]:
    """Return a key set as an API server publishes it."""
    return {"keys": [key.as_dict(private=False) for key in keys or (a_key(),)]}


def cluster(**changes: Any) -> dict[str, Any]:
    """Return one member of the setting."""
    found: dict[str, Any] = {
        "cluster_id": "default",
        "issuer": ISSUER,
        "jwks": jwks(),
        "service_accounts": ACCOUNTS,
    }
    return {name: value for name, value in (found | changes).items() if value is not None}


def claims(clock: HeldClock, account: str = "itl:approver", **changes: Any) -> dict[str, Any]:
    """Return what a token says that an API server projected into a pod; None removes a member."""
    namespace, _, name = account.partition(":")
    now = int(clock.at.timestamp())
    found: dict[str, Any] = {
        "aud": ["itl-attestation"],
        "exp": now + 3607,
        "iat": now,
        "nbf": now,
        "iss": ISSUER,
        "sub": f"system:serviceaccount:{namespace}:{name}",
        "kubernetes.io": {
            "namespace": namespace,
            "pod": {"name": "approver-5d8-x", "uid": "6f1c"},
            "serviceaccount": {"name": name, "uid": "77aa"},
            "warnafter": now + 3600,
        },
    }
    return {name: value for name, value in (found | changes).items() if value is not None}


def token(what: dict[str, Any], key: Any = None, **header: Any) -> str:
    """Return a token that says *what*."""
    key = key or a_key()
    return sign(key, what, header={"typ": None, **header})


def settings(directory: Path, *members: dict[str, Any], **more: Any) -> Settings:
    """Return settings that name these clusters."""
    return settings_for(directory, kubernetes_clusters=json.dumps(list(members) or [cluster()]), **more)


@pytest.fixture
def clock() -> HeldClock:
    """The clock."""
    return HeldClock()


@pytest.fixture
async def clusters(tmp_path: Path, clock: HeldClock) -> AsyncIterator[Clusters]:
    """One cluster whose keys stand in the setting."""
    found = Clusters(settings(tmp_path), clock)
    await found.start()
    yield found
    await found.aclose()


async def ask(clusters: Clusters, text: str, clock: HeldClock) -> Controller:
    return await clusters.controller(text, ORIGIN, clock.at)


@pytest.mark.parametrize(
    ("account", "duty"),
    [
        ("itl:approver", ControllerDuty.APPROVER),
        ("itl:signer", ControllerDuty.SIGNER),
        ("itl:more-nodes", ControllerDuty.CONTROLLER),
    ],
)
async def test_an_account_has_its_duty(
    clusters: Clusters, clock: HeldClock, account: str, duty: ControllerDuty
) -> None:
    """Of the cluster whose key signed."""
    found = await ask(clusters, token(claims(clock, account)), clock)
    assert (found.duty, found.cluster.cluster_id, found.service_account) == (duty, "default", account)
    event = found.event("x")
    assert event.operator_cn == f"default/{account}"
    assert event.operator_sub == f"{ISSUER}#system:serviceaccount:{account}"


NODE = {"name": "w-1", "uid": "5a1d"}


async def test_an_agent_is_of_the_node_that_its_token_names(clusters: Clusters, clock: HeldClock) -> None:
    """As the API server wrote it; of every other duty nobody asks on which node it runs."""
    said = claims(clock, "priv:agent")
    said["kubernetes.io"]["node"] = NODE
    found = await ask(clusters, token(said), clock)
    assert (found.duty, found.node) == (ControllerDuty.RUN_AGENT, BoundNode(**NODE))
    said = claims(clock, "itl:runs")
    said["kubernetes.io"]["node"] = NODE
    found = await ask(clusters, token(said), clock)
    assert (found.duty, found.node) == (ControllerDuty.RUNS, None)


@pytest.mark.threat("T263")
@pytest.mark.parametrize(
    "node",
    [
        None,
        "w-1",
        [NODE],
        {},
        {"name": "w-1"},
        {"uid": "5a1d"},
        {"name": "", "uid": "5a1d"},
        {"name": "w-1", "uid": 5},
        {"name": "w-1\n", "uid": "5a1d"},
    ],
    ids=str,
)
async def test_an_agent_whose_token_names_no_node(clusters: Clusters, clock: HeldClock, node: Any) -> None:
    """It could be anywhere: known, and refused."""
    said = claims(clock, "priv:agent")
    if node is not None:
        said["kubernetes.io"]["node"] = node
    with pytest.raises(NodeMismatch):
        await ask(clusters, token(said), clock)


async def test_an_account_without_duty_is_known_and_refused(clusters: Clusters, clock: HeldClock) -> None:
    """Also one of that name in another namespace."""
    for account in ("itl:other", "other:approver"):
        with pytest.raises(Forbidden):
            await ask(clusters, token(claims(clock, account)), clock)


BOUND = claims(HeldClock())["kubernetes.io"]
NOW = int(HeldClock().at.timestamp())
DAY = 24 * 3600


@pytest.mark.threat("T185")
@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": None},
        {"aud": []},
        {"aud": "https://kubernetes.default.svc"},
        # Another service has it too, and could send it on.
        {"aud": ["itl-attestation", "https://kubernetes.default.svc"]},
        {"exp": None},
        {"exp": NOW - 90},
        {"exp": "soon"},
        {"exp": float("nan")},
        {"iat": None},
        {"iat": NOW + 91},
        {"nbf": NOW + 91},
        {"exp": NOW + DAY + 1},
        {"sub": "system:serviceaccount:itl:signer"},
        {"sub": "itl:approver"},
        {"sub": None},
        # A token of a Secret is bound to nothing.
        {"kubernetes.io": None},
        {"kubernetes.io": "x"},
        {"kubernetes.io": {k: v for k, v in BOUND.items() if k != "pod"}},
        {"kubernetes.io": {k: v for k, v in BOUND.items() if k != "serviceaccount"}},
        {"kubernetes.io": BOUND | {"pod": {"name": "x"}}},
        {"kubernetes.io": BOUND | {"pod": {"name": "\n", "uid": "x"}}},
        {"kubernetes.io": BOUND | {"serviceaccount": {"name": "approver"}}},
        {"kubernetes.io": BOUND | {"namespace": "x" * 254}},
        {"kubernetes.io": BOUND | {"namespace": ["itl"]}},
    ],
    ids=str,
)
async def test_what_a_token_must_say(clusters: Clusters, clock: HeldClock, changes: dict[str, Any]) -> None:
    """Each missing or other word makes it nobody's."""
    assert (await ask(clusters, token(claims(clock)), clock)).duty is ControllerDuty.APPROVER
    with pytest.raises(Unauthenticated):
        await ask(clusters, token(claims(clock, **changes)), clock)


async def test_a_day_is_long_enough(clusters: Clusters, clock: HeldClock) -> None:
    """The longest token, and one that says no nbf; both ends of the leeway."""
    await ask(clusters, token(claims(clock, exp=NOW + DAY, nbf=None)), clock)
    await ask(clusters, token(claims(clock, iat=NOW + 90)), clock)
    await ask(clusters, token(claims(clock, exp=NOW - 89, iat=NOW - 3600, nbf=NOW - 3600)), clock)


@pytest.mark.parametrize(
    "header", [{"typ": "at+jwt"}, {"typ": 1}, {"typ": {}}, {"crit": ["x"]}, {"alg": "none"}], ids=str
)
async def test_another_kind_of_token_is_none(
    clusters: Clusters, clock: HeldClock, header: dict[str, Any]
) -> None:
    """What is of another form, or demands what we do not know."""
    good = token(claims(clock), typ="JWT")
    assert (await ask(clusters, good, clock)).pod == "approver-5d8-x"
    head = json.dumps({"alg": "RS256", "kid": a_key().kid, **header})
    _, payload, signature = good.split(".")
    with pytest.raises(Unauthenticated):
        await ask(clusters, f"{b64url(head.encode())}.{payload}.{signature}", clock)


async def test_another_key_signs_for_nobody(clusters: Clusters, clock: HeldClock) -> None:
    """Neither unknown nor under a known name."""
    stranger = a_key("RS256", 1)
    with pytest.raises(Unauthenticated):
        await ask(clusters, token(claims(clock), stranger), clock)
    with pytest.raises(Unauthenticated):
        await ask(clusters, token(claims(clock), stranger, kid=a_key().kid), clock)


async def test_clusters_with_one_issuer_are_told_apart_by_their_keys(
    tmp_path: Path, clock: HeldClock
) -> None:
    """As with kubeadm, where every cluster has the same; a key of both is nobody's."""
    members = [
        cluster(),
        cluster(cluster_id="edge", jwks=jwks(a_key("RS256", 1))),
        cluster(cluster_id="both", jwks=jwks(a_key("RS256", 2))),
        cluster(cluster_id="too", jwks=jwks(a_key("RS256", 2), a_key("RS256", 3))),
    ]
    found = Clusters(settings(tmp_path, *members), clock)
    assert (await ask(found, token(claims(clock)), clock)).cluster.cluster_id == "default"
    assert (await ask(found, token(claims(clock), a_key("RS256", 1)), clock)).cluster.cluster_id == "edge"
    with pytest.raises(Unauthenticated):
        await ask(found, token(claims(clock), a_key("RS256", 2)), clock)
    await found.aclose()


class APIServer:
    """What publishes keys; stands behind `httpx` as a transport."""

    def __init__(self) -> None:
        self.keys = [a_key()]
        self.asked = 0
        self.down = False
        self.answer: httpx.Response | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        self.asked += 1
        assert "authorization" not in request.headers
        if self.down:
            raise httpx.ConnectError("refused", request=request)
        return self.answer or streamed(200, json=jwks(*self.keys))


def asking(directory: Path, clock: HeldClock, server: APIServer) -> Clusters:
    """Return a cluster whose keys are asked for."""
    member = cluster(jwks=None, jwks_url="https://api.example/openid/v1/jwks", ca_file=certifi.where())
    return Clusters(settings(directory, member), clock, transport=httpx.MockTransport(server))


async def test_keys_are_asked_for_where_they_are(tmp_path: Path, clock: HeldClock) -> None:
    """Once for all; a new key at once, but not more often than every 30 seconds."""
    server = APIServer()
    found = asking(tmp_path, clock, server)
    await ask(found, token(claims(clock)), clock)
    await ask(found, token(claims(clock)), clock)
    assert server.asked == 1
    server.keys = [a_key("RS256", 1)]
    with pytest.raises(Unauthenticated):
        await ask(found, token(claims(clock), a_key("RS256", 1)), clock)
    clock.advance(30)
    await ask(found, token(claims(clock), a_key("RS256", 1)), clock)
    assert server.asked == 2
    await found.aclose()


async def test_an_api_server_that_is_away_comes_back_by_itself(tmp_path: Path, clock: HeldClock) -> None:
    """Until then nobody can be judged; afterwards its last keys count for a day."""
    server = APIServer()
    server.down = True
    found = asking(tmp_path, clock, server)
    with pytest.raises(IdentityProviderUnavailable):
        await ask(found, token(claims(clock)), clock)
    server.down = False
    clock.advance(30)
    await ask(found, token(claims(clock)), clock)
    server.down = True
    clock.advance(DAY)
    await ask(found, token(claims(clock)), clock)
    clock.advance(1)
    with pytest.raises(IdentityProviderUnavailable):
        await ask(found, token(claims(clock)), clock)
    await found.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        streamed(404),
        streamed(302, headers={"location": "https://api.example/openid/v1/jwks"}),
        streamed(200, content=b"x" * (MAX_DOCUMENT_BYTES + 1)),
        streamed(200, json={"keys": []}),
    ],
    ids=["404", "302", "long", "empty"],
)
async def test_an_answer_that_is_no_key_set_is_none(
    tmp_path: Path, clock: HeldClock, answer: httpx.Response
) -> None:
    """Nobody is let in by it."""
    server = APIServer()
    server.answer = answer
    found = asking(tmp_path, clock, server)
    with pytest.raises(IdentityProviderUnavailable):
        await ask(found, token(claims(clock)), clock)
    await found.aclose()


async def test_keys_of_a_file_are_read_anew(tmp_path: Path, clock: HeldClock) -> None:
    """A file that is not there at the start stops it; one that goes later does not."""
    file = tmp_path / "jwks.json"
    found = settings(tmp_path, cluster(jwks=None, jwks_file=str(file)))
    with pytest.raises(SettingsInvalid, match="default: FileNotFoundError"):
        Clusters(found, clock)
    file.write_text(json.dumps(jwks()))
    clusters = Clusters(found, clock)
    await ask(clusters, token(claims(clock)), clock)
    file.write_text(json.dumps(jwks(a_key("RS256", 1))))
    await ask(clusters, token(claims(clock), a_key("RS256", 1)), clock)
    file.unlink()
    clock.advance(60)
    with pytest.raises(Unauthenticated):
        await ask(clusters, token(claims(clock)), clock)
    await ask(clusters, token(claims(clock), a_key("RS256", 1)), clock)
    await clusters.aclose()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("/does/not/exist", "neither a JSON list nor a file"),
        ("[{]", "not JSON"),
        ("[" * 100_000, "too deep"),
        ('[{"issuer": "a", "issuer": "b"}]', "a member stands twice"),
        (json.dumps([cluster(issuer=None)]), "0.issuer: is missing"),
        (json.dumps([cluster(colour="red")]), "0.colour: is not known here"),
        (json.dumps([cluster(jwks=None)]), "exactly one of jwks"),
        (json.dumps([cluster(jwks_file="/x")]), "exactly one of jwks"),
        (json.dumps([cluster(jwks=None, jwks_url="https://x")]), "jwks_url and ca_file belong together"),
        (json.dumps([cluster(ca_file="/x")]), "jwks_url and ca_file belong together"),
        (json.dumps([cluster(jwks=None, jwks_url="http://x", ca_file="/x")]), "0.jwks_url"),
        (json.dumps([cluster(service_accounts={"attestation-approver": ["itl:a"], "attestation-signer": ["itl:a"]})]),
         "each ServiceAccount has one duty"),
        (json.dumps([cluster(service_accounts={"operator": ["itl:a"]})]), "0.service_accounts"),
        (json.dumps([cluster(service_accounts={"attestation-approver": ["approver"]})]), "0.service_accounts"),
        (json.dumps([cluster(), cluster()]), "two clusters have the same cluster_id"),
        (json.dumps([cluster(), cluster(cluster_id="edge")]), "two clusters have the same issuer and keys"),
        (json.dumps([cluster(max_lifetime_seconds=599)]), "0.max_lifetime_seconds"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_setting_stops_the_start(value: str, words: str) -> None:
    """In words, with the place, and without what stands there."""
    environ = {"ITL_SERVICE_URL": "https://x.example", "ITL_KUBERNETES_CLUSTERS": value}
    with pytest.raises(SettingsInvalid, match="ITL_KUBERNETES_CLUSTERS") as raised:
        Settings.load(environ, env_file=None)
    assert words in str(raised.value)


def test_a_file_may_hold_the_setting(tmp_path: Path) -> None:
    """And the safe value is the default of each member."""
    file = tmp_path / "clusters.json"
    file.write_text(json.dumps([cluster()]))
    found = settings_for(tmp_path, kubernetes_clusters=str(file))
    rule = found.cluster("default")
    assert rule is not None
    assert found.cluster("edge") is None
    assert (rule.quote, rule.bucket_nonces, rule.layouts, rule.key_modes) == (
        "required", False, ("itl-v1",), ("tpm-resident",)
    )  # fmt: skip
    assert settings_for(tmp_path).clusters == ()


def test_people_and_programs_have_issuers_of_their_own(tmp_path: Path) -> None:
    """One token would name both."""
    with pytest.raises(ValueError, match="the issuer of a cluster is not that of operators"):
        settings(tmp_path, oidc_issuer=ISSUER)


def test_no_certificate_of_ours_names_a_group_of_kubernetes(tmp_path: Path) -> None:
    """O is a group to an API server that believes the CA."""
    with pytest.raises(ValueError, match="must not begin with system:"):
        settings_for(tmp_path, enrollment_ca_organization="system:masters")
