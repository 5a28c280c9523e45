"""Operators by OpenID Connect: the matrix of DELIVERY-AND-OPERATORS §9.3, each case over HTTP (FAULTS R17)."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc import jwk

from attestation.errors import Unauthenticated
from attestation_service.auth import oidc as module
from attestation_service.auth.access_token import ALGORITHMS, MAX_TOKEN_CHARACTERS
from attestation_service.auth.oidc import OIDC, origin_of_url
from attestation_service.auth.provider_keys import MAX_KEYS_OF_ONE_ID
from attestation_service.border import problems
from attestation_service.context.request import Origin
from attestation_service.settings import SettingsInvalid
from tests.fixtures.openid.provider import b64url, new_key, sign
from tests.unit.service.conftest import TOKEN, HeldClock, Service, Starter, settings_for
from tests.unit.service.realm import ISSUER, ORIGIN, SUB, Realm, a_key, as_json, bearer, streamed

pytestmark = pytest.mark.anyio

UNKNOWN_MACHINE = "/api/v1/machines/00000000-0000-4000-8000-000000000000"


@pytest.fixture
def clock() -> HeldClock:
    """The clock that service and realm share."""
    return HeldClock()


@pytest.fixture
def realm(clock: HeldClock, monkeypatch: pytest.MonkeyPatch) -> Realm:
    """A provider that every service of the test talks to."""
    found = Realm(clock)
    monkeypatch.setattr(module, "OIDC", partial(OIDC, transport=found.transport()))
    return found


@pytest.fixture
async def service(start: Starter, realm: Realm, clock: HeldClock) -> Service:
    """A service that trusts `realm`."""
    return await start(clock, oidc_issuer=ISSUER)


@pytest.fixture
async def provider(realm: Realm, clock: HeldClock, tmp_path: Path) -> AsyncIterator[OIDC]:
    """The provider's side of the service alone, without its background task."""
    found = OIDC(settings_for(tmp_path, oidc_issuer=ISSUER), clock, transport=realm.transport())
    yield found
    await found.aclose()


def provider_of(service: Service) -> OIDC:
    """Return what verifies tokens in *service*."""
    found = service.resources.oidc
    assert isinstance(found, OIDC)
    return found


async def ask(service: Service, token: str, path: str = "/api/v1/machines") -> httpx.Response:
    """Send a request with *token*."""
    return await service.get(path, headers=bearer(token))


async def refused(service: Service, token: str, status: int = 401) -> str:
    """Send a request that must be refused with *status*; return why."""
    answer = await ask(service, token)
    assert answer.status_code == status, answer.text
    problem = answer.json()
    code = {401: "unauthenticated", 403: "forbidden", 503: "identity-provider-unavailable"}[status]
    assert problem["type"] == f"urn:itl:problem:{code}"
    if status == 401:
        challenge = answer.headers["www-authenticate"]
        assert challenge.startswith(
            'Bearer realm="itl-attestation", error="invalid_token", error_description="'
        )
        assert challenge.isascii()
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1
    detail: str = problem["detail"]
    return detail


# ---------------------------------------------------------------- who may what


@pytest.mark.parametrize(
    ("roles", "read", "act", "audit"),
    [
        (("attestation-operator",), 200, 404, 403),
        (("attestation-viewer",), 200, 403, 403),
        (("attestation-auditor",), 403, 403, 200),
        (("attestation-operator", "attestation-auditor"), 200, 404, 200),
        (("somebody-else",), 403, 403, 403),
        (("ATTESTATION-OPERATOR", "attestation-operator "), 403, 403, 403),
    ],
)
async def test_roles_give_rights(
    service: Service, realm: Realm, roles: tuple[str, ...], read: int, act: int, audit: int
) -> None:
    """Operators read and act, viewers read, auditors see the audit; no role implies the auditor's, none nothing."""
    headers = bearer(realm.token(*roles))
    assert (await service.get("/api/v1/machines", headers=headers)).status_code == read
    acted = await service.post(f"{UNKNOWN_MACHINE}/lock", {"reason": "test"}, headers=headers)
    assert acted.status_code == act
    assert (await service.get("/api/v1/audit", headers=headers)).status_code == audit


async def test_a_role_may_hold_in_one_cluster(service: Service, realm: Realm) -> None:
    """Named behind the role; what names none, or a duty that is of the fleet, gives nothing."""
    headers = bearer(realm.token("attestation-operator:prod", "attestation-viewer:edge"))
    told = (await service.get("/api/v1/whoami", headers=headers)).json()
    assert told["roles"] == ["operator:prod", "viewer:edge"]
    assert (told["clusters"]["act"], told["clusters"]["read"]) == (["prod"], ["edge", "prod"])
    assert (await service.get("/api/v1/machines", headers=headers)).status_code == 200
    assert (await service.get("/api/v1/stats", headers=headers)).status_code == 403
    for nothing in (
        "attestation-operator:",
        "attestation-operator:*",
        "operator:prod",
        "attestation-auditor:prod",
    ):
        await refused(service, realm.token(nothing), 403)


async def test_a_missing_role_is_named(service: Service, realm: Realm) -> None:
    """Who is known but may not is told so with 403, and which role would do."""
    assert "attestation-operator" in await refused(service, realm.token("offline_access"), 403)
    answer = await service.post(
        f"{UNKNOWN_MACHINE}/lock", {"reason": "x"}, headers=bearer(realm.token("attestation-viewer"))
    )
    assert "attestation-operator" in answer.json()["detail"]


async def test_a_lightweight_token_is_explained(service: Service, realm: Realm) -> None:
    """A token without any roles says that it carries none, not that somebody lacks one."""
    token = realm.token(realm_access=None, resource_access=None)
    assert "no roles at all" in await refused(service, token, 403)


