"""What a run does to its Node: label, taint, cordon; only where its word counts, and never against a newer one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from attestation_operator.nodes.objects import (
    ATTESTED_LABEL,
    CORDONED_LABEL,
    RUN_AT_LABEL,
    RUN_CORDONED_LABEL,
    RUN_VERDICT_LABEL,
)
from attestation_operator.runs.node_action import TAINT, NodeAction, lapsed, reconcile
from tests.unit.operator.runs.world import AT, AWAY, REPORTED, World, result, unavailable

FOREIGN = {"key": "somebody.else/x", "effect": "NoExecute"}


def marked(world: World) -> dict[str, Any]:
    """Return what is on the Node by now, without its role."""
    node = world.node
    labels = {key: value for key, value in node["metadata"]["labels"].items() if "itl-" in key}
    return {"labels": labels, **{key: value for key, value in node.get("spec", {}).items() if value}}


def through(world: World, action: NodeAction, verdict: str = "verified", **more: Any) -> dict[str, Any]:
    """Take a run to its end; return what it did to its Node."""
    world.choose(action)
    world.through(result(verdict, **more))
    return marked(world)


@pytest.mark.parametrize("verdict", ["verified", "failed", "indeterminate"])
def test_the_label_says_the_verdict(verdict: str) -> None:
    """§4: the one label of the project, and when it was said."""
    assert through(World(), NodeAction.LABEL, verdict)["labels"] == {
        ATTESTED_LABEL: verdict,
        RUN_VERDICT_LABEL: verdict,
        RUN_AT_LABEL: str(int(AT.timestamp())),
    }


def test_a_taint_is_lifted_by_a_later_verified_run() -> None:
    """Taints of others stay."""
    world = World()
    world.node["spec"] = {"taints": [FOREIGN]}
    assert through(world, NodeAction.TAINT, "failed")["taints"] == [FOREIGN, TAINT]
    lifted = reconcile(
        world.node, action=NodeAction.TAINT, verdict="verified", ended_at=AT + timedelta(seconds=1)
    )
    world.cluster.apply(lifted)
    assert marked(world)["taints"] == [FOREIGN]


def test_a_cordon_is_lifted_by_a_later_verified_run_if_it_was_ours() -> None:
    """What somebody else cordoned stays, and what the controller of Nodes cordoned too."""
    after = AT + timedelta(seconds=1)
    world = World()
    assert through(world, NodeAction.CORDON, "failed")["unschedulable"] is True
    assert marked(world)["labels"][RUN_CORDONED_LABEL] == "true"
    world.cluster.apply(reconcile(world.node, action=NodeAction.CORDON, verdict="verified", ended_at=after))
    assert "unschedulable" not in marked(world)
    assert RUN_CORDONED_LABEL not in marked(world)["labels"]
    # Somebody else's.
    other = World()
    other.node["spec"] = {"unschedulable": True}
    through(other, NodeAction.CORDON, "failed")
    other.cluster.apply(reconcile(other.node, action=NodeAction.CORDON, verdict="verified", ended_at=after))
    assert marked(other)["unschedulable"] is True
    # Ours, and the controller of Nodes has a reason of its own.
    both = World()
    through(both, NodeAction.CORDON, "failed")
    both.node["metadata"]["labels"][CORDONED_LABEL] = "true"
    both.cluster.apply(reconcile(both.node, action=NodeAction.CORDON, verdict="verified", ended_at=after))
    assert marked(both)["unschedulable"] is True
    assert RUN_CORDONED_LABEL not in marked(both)["labels"]


def test_only_runs_of_namespaces_that_were_named_mark_a_node() -> None:
    """Who may write runs and policies in another one could have any Node verified, or cordoned."""
    world = World()
    world.options = replace(world.options, acts_for=frozenset({"another"}))
    assert through(world, NodeAction.LABEL, "verified")["labels"] == {}
    world = World()
    world.options = replace(world.options, acts_for=frozenset())
    assert "unschedulable" not in through(world, NodeAction.CORDON, "failed")


def test_who_has_no_word_about_a_node_does_nothing_to_it() -> None:
    """C14: an inline policy, one that only reports, none at all; and an administrator who chose nothing."""
    for world, found in (
        (World(source="inline"), result("failed", source="inline")),
        (World(policy=None), result("indeterminate", source="none", mode="report")),
        (World(policy=REPORTED), result("indeterminate", mode="report")),
    ):
        world.choose(NodeAction.TAINT)
        world.through(found)
        assert world.said["EventsEmitted"][0] == "True"
        assert marked(world) == {"labels": {}}
    assert through(World(), NodeAction.NONE, "failed") == {"labels": {}}


def test_an_agent_that_is_silent_marks_its_node_and_a_service_that_is_away_does_not() -> None:
    """Who stops its agent must not keep an old word alive; an outage of the service must not empty a cluster."""
    silent = World()
    silent.choose(NodeAction.TAINT)
    silent.through()
    silent.pass_(121)
    silent.settle()
    assert marked(silent)["taints"] == [TAINT]
    broken = World()
    broken.choose(NodeAction.TAINT)
    broken.through(unavailable())
    assert marked(broken)["taints"] == [TAINT]
    away = World()
    away.choose(NodeAction.TAINT)
    away.settle()
    away.service.away = AWAY
    away.pass_(121)
    away.settle()
    away.service.away = None
    away.settle()
    assert away.said["Failed"] == ("True", "DeadlineExceeded")
    assert marked(away) == {"labels": {}}


@pytest.mark.parametrize("action", [NodeAction.LABEL, NodeAction.TAINT, NodeAction.CORDON])
def test_a_run_that_is_completed_late_takes_back_nothing(action: NodeAction) -> None:
    """Its replica ended before it could; a newer run has had its word since."""
    world = World()
    through(world, action, "failed")
    before = marked(world)
    late = reconcile(world.node, action=action, verdict="verified", ended_at=AT - timedelta(seconds=1))
    assert late == ()
    assert marked(world) == before


@pytest.mark.parametrize("verdict", ["failed", "indeterminate"])
def test_what_was_not_verified_does_not_lapse(verdict: str) -> None:
    """A label that says `failed` says so until a run says otherwise."""
    world = World()
    through(world, NodeAction.LABEL, verdict)
    assert lapsed(world.node, action=NodeAction.LABEL, before=AT + timedelta(days=400)) == ()


def test_a_node_of_which_no_run_spoke_does_not_lapse() -> None:
    """Whoever labelled it is not taken back."""
    world = World()
    world.node["metadata"]["labels"] |= {ATTESTED_LABEL: "true", RUN_VERDICT_LABEL: "verified"}
    for action in NodeAction:
        assert lapsed(world.node, action=action, before=AT) == ()


def test_where_the_machine_is_not_trusted_the_label_waits() -> None:
    """docs/adr/0181: `false` is the controller of Nodes' to take back; what the run found stands beside it."""
    world = World()
    world.node["metadata"]["labels"][ATTESTED_LABEL] = "false"
    labels = through(world, NodeAction.LABEL, "verified")["labels"]
    assert labels[ATTESTED_LABEL] == "false"
    assert labels[RUN_VERDICT_LABEL] == "verified"


def test_a_node_that_was_made_anew_has_none_of_the_old_ones_verdict() -> None:
    """Another machine may have its name by then: what was proven was proven of a UID."""
    world = World()
    world.choose(NodeAction.LABEL)
    world.settle()
    asked_uid = world.node["metadata"]["uid"]
    world.service.judge(result("verified"))
    world.node["metadata"]["uid"] = "another"
    world.settle()
    assert marked(world)["labels"] == {}
    assert world.result["spec"]["nodeUID"] == asked_uid
    subject = world.event("AttestationVerified")["spec"]["subject"]
    assert (subject["uid"], subject["unresolved"]) == (asked_uid, True)


def test_what_stands_there_is_not_written_again() -> None:
    """A look costs no write."""
    world = World()
    through(world, NodeAction.LABEL, "failed")
    assert reconcile(world.node, action=NodeAction.LABEL, verdict="failed", ended_at=AT) == ()
