"""Results by themselves: kept for their time, trusted for theirs."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import timedelta
from typing import Any

from attestation.clock import parse_rfc3339
from attestation_operator.actions import Delete, MergeStatus
from attestation_operator.crds.runs import ResultSpec
from attestation_operator.runs.objects import result_name
from attestation_operator.runs.results import is_same, reconcile, spec_sha256
from tests.unit.operator.doubles import target
from tests.unit.operator.runs.world import AT, World, result

TTL = timedelta(hours=168)


def token(**claims: Any) -> str:
    """Return a JWT that nobody signed."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.c2ln"


def verified(ear: str | None = None) -> World:
    """Return a world with a Result that is trusted."""
    world = World()
    world.through(result("verified", attestation_result=ear))
    assert world.result["status"]["trusted"] is True
    return world


def until(world: World) -> float:
    """Return for how many seconds it is trusted."""
    end = parse_rfc3339(world.result["status"]["trustedUntil"])
    return (end - AT).total_seconds()


def test_a_result_is_trusted_as_long_as_its_token_says_and_no_longer_than_it_is_kept() -> None:
    """status.trustedUntil: `exp` of the EAR."""
    soon, late = int(AT.timestamp()) + 600, int(AT.timestamp()) + 1_000_000
    assert until(verified(token(exp=soon))) == 600
    for ear in (None, token(exp=late), token(), token(exp="x"), "e30", "a.%%.b"):
        assert until(verified(ear)) == TTL.total_seconds()


def test_trust_ends_when_it_said_so() -> None:
    """C8: cleared when trustedUntil passes, once."""
    world = verified(token(exp=int(AT.timestamp()) + 600))
    actions, after = reconcile(world.result, ttl=TTL, at=AT + timedelta(seconds=599))
    assert actions == ()
    assert after == 1
    [cleared], _ = reconcile(world.result, ttl=TTL, at=AT + timedelta(seconds=600))
    assert isinstance(cleared, MergeStatus)
    assert cleared.status == {"trusted": False}
    world.cluster.apply([cleared])
    actions, after = reconcile(world.result, ttl=TTL, at=AT + timedelta(seconds=600))
    assert actions == ()
    assert after == TTL.total_seconds() - 600


def test_one_that_came_too_late_is_never_trusted() -> None:
    """Its token had expired before it was written."""
    world = World()
    world.settle()
    world.service.judge(result("verified", attestation_result=token(exp=int(AT.timestamp()) + 10)))
    world.pass_(30)
    world.settle()
    assert world.result["status"]["trusted"] is False


def test_a_result_goes_when_its_time_is_over() -> None:
    """`--result-ttl`, counted from its creation; as it is then."""
    world = verified()
    assert reconcile(world.result, ttl=TTL, at=AT + TTL - timedelta(seconds=1))[0] == ()
    [gone], _ = reconcile(world.result, ttl=TTL, at=AT + TTL)
    assert isinstance(gone, Delete)
    assert gone.target.uid == world.result["metadata"]["uid"]
    world.cluster.apply([gone])
    world.settle()
    assert world.said["Sealed"][0] == "True"


def test_a_name_that_is_too_long_is_cut_and_stays_a_name_of_its_own() -> None:
    """253 characters are what an API server takes."""
    assert result_name(target(name="run")) == "run-result"
    names = {result_name(target(name="r" * 253, uid=uid)) for uid in ("one", "two")}
    assert len(names) == 2
    assert all(len(name) == 253 and name.endswith("-result") for name in names)
    dotted = result_name(target(name=f"{'r' * 224}.{'r' * 20}", uid="one"))
    assert "." not in result_name(target(name=f"{'r' * 224}.{'r' * 28}", uid="one"))
    assert dotted == f"{'r' * 224}.{'r' * 20}-result"


def test_no_run_is_called_so_that_its_result_takes_the_place_of_another() -> None:
    """The name of a Result is seen by everybody, and a run may be called all before its ending."""
    taken = result_name(target(name="r" * 253, uid="one"))
    other = result_name(target(name=taken.removesuffix("-result"), uid="two"))
    assert taken != other
    assert len(other) == 253


def test_the_digest_of_a_result_is_that_of_the_sealed_one() -> None:
    """RFC 8785: text is UTF-8 there, and not escaped; the service cuts long texts off with `…`."""
    there = {"spec": {"verifierNotes": "Köln…", "attempt": 1}}
    sealed = '{"attempt":1,"verifierNotes":"Köln…"}'.encode()
    assert spec_sha256(there) == hashlib.sha256(sealed).hexdigest()


def test_a_result_is_the_same_only_in_every_member() -> None:
    """One that tells another check, quote or node is none of ours, whatever else it says alike; an order is nothing."""
    there = {"spec": verified().result["spec"] | {"nonce": "0123456789abcdef", "tcb": {"status": "UpToDate"}}}
    spec = {**there["spec"], "attestationResult": "e30.e30.c2ln", "verifierNotes": "n"}
    wanted = {"spec": spec}
    assert is_same({"spec": dict(reversed(spec.items()))}, wanted)
    assert is_same({"spec": {**spec, "tcb": {"status": "UpToDate", "advisoryIDs": []}}}, wanted)
    names = {field.alias: field for field in ResultSpec.model_fields.values()}
    assert spec.keys() == names.keys()
    others: dict[str, Any] = {
        "derivedFromRun": {"name": "other", "uid": "other"},
        "backend": "tdx",
        "attempt": 2,
        "quote": "b3RoZXI=",
        "signature": "b3RoZXI=",
        "evidence": [],
        "measurements": [],
        "verdict": "failed",
        "checks": [],
        "tcb": {"status": "OutOfDate"},
        "policySource": "inline",
        "nonce": "another-0123456789",
    }
    for name in names:
        assert not is_same({"spec": {**spec, str(name): others.get(str(name), "other")}}, wanted), name
    assert not is_same({"spec": {**spec, "trusted": True}}, wanted)
    assert not is_same({}, wanted)