async def test_roles_of_the_pinned_client_count(service: Service, realm: Realm) -> None:
    """`resource_access.attestation-service.roles` is as good as a realm role."""
    access = {"attestation-service": {"roles": ["attestation-operator"]}}
    assert (await ask(service, realm.token(realm_access=None, resource_access=access))).status_code == 200


@pytest.mark.threat("T35")
async def test_roles_of_another_client_do_not(service: Service, realm: Realm) -> None:
    """Who administers some other client cannot make operators there."""
    access = {"grafana": {"roles": ["attestation-operator"]}, "account": {"roles": ["attestation-operator"]}}
    await refused(service, realm.token(realm_access={"roles": []}, resource_access=access), 403)


async def test_the_client_and_the_roles_can_be_renamed(
    start: Starter, realm: Realm, clock: HeldClock
) -> None:
    """The names are the operators' own; the old ones are then worth nothing."""
    service = await start(
        clock,
        oidc_issuer=ISSUER,
        oidc_audience="attest",
        oidc_clients=("our-cli",),
        oidc_role_client="infra",
        oidc_operator_role="duty-engineer",
    )
    good: dict[str, Any] = {
        "aud": "attest",
        "azp": "our-cli",
        "realm_access": None,
        "resource_access": {"infra": {"roles": ["duty-engineer"]}},
    }
    assert (await ask(service, realm.token(**good))).status_code == 200
    await refused(service, realm.token())
    old = {"realm_access": {"roles": ["attestation-operator"]}}
    await refused(service, realm.token(**good | old | {"resource_access": None}), 403)


async def test_break_glass_stays_beside_it(service: Service, realm: Realm) -> None:
    """The break-glass token is recognised as such; a wrong one is judged as a token and refused."""
    assert (await ask(service, TOKEN)).status_code == 200
    await refused(service, TOKEN[:-1])


async def test_a_switched_off_provider_accepts_nobody(start: Starter, realm: Realm, clock: HeldClock) -> None:
    """`ITL_OIDC_ENABLED=false`: nothing is fetched, every token is refused."""
    service = await start(clock, oidc_issuer=ISSUER, oidc_enabled=False)
    await refused(service, realm.token())
    assert not realm.asked


# ---------------------------------------------------------------- good tokens


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
async def test_every_algorithm_of_ours_is_accepted(service: Service, realm: Realm, algorithm: str) -> None:
    """RS, PS, ES and Edwards keys; the key says which."""
    realm.keys = [a_key(algorithm)]
    assert (await ask(service, realm.token())).status_code == 200


GOOD: dict[str, dict[str, Any]] = {
    "aud as a text": {"aud": "attestation-service"},
    "one audience, no client named": {"aud": "attestation-service", "azp": None},
    "aud as a list of one, no client named": {"aud": ["attestation-service"], "azp": None},
    "client_id of RFC 9068": {"azp": None, "client_id": "attestation-web"},
    "both": {"client_id": "attestation-cli"},
    "no typ": {"typ": None},
    "no iat": {"iat": None},
    "no preferred_username": {"preferred_username": None},
    "preferred_username is a number": {"preferred_username": 7},
    "times as floats": {"exp": 1e10, "nbf": 0.5},
    "unknown claims": {"acr": "1", "nonce": "x", "very": {"deep": [1, {}]}},
    "roles among other types": {"realm_access": {"roles": [1, None, "attestation-operator", {}]}},
}


@pytest.mark.parametrize("name", GOOD)
async def test_other_shapes_of_good_tokens(service: Service, realm: Realm, name: str) -> None:
    """What Keycloak and RFC 9068 providers write differently is accepted."""
    answer = await ask(service, realm.token(**GOOD[name]))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
async def test_header_types_of_access_tokens(service: Service, realm: Realm, kind: str) -> None:
    """`JWT` as Keycloak writes, `at+jwt` as RFC 9068 does; media types know no case."""
    token = sign(a_key(), realm.claims(), header={"typ": kind})
    assert (await ask(service, token)).status_code == 200


@pytest.mark.threat("T35")
@pytest.mark.parametrize(
    ("claim", "seconds", "status"),
    [
        ("exp", -29, 200),
        ("exp", -30, 401),
        ("exp", -3600, 401),
        ("nbf", 30, 200),
        ("nbf", 31, 401),
        ("iat", 30, 200),
        ("iat", 31, 401),
        ("iat", -86_400, 200),
    ],
)
async def test_clocks_may_differ_by_the_leeway(
    service: Service, realm: Realm, clock: HeldClock, claim: str, seconds: int, status: int
) -> None:
    """Thirty seconds to either side, and not one more."""
    at = int(clock.at.timestamp()) + seconds
    assert (await ask(service, realm.token(**{claim: at}))).status_code == status


async def test_no_leeway_where_none_is_wanted(start: Starter, realm: Realm, clock: HeldClock) -> None:
    """`ITL_OIDC_LEEWAY_SECONDS=0`: a token ends at its `exp`."""
    service = await start(clock, oidc_issuer=ISSUER, oidc_leeway_seconds=0)
    now = int(clock.at.timestamp())
    assert (await ask(service, realm.token(exp=now + 1))).status_code == 200
    await refused(service, realm.token(exp=now))


async def test_a_token_expires_while_it_is_used(service: Service, realm: Realm, clock: HeldClock) -> None:
    """Nothing remembers that a token was good."""
    token = realm.token()
    assert (await ask(service, token)).status_code == 200
    clock.advance(331)
    assert "expired" in await refused(service, token)


# ---------------------------------------------------------------- bad claims

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another issuer": ({"iss": f"{ORIGIN}/realms/other"}, "iss="),
    "the issuer with a slash": ({"iss": f"{ISSUER}/"}, "iss="),
    "no issuer": ({"iss": None}, "iss="),
    "a list of issuers": ({"iss": [ISSUER]}, "iss="),
    "another audience": (
        {"aud": "account"},
        "token has aud=[account], expected attestation-service; add an audience mapper",
    ),
    "no audience": ({"aud": None}, "token has aud=[], expected attestation-service; add an audience mapper"),
    "audience of other types": ({"aud": [1, None, ["attestation-service"]]}, "aud=[]"),
    "audience as a mapping": ({"aud": {"attestation-service": 1}}, "aud=[]"),
    "audience that only begins so": ({"aud": "attestation-service-2"}, "aud="),
    "another client": ({"azp": "grafana"}, "azp=grafana"),
    "another client by RFC 9068": ({"azp": None, "client_id": "grafana"}, "client_id=grafana"),
    "azp and client_id disagree": ({"client_id": "grafana"}, "client_id=grafana"),
    "azp of another type": ({"azp": ["attestation-cli"]}, "azp=a list"),
    "several audiences and no client": ({"azp": None}, "azp"),
    "an ID token": ({"typ": "ID"}, "typ ID"),
    "a refresh token": ({"typ": "Refresh"}, "typ Refresh"),
    "an offline token": ({"typ": "Offline"}, "typ Offline"),
    "typ in other letters": ({"typ": "bearer"}, "typ bearer"),
    "typ of another type": ({"typ": True}, "typ a bool"),
    "bound to a key": ({"cnf": {"jkt": "x"}}, "cnf"),
    "no exp": ({"exp": None}, "no exp"),
    "exp as a text": ({"exp": "9999999999"}, "exp that is not a number"),
    "exp is true": ({"exp": True}, "exp that is not a number"),
    "exp is enormous": ({"exp": 10**400}, "exp that is no time"),
    "exp is a large float": ({"exp": 1e300}, "exp that is no time"),
    "exp is negative": ({"exp": -1}, "exp that is no time"),
    "nbf as a list": ({"nbf": [0]}, "nbf that is not a number"),
    "iat as a mapping": ({"iat": {}}, "iat that is not a number"),
    "no sub": ({"sub": None}, "no sub"),
    "an empty sub": ({"sub": ""}, "sub"),
    "sub of another type": ({"sub": 7}, "sub"),
    "sub of 256 characters": ({"sub": "x" * 256}, "sub"),
    "sub of two lines": ({"sub": "a\nb"}, "sub"),
}


@pytest.mark.threat("T35")
@pytest.mark.parametrize("name", BAD)
async def test_bad_claims_are_401_and_explained(service: Service, realm: Realm, name: str) -> None:
    """Signed by the provider, and still not for us, not now or not an access token."""
    claims, words = BAD[name]
    assert words in await refused(service, realm.token(**claims))


@pytest.mark.parametrize("payload", [b"[]", b"7", b'"x"', b"null", b"{", b"\xff", b"[" * 10_000, b"{}"])
async def test_a_payload_that_is_no_object(service: Service, payload: bytes) -> None:
    """Whatever the provider signed: 401, never 500."""
    await refused(service, sign(a_key(), payload))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
async def test_numbers_that_compare_with_nothing(
    service: Service, realm: Realm, word: str, claim: str
) -> None:
    """NaN would never expire: it compares false with every instant."""
    text = json.dumps(realm.claims(**{claim: 424242})).replace("424242", word)
    await refused(service, sign(a_key(), text.encode()))


ODD: list[Any] = [
    None,
    True,
    0,
    -1.5,
    "",
    "attestation-operator",
    [],
    [[]],
    {},
    {"roles": "attestation-operator"},
]


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("claim", ["realm_access", "resource_access", "attestation-service", "roles"])
async def test_roles_of_wrong_types_give_nothing(
    service: Service, realm: Realm, claim: str, value: Any
) -> None:
    """Roles are a list of texts in the place that is theirs; everything else is no role."""
    other: dict[str, Any] = {"realm_access": {"roles": []}, "resource_access": {}}
    if claim == "roles":
        other["realm_access"] = {"roles": value}
    elif claim == "attestation-service":
        other["resource_access"] = {claim: value}
    else:
        other[claim] = value
    claims = realm.claims() | other
    await refused(service, sign(a_key(), claims), 403)


# ---------------------------------------------------------------- bad headers, signatures, and no tokens at all


def unsigned(header: object, claims: object, signature: bytes = b"") -> str:
    """Return something in the form of a token."""
    return ".".join(b64url(part) for part in (as_json(header), as_json(claims), signature))


@pytest.mark.threat("T34")
@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE"])
@pytest.mark.parametrize("signature", [b"", b"x"])
async def test_unsigned_tokens_are_refused(
    service: Service, realm: Realm, algorithm: str, signature: bytes
) -> None:
    """`alg: none` is no signature, in whatever letters."""
    await refused(service, unsigned({"alg": algorithm, "typ": "JWT"}, realm.claims(), signature))


def public_key_as_secret() -> dict[str, bytes]:
    """Return every text of the public key that somebody may have taken for an HMAC secret."""
    public = a_key().get_op_key("verify")
    assert isinstance(public, rsa.RSAPublicKey)
    return {
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "pkcs1": public.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        "der": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": as_json(a_key().as_dict(private=False)),
    }


@pytest.mark.threat("T34")
@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("form", sorted(public_key_as_secret()))
async def test_the_public_key_is_no_secret(service: Service, realm: Realm, algorithm: str, form: str) -> None:
    """An HMAC keyed with what everybody can read proves nothing."""
    secret = jwk.OctKey(public_key_as_secret()[form], b"", {"kty": "oct"})  # type: ignore[arg-type]
    token = sign(secret, realm.claims(), algorithm=algorithm, header={"kid": a_key().kid})
    assert algorithm in await refused(service, token)


HEADERS: dict[str, dict[str, Any]] = {
    "no alg": {"alg": None},
    "alg of another type": {"alg": ["RS256"]},
    "alg in other letters": {"alg": "rs256"},
    "an algorithm of the same key, but not its own": {"alg": "RS512"},
    "an algorithm of another type of key": {"alg": "ES256"},
    "an encryption algorithm": {"alg": "RSA-OAEP"},
    "no typ": {"typ": None},
    "typ of another token": {"typ": "logout+jwt"},
    "typ of another type": {"typ": 7},
    "crit": {"crit": ["exp"], "exp": 1},
    "empty crit": {"crit": []},
    "b64": {"b64": False},
    "kid of another type": {"kid": {"a": 1}},
    "empty kid": {"kid": ""},
    "unknown kid": {"kid": "somebody-elses"},
    "kid as a path": {"kid": "../../../../dev/null"},
    "kid as a query": {"kid": "x' UNION SELECT 'y"},
}


@pytest.mark.parametrize("name", HEADERS)
async def test_bad_headers_are_401(service: Service, realm: Realm, name: str) -> None:
    """The header chooses nothing but among the keys that the provider publishes, each for its own algorithm."""
    await refused(service, sign(a_key(), realm.claims(), header=HEADERS[name]))


@pytest.mark.threat("T34")
@pytest.mark.parametrize("member", ["jwk", "jku", "x5u", "x5c"])
async def test_a_key_that_the_token_brings_is_ignored(service: Service, realm: Realm, member: str) -> None:
    """A token cannot bring or name the key it is verified with."""
    mine = a_key("RS256", 9)
    brought: Any = {
        "jwk": mine.as_dict(private=False),
        "jku": "https://evil.example/certs",
        "x5u": "https://evil.example/cert.pem",
        "x5c": ["MIIB"],
    }[member]
    before = realm.asked.copy()
    token = sign(mine, realm.claims(), header={member: brought, "kid": a_key().kid})
    assert "signature is wrong" in await refused(service, token)
    assert realm.asked == before


async def test_a_stranger_with_the_right_kid_is_refused(service: Service, realm: Realm) -> None:
    """The `kid` is a hint; the signature decides."""
    token = sign(a_key("RS256", 9), realm.claims(), header={"kid": a_key().kid})
    assert "signature is wrong" in await refused(service, token)


async def test_a_changed_token_is_refused(service: Service, realm: Realm) -> None:
    """Claims of one token under the signature of another."""
    viewer, operator = realm.token("attestation-viewer"), realm.token("attestation-operator")
    mixed = ".".join([viewer.split(".")[0], operator.split(".")[1], viewer.split(".")[2]])
    assert "signature is wrong" in await refused(service, mixed)


MALFORMED = [
    b"",
    b".",
    b"..",
    b"a.b",
    b"a.b.c",
    b"a.b.c.d",
    b"a.b.c.d.e",
    b"!!!.???.###",
    b"eyJhbGciOiJSUzI1NiJ9..",
    b"eyJhbGciOiJSUzI1NiJ9.e30.",
    b"\xff\xfe.\x80.\x81",
    "ｅｙＪ.ｅ３０.ｘ".encode(),
    b"e30=.e30=.e30=",
    b"x y z",
    b"x, Bearer y",
    b"A" * 100_000,
    b".".join([b"e30" * 11_000] * 3),
    b64url(b"[" * 9_000).encode() + b".e30.e30",
    b64url(b'{"alg":' + b"[" * 4_000).encode() + b".e30.e30",
    b"null.null.null",
    b64url(b"\xef\xbb\xbf{}").encode() + b".e30.e30",
    b64url('{"alg":"RS256"}'.encode("utf-16")).encode() + b".e30.e30",
]


@pytest.mark.threat("T36")
@pytest.mark.parametrize("token", MALFORMED, ids=lambda token: repr(token[:24]))
async def test_malformed_bearers_are_401(service: Service, token: bytes) -> None:
    """Whatever stands behind `Bearer`: 401, never 500, and nothing is asked of the provider."""
    answer = await service.http.get("/api/v1/machines", headers=[(b"authorization", b"Bearer " + token)])
    assert answer.status_code == 401, answer.text
    assert "www-authenticate" in answer.headers


@pytest.mark.parametrize("junk", ["!", "=", "==", ".", " x", "+", "/", "%3D"])
async def test_a_good_token_with_something_more_is_refused(service: Service, realm: Realm, junk: str) -> None:
    """Decoders that pass over strange characters would read one token in many texts."""
    token = realm.token()
    assert "not a signed token" in await refused(service, token + junk)
    assert "not a signed token" in await refused(service, f"{token[:-4]}{junk}{token[-4:]}")


@pytest.mark.threat("T36")
async def test_a_token_that_is_too_long_is_not_parsed(service: Service, realm: Realm) -> None:
    """100 KiB, properly signed: refused by its length, in words."""
    token = realm.token(padding="x" * 100_000)
    assert str(MAX_TOKEN_CHARACTERS) in await refused(service, token)


async def test_without_credentials_no_error_is_named(service: Service) -> None:
    """RFC 6750 §3: who sent no token learns only that one is needed."""
    answer = await service.get("/api/v1/machines")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="itl-attestation"'


@pytest.mark.threat("T36")
async def test_an_explanation_fits_into_a_header(service: Service, realm: Realm) -> None:
    """What a token says can end neither the quoted string nor the header."""
    for text in ('a"b', "a\\b", "a\r\nSet-Cookie: x=1", "ä", "x" * 300):
        detail = await refused(service, realm.token(azp=text))
        assert text not in detail


@pytest.mark.parametrize("words", ['a "quoted" word', "a \\ b", "two\r\nlines", "ümlaut", "\x00\x7f"])
async def test_no_reason_ends_its_quotes(words: str) -> None:
    """RFC 6750 §3 lists what an `error_description` may contain; whatever a reason says, it contains nothing else."""
    scope = {"path": "/api/v1/machines", "headers": [(b"authorization", b"Bearer x")]}
    answer = problems.answer(Unauthenticated(words), scope)
    assert answer is not None
    challenge = answer.headers["www-authenticate"]
    assert re.fullmatch(
        r'[^"]*realm="[^"\\]*", error="invalid_token", error_description="[ !#-\[\]-~]*"', challenge
    )


# ---------------------------------------------------------------- who they are


async def test_name_and_subject_enter_the_audit(service: Service, realm: Realm) -> None:
    """The audit shows the name and keeps issuer and subject, which stay when names change hands."""
    token = realm.token()
    wanted = {"role": "worker-app", "expires_in_seconds": 600}
    answer = await service.post("/api/v1/registration-tokens", wanted, headers=bearer(token))
    assert answer.is_success, answer.text
    entry = (await service.audit())[0]
    assert entry["operator_cn"] == "anna"
    assert entry["operator_sub"] == f"{ISSUER}#{SUB}"


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "anna"}, "anna"),
        ({"preferred_username": None}, SUB),
        ({"preferred_username": "  "}, SUB),
        ({"preferred_username": "an\x1b[31mna\r\n\u202e"}, "an[31mna"),
        ({"preferred_username": "Ännchen O'Neil"}, "Ännchen O'Neil"),
        ({"preferred_username": "x" * 500}, "x" * 256),
        ({"preferred_username": "\ud800anna"}, "anna"),
    ],
)
async def test_names_are_made_harmless(
    provider: OIDC, realm: Realm, clock: HeldClock, claims: dict[str, Any], name: str
) -> None:
    """A name is one printable line of at most 256 characters; without one the subject stands in."""
    who = await provider.operator(realm.token(**claims), an_origin(), clock.at)
    assert (who.cn, who.sub, who.source) == (name, f"{ISSUER}#{SUB}", "192.0.2.7")
    assert who.is_human


def an_origin() -> Origin:
    """Return where a request came from."""
    return Origin(request_id="1", address="192.0.2.7")


@pytest.mark.threat("T36")
@pytest.mark.parametrize("name", ["SYSTEM", "system", " System\n", "machine", "Ｓｙｓｔｅｍ", "unknown"])
async def test_nobody_is_called_as_the_service_is(service: Service, realm: Realm, name: str) -> None:
    """An account named SYSTEM would look like break-glass in the audit."""
    assert "reserved" in await refused(service, realm.token(preferred_username=name))


async def test_denials_are_audited_with_their_reason_and_without_the_token(
    service: Service, realm: Realm
) -> None:
    """The audit says who was refused what and why; the token is in neither audit nor log."""
    token = realm.token(aud="account")
    await refused(service, token)
    [entry] = await service.audit(action="denied")
    assert "add an audience mapper" in entry["detail"]
    assert "GET /api/v1/machines" in entry["detail"]
    assert not any(part in json.dumps(entry) for part in token.split("."))


@pytest.mark.threat("T36")
async def test_denials_are_bounded(service: Service, realm: Realm) -> None:
    """A flood of bad tokens cannot fill the audit log, and locks nobody out who has a good one."""
    for _ in range(30):
        await refused(service, realm.token(aud="account"))
    assert len(await service.audit(action="denied")) <= 10
    assert (await ask(service, realm.token())).status_code == 200


# ---------------------------------------------------------------- keys


async def test_a_rotated_key_is_learnt_with_one_question(service: Service, realm: Realm) -> None:
    """An unknown key is asked for at once, and the token is then good; the old key still is."""
    old = realm.token()
    assert (await ask(service, old)).status_code == 200
    realm.keys = [a_key("RS256", 1), a_key()]
    before = realm.asked["certs"]
    assert (await ask(service, realm.token())).status_code == 200
    assert (await ask(service, old)).status_code == 200
    assert realm.asked["certs"] == before + 1


@pytest.mark.threat("T36")
async def test_unknown_keys_are_asked_for_at_most_every_thirty_seconds(
    service: Service, realm: Realm, clock: HeldClock
) -> None:
    """Strangers with invented key ids cannot make us flood the provider."""
    assert (await ask(service, realm.token())).status_code == 200
    before = realm.asked["certs"]
    for number in range(20):
        token = sign(a_key(), realm.claims(), header={"kid": f"invented-{number}"})
        assert "does not publish" in await refused(service, token)
    assert realm.asked["certs"] == before + 1
    clock.advance(29)
    await refused(service, sign(a_key(), realm.claims(), header={"kid": "invented"}))
    assert realm.asked["certs"] == before + 1
    clock.advance(1)
    await refused(service, sign(a_key(), realm.claims(), header={"kid": "invented"}))
    assert realm.asked["certs"] == before + 2


async def test_a_clock_that_is_set_back_does_not_stop_the_asking(
    service: Service, realm: Realm, clock: HeldClock
) -> None:
    """The throttle looks back, never ahead."""
    await refused(service, sign(a_key(), realm.claims(), header={"kid": "invented"}))
    clock.advance(-3600)
    realm.keys = [a_key("RS256", 1)]
    assert (await ask(service, realm.token())).status_code == 200


@pytest.mark.threat("T36")
async def test_all_who_wait_share_one_flight(service: Service, realm: Realm) -> None:
    """Fifty requests with a new key while the provider thinks: one question, and all are answered."""
    assert (await ask(service, realm.token())).status_code == 200
    realm.keys = [a_key("RS256", 1)]
    before, thinking = realm.asked["certs"], asyncio.Event()

    async def answer(_request: httpx.Request) -> httpx.Response:
        await thinking.wait()
        return streamed(200, json=realm.jwks())

    realm.instead["certs"] = answer
    asked = [asyncio.create_task(ask(service, realm.token())) for _ in range(50)]
    # One of them gives up: the others must not notice.
    await asyncio.sleep(0.05)
    asked[0].cancel()
    await asyncio.sleep(0)
    thinking.set()
    answers = await asyncio.gather(*asked[1:])
    assert {a.status_code for a in answers} == {200}
    assert realm.asked["certs"] == before + 1


async def test_a_removed_key_is_forgotten(service: Service, realm: Realm) -> None:
    """With the next refresh, tokens of a key that the provider withdrew are refused."""
    realm.keys = [a_key(), a_key("RS256", 1)]
    token = sign(a_key("RS256", 1), realm.claims())
    assert (await ask(service, token)).status_code == 200
    realm.keys = [a_key()]
    await provider_of(service).refresh()
    assert "does not publish" in await refused(service, token)


async def test_two_keys_may_share_an_id(service: Service, realm: Realm) -> None:
    """Each is tried for its own algorithm; a token of either is good, a token of neither is not."""
    twins = [new_key("ES256", kid="twin") for _ in range(2)] + [new_key("RS256", kid="twin")]
    realm.keys = twins
    for key in twins:
        assert (await ask(service, sign(key, realm.claims()))).status_code == 200
    await refused(service, sign(new_key("ES256", kid="twin"), realm.claims()))


async def test_few_keys_of_one_id_are_tried(service: Service, realm: Realm) -> None:
    """A `kid` that a hundred keys share costs four verifications, not a hundred."""
    keys = [new_key("ES256", kid="twin") for _ in range(MAX_KEYS_OF_ONE_ID + 1)]
    realm.keys = keys
    assert (await ask(service, sign(keys[-2], realm.claims()))).status_code == 200
    await refused(service, sign(keys[-1], realm.claims()))


async def test_a_token_without_kid_means_the_only_key(service: Service, realm: Realm) -> None:
    """Where there is one key for the algorithm; among several nothing is guessed."""
    token = sign(a_key(), realm.claims(), header={"kid": None})
    assert (await ask(service, token)).status_code == 200
    realm.keys = [a_key(), a_key("RS256", 1)]
    await provider_of(service).refresh()
    assert "names no key" in await refused(service, token)
    es = sign(a_key("ES256"), realm.claims(), header={"kid": None})
    assert "does not publish" in await refused(service, es)


def without(member: dict[str, Any], *names: str, **other: Any) -> dict[str, Any]:
    """Return a JWK with some members removed or replaced."""
    return {k: v for k, v in member.items() if k not in names} | other


PUBLIC = a_key("RS256", 2).as_dict(private=False)
UNUSABLE: dict[str, Any] = {
    "for encryption": without(PUBLIC, use="enc"),
    "for nothing in particular": without(PUBLIC, "use"),
    "for key wrapping": without(PUBLIC, alg="RSA-OAEP"),
    "for HMAC": without(PUBLIC, alg="HS256"),
    "for none": without(PUBLIC, alg="none"),
    "alg of another type": without(PUBLIC, alg=["RS256"]),
    "of another kind": without(PUBLIC, kty="EC"),
    "without kind": without(PUBLIC, "kty"),
    "symmetric": {"kty": "oct", "use": "sig", "kid": PUBLIC["kid"], "k": "AAAA", "alg": "HS256"},
    "with its private part": a_key("RS256", 2).as_dict(private=True),
    "kid of another type": without(PUBLIC, kid=7),
    "no modulus": without(PUBLIC, "n"),
    "modulus of zero": without(PUBLIC, n="AA"),
    "modulus of another type": without(PUBLIC, n=7),
    "modulus of 8400 bits": without(PUBLIC, n="w" * 1399 + "x"),
    "exponent of one": without(PUBLIC, e="AQ"),
    "a curve that is not ours": {
        "kty": "EC",
        "crv": "secp256k1",
        "use": "sig",
        "kid": "k",
        "x": "AA",
        "y": "AA",
    },
    "a point that is not on the curve": {
        "kty": "EC",
        "crv": "P-256",
        "use": "sig",
        "kid": PUBLIC["kid"],
        "alg": "ES256",
        "x": b64url(b"\x01" * 32),
        "y": b64url(b"\x02" * 32),
    },
    "a text": "key",
    "nothing": None,
    "a list": [PUBLIC],
}


@pytest.mark.threat("T34")
@pytest.mark.parametrize("name", UNUSABLE)
async def test_keys_that_are_left_out(service: Service, realm: Realm, name: str) -> None:
    """What is not a public signing key of ours verifies nothing, and does not spoil the keys beside it."""
    strange = UNUSABLE[name]
    realm.keys = [a_key(), strange if isinstance(strange, dict) else {"spoilt": strange}]
    if not isinstance(strange, dict):
        realm.answer_instead("certs", json={"keys": [a_key().as_dict(private=False), strange]})
    await provider_of(service).refresh()
    assert (await ask(service, sign(a_key(), realm.claims()))).status_code == 200
    assert "does not publish" in await refused(service, sign(a_key("RS256", 2), realm.claims()))


async def test_small_rsa_keys_are_left_out(service: Service, realm: Realm) -> None:
    """1024 bits sign nobody in."""
    private = rsa.generate_private_key(65537, 1024)
    numbers = private.public_key().public_numbers()
    small = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "small", "e": "AQAB"}
    realm.keys = [a_key(), small | {"n": b64url(numbers.n.to_bytes(128))}]
    await provider_of(service).refresh()
    header, payload, _ = sign(a_key(), realm.claims(), header={"kid": "small"}).split(".")
    signature = private.sign(f"{header}.{payload}".encode(), PKCS1v15(), SHA256())
    assert "does not publish" in await refused(service, f"{header}.{payload}.{b64url(signature)}")


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256"])
async def test_a_key_with_alg_verifies_that_one_only(service: Service, realm: Realm, algorithm: str) -> None:
    """Properly signed by the provider's key, with an algorithm that the key was not published for."""
    token = sign(a_key(), realm.claims(), algorithm=algorithm)
    assert "signature is wrong" in await refused(service, token)


async def test_a_key_without_alg_verifies_what_its_type_can(service: Service, realm: Realm) -> None:
    """RS and PS for RSA, one algorithm for each curve; never across."""
    realm.keys = [without(a_key().as_dict(private=False), "alg")]
    await provider_of(service).refresh()
    for algorithm in ("RS256", "RS384", "RS512", "PS256"):
        token = sign(a_key(), realm.claims(), algorithm=algorithm)
        assert (await ask(service, token)).status_code == 200
    assert "not accepted" in await refused(service, sign(a_key(), realm.claims(), algorithm="PS512"))


# ---------------------------------------------------------------- a provider that is down, slow or lies


async def test_a_provider_that_is_down_stops_no_start(
    start: Starter, realm: Realm, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service starts, says 503 with a time to come back, serves machines, and recovers by itself."""
    # Who asks is to be seen here, not the task that asks again by itself, whose seconds are real ones.
    monkeypatch.setattr(module, "RETRY_WITHOUT_KEYS_SECONDS", 3600.0)
    realm.down = True
    service = await start(clock, oidc_issuer=ISSUER)
    if (flight := provider_of(service)._flight) is not None:
        await asyncio.wait({flight})  # who joined what the start began would not be the one that asked
    token = realm.token()
    assert "identity provider" in await refused(service, token, 503)
    assert (await service.get("/healthz")).status_code == 200
    assert (await ask(service, TOKEN)).status_code == 200  # break-glass is for this day
    realm.down = False
    await refused(service, token, 503)  # asked too soon again
    clock.advance(30)
    assert (await ask(service, realm.token())).status_code == 200


@pytest.mark.threat("T37")
async def test_last_good_keys_are_honoured_for_a_day(
    service: Service, realm: Realm, clock: HeldClock
) -> None:
    """An hour or a day without the provider changes nothing; after that nobody can be judged: 503, not 401."""
    assert (await ask(service, realm.token())).status_code == 200
    realm.down = True
    clock.advance(24 * 3600)
    await provider_of(service).refresh()
    assert (await ask(service, realm.token())).status_code == 200
    clock.advance(1)
    assert "not known" in await refused(service, realm.token(), 503)
    realm.down = False
    clock.advance(30)
    assert (await ask(service, realm.token())).status_code == 200


async def test_malformed_bearers_are_401_also_while_it_is_down(start: Starter, realm: Realm) -> None:
    """What could never be a token needs no keys to be refused."""
    realm.down = True
    service = await start(oidc_issuer=ISSUER)
    await refused(service, "a.b.c")
    await refused(service, unsigned({"alg": "none"}, {}))


async def test_an_unknown_key_while_it_is_down_is_undecided(service: Service, realm: Realm) -> None:
    """It may have rotated: neither a yes nor a no, and the known keys go on."""
    assert (await ask(service, realm.token())).status_code == 200
    realm.down = True
    token = sign(a_key("RS256", 1), realm.claims())
    await refused(service, token, 503)
    await refused(service, token, 503)
    assert (await ask(service, realm.token())).status_code == 200


def is_stale(provider: OIDC) -> bool:
    """Ask anew; a type checker would remember the first answer."""
    return provider.stale


async def test_keys_are_stale_when_they_could_not_be_renewed(
    provider: OIDC, realm: Realm, clock: HeldClock
) -> None:
    """Stale without keys, and when they are older than the interval; fresh after a fetch."""
    assert is_stale(provider)
    await provider.refresh()
    assert not is_stale(provider)
    clock.advance(300)
    assert not is_stale(provider)
    clock.advance(1)
    assert is_stale(provider)
    realm.down = True
    await provider.refresh()
    assert is_stale(provider)
    realm.down = False
    await provider.refresh()
    assert not is_stale(provider)


async def test_keys_are_renewed_in_the_background(
    provider: OIDC, realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again, after failures and surprises too; no request is needed for it."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def short(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            realm.down = True
        elif len(waits) == 4:
            realm.down = False
            realm.instead["certs"] = surprise
        elif len(waits) == 5:
            realm.instead.clear()
        await sleep(0)

    async def surprise(_request: httpx.Request) -> httpx.Response:
        raise ArithmeticError("nobody expected this")

    monkeypatch.setattr(asyncio, "sleep", short)
    await provider.start()
    async with asyncio.timeout(60):
        while len(waits) < 8:
            await sleep(0.001)
    assert realm.asked["discovery"] >= 8
    good = [waits[i] for i in (0, 1, 5, 6)]
    assert all(0.75 * 300 <= seconds <= 0.95 * 300 for seconds in good), waits
    assert waits[2:5] == [30, 30, 30]
    assert not provider.stale


NEW_KEYS = {"keys": [a_key("RS256", 1).as_dict(private=False)]}
DOCUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "metadata of another issuer": (
        "discovery",
        {"json": {"issuer": f"{ISSUER}/", "jwks_uri": f"{ISSUER}/certs"}},
    ),
    "metadata without issuer": ("discovery", {"json": {"jwks_uri": f"{ISSUER}/certs"}}),
    "keys at another host": (
        "discovery",
        {"json": {"issuer": ISSUER, "jwks_uri": "https://evil.example/certs"}},
    ),
    "keys at another port": (
        "discovery",
        {"json": {"issuer": ISSUER, "jwks_uri": "https://sts.example:8443/certs"}},
    ),
    "keys without TLS": ("discovery", {"json": {"issuer": ISSUER, "jwks_uri": "http://sts.example/certs"}}),
    "keys in a file": ("discovery", {"json": {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"}}),
    "keys nowhere": ("discovery", {"json": {"issuer": ISSUER}}),
    "jwks_uri of another type": ("discovery", {"json": {"issuer": ISSUER, "jwks_uri": [ISSUER]}}),
    "a host that only looks alike": (
        "discovery",
        {"json": {"issuer": ISSUER, "jwks_uri": "https://sts.example@evil.example/certs"}},
    ),
    "a port that is no number": (
        "discovery",
        {"json": {"issuer": ISSUER, "jwks_uri": "https://sts.example:x/certs"}},
    ),
    "metadata that is a list": ("discovery", {"json": [ISSUER]}),
    "metadata that is not JSON": ("discovery", {"text": "<html>"}),
    "a redirect": ("discovery", {"status": 302, "headers": {"location": f"{ISSUER}/elsewhere"}}),
    "not found": ("certs", {"status": 404, "json": NEW_KEYS}),
    "an error": ("certs", {"status": 500, "json": NEW_KEYS}),
    "a page of keys": ("certs", {"status": 206, "json": NEW_KEYS}),
    "keys that redirect": ("certs", {"status": 307, "headers": {"location": "https://evil.example/certs"}}),
    "no keys": ("certs", {"json": {"keys": []}}),
    "keys of another type": ("certs", {"json": {"keys": {}}}),
    "no list of keys": ("certs", {"json": {}}),
    "only unusable keys": ("certs", {"json": {"keys": [{"kty": "RSA", "use": "enc"}]}}),
    "deep JSON": ("certs", {"content": b"[" * 200_000}),
    "more than 256 KiB": ("certs", {"content": as_json(NEW_KEYS) + b" " * 262_144}),
    "compressed": (
        "certs",
        {
            "content": gzip.compress(as_json(NEW_KEYS) + b" " * 10_000_000),
            "headers": {"content-encoding": "gzip"},
        },
    ),
    "bytes": ("certs", {"content": b"\xff\xfe\x00"}),
}


@pytest.mark.threat("T37")
@pytest.mark.parametrize("name", DOCUMENTS)
async def test_documents_that_are_not_believed(service: Service, realm: Realm, name: str) -> None:
    """The old keys stay in force, nothing of the answer is taken over, nothing breaks."""
    assert (await ask(service, realm.token())).status_code == 200
    document, answer = DOCUMENTS[name]
    realm.answer_instead(document, **answer)
    realm.keys = [a_key("RS256", 1)]
    await provider_of(service).refresh()
    assert (await ask(service, sign(a_key(), realm.claims()))).status_code == 200
    await refused(service, realm.token(), 503)
    assert all("evil.example" not in asked for asked in realm.asked)


async def test_a_document_of_exactly_the_limit_is_read(provider: OIDC, realm: Realm) -> None:
    """256 KiB are allowed."""
    text = as_json(realm.jwks())
    realm.answer_instead("certs", content=text + b" " * (262_144 - len(text)))
    await provider.refresh()
    assert not provider.stale


async def test_a_provider_that_never_ends_is_given_up(
    provider: OIDC, realm: Realm, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seconds for a document, however the bytes drip."""
    monkeypatch.setattr(module, "FETCH_SECONDS", 0.05)

    async def answer(_request: httpx.Request) -> httpx.Response:
        async def drip() -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(0.01)

        return httpx.Response(200, content=drip())

    realm.instead["certs"] = answer
    async with asyncio.timeout(60):
        await provider.refresh()
    assert provider.stale


async def test_a_ca_file_that_cannot_be_read_stops_the_start(clock: HeldClock, tmp_path: Path) -> None:
    """A typo there must not fall back to other CAs."""
    (tmp_path / "empty.pem").write_text("no certificate")
    for name in ("absent.pem", "empty.pem"):
        with pytest.raises(SettingsInvalid, match="ITL_OIDC_CA_FILE"):
            OIDC(settings_for(tmp_path, oidc_issuer=ISSUER, oidc_ca_file=tmp_path / name), clock)


async def test_closing_waits_for_nobody(realm: Realm, clock: HeldClock, tmp_path: Path) -> None:
    """A service that stops while it asks does not wait for the answer."""
    asked = asyncio.Event()

    async def never(_request: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    realm.instead["discovery"] = never
    provider = OIDC(settings_for(tmp_path, oidc_issuer=ISSUER), clock, transport=realm.transport())
    await provider.start()
    await asked.wait()
    async with asyncio.timeout(60):
        await provider.aclose()


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://sts.example/realms/itl", ("https", "sts.example", 443)),
        ("https://STS.example:443/x", ("https", "sts.example", 443)),
        ("http://[::1]:8080/x", ("http", "::1", 8080)),
        ("https:///x", None),
        ("ftp://sts.example", None),
        ("https://sts.example:99999/", None),
        ("https://[::1", None),
    ],
)
async def test_origins(url: str, origin: tuple[str, str, int] | None) -> None:
    """Scheme, host and port in one form, or nothing."""
    assert origin_of_url(url) == origin


async def test_the_day_counts_from_the_last_fetch(provider: OIDC, realm: Realm, clock: HeldClock) -> None:
    """Every successful fetch begins a new day."""
    await provider.refresh()
    clock.advance(23 * 3600)
    await provider.refresh()
    realm.down = True
    clock.at += timedelta(hours=23)
    who = await provider.operator(realm.token(), an_origin(), clock.at)
    assert who.cn == "anna"
