"""What a Node says of its machine: one row for each rule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from attestation.api.node_csr import NodeTrust
from attestation.machines import Status
from attestation_operator.actions import EmitEvent, PatchNode
from attestation_operator.nodes.labels import UNKNOWN_KEPT, Listing, Standing, judge, reconcile
from attestation_operator.nodes.objects import (
    ATTESTED_LABEL,
    CORDONED_LABEL,
    MACHINE_ID_LABEL,
    OWNER_LABEL,
    RUN_CORDONED_LABEL,
    RUN_VERDICT_LABEL,
    TAINT_KEY,
    read_node,
)
from attestation_operator.nodes.policy import NodePolicy
from tests.unit.operator.nodes.world import AT, MACHINE, OTHER, raw_node, trust

CLAIMED = {OWNER_LABEL: MACHINE, MACHINE_ID_LABEL: MACHINE}
BOTH = NodePolicy(taint=True, cordon=True)
HARD = {"key": TAINT_KEY, "effect": "NoExecute"}
SOFT = {"key": TAINT_KEY, "effect": "NoSchedule"}
FOREIGN = {"key": "somebody.else/x", "effect": "NoSchedule", "value": "1"}


def listing(*machines: NodeTrust) -> Listing:
    """Return what the service said a minute ago."""
    return Listing.of(machines, AT - timedelta(minutes=1))


def patched(
    node: dict[str, Any], said: Listing, policy: NodePolicy | None = None, *, minutes: float = 0
) -> PatchNode | None:
    """Return what is changed on a Node."""
    actions = reconcile(read_node(node), said, policy or NodePolicy(), AT + timedelta(minutes=minutes))
    found = [action for action in actions if isinstance(action, PatchNode)]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("labels", "machine", "standing"),
    [
        (CLAIMED, trust(), Standing.TRUSTED),
        ({OWNER_LABEL: MACHINE}, trust(), Standing.TRUSTED),
        ({}, trust(), Standing.UNCLAIMED),
        ({MACHINE_ID_LABEL: MACHINE}, trust(), Standing.UNCLAIMED),
        ({OWNER_LABEL: OTHER}, trust(), Standing.UNKNOWN_MACHINE),
        ({OWNER_LABEL: MACHINE, MACHINE_ID_LABEL: OTHER}, trust(), Standing.CONTRADICTED),
        (CLAIMED, trust(hostname="cp-2"), Standing.OTHER_NAME),
        (CLAIMED, trust(hostname=None), Standing.OTHER_NAME),
        (CLAIMED, trust(trusted=False), Standing.LAPSED),
        (CLAIMED, trust(trust_expires_at=None), Standing.LAPSED),
        (CLAIMED, trust(trust_expires_at=AT), Standing.LAPSED),
        (CLAIMED, trust(status=Status.LOCKED, trusted=False), Standing.BARRED),
        (CLAIMED, trust(status=Status.REVOKED, trusted=False), Standing.BARRED),
        (CLAIMED, trust(status=Status.REJECTED, trusted=False), Standing.BARRED),
    ],
)
def test_standing(labels: Mapping[str, str], machine: NodeTrust, standing: Standing) -> None:
    """A Node is trusted only where everything holds; the label of the kubelet alone claims nothing."""
    node = read_node(raw_node(labels=labels))
    assert judge(node, node.labels.get(OWNER_LABEL), listing(machine), AT) is standing


def test_the_label_says_what_holds_and_is_written_once() -> None:
    """Trusted: true. Else false. And no request where it says so already."""
    patch = patched(raw_node(labels=CLAIMED), listing(trust()))
    assert patch is not None
    assert patch.labels == {ATTESTED_LABEL: "true"}
    assert (patch.taints, patch.unschedulable) == (None, None)
    assert patched(raw_node(labels=CLAIMED | {ATTESTED_LABEL: "true"}), listing(trust())) is None
    lowered = patched(raw_node(labels=CLAIMED | {ATTESTED_LABEL: "true"}), listing(trust(trusted=False)))
    assert lowered is not None
    assert lowered.labels == {ATTESTED_LABEL: "false"}


def test_what_a_run_found_counts_while_the_machine_is_trusted() -> None:
    """docs/adr/0181: a lapse hides it and does not forget it; one label, two programs that agree on it."""
    for verdict in ("verified", "failed", "indeterminate"):
        for before in ("true", "false", "verified", "failed", "indeterminate", None):
            labels = {**CLAIMED, RUN_VERDICT_LABEL: verdict, **({ATTESTED_LABEL: before} if before else {})}
            for machine, wanted in ((trust(), verdict), (trust(trusted=False), "false")):
                patch = patched(raw_node(labels=labels), listing(machine))
                assert (patch.labels[ATTESTED_LABEL] if patch else before) == wanted


def test_a_cordon_of_a_run_stays_where_ours_is_taken_back() -> None:
    """Each program lifts its own: the Node is open when neither holds it."""
    labels = {**CLAIMED, ATTESTED_LABEL: "true", CORDONED_LABEL: "true"}
    for run, unschedulable in (({RUN_CORDONED_LABEL: "true"}, None), ({}, False)):
        node = raw_node(labels={**labels, **run}, unschedulable=True)
        patch = patched(node, listing(trust()), BOTH)
        assert patch is not None
        assert patch.labels == {CORDONED_LABEL: None}
        assert patch.unschedulable is unschedulable


def test_a_node_that_nobody_claimed_is_not_attested() -> None:
    """Whatever it says of itself."""
    for labels in ({}, {MACHINE_ID_LABEL: MACHINE}, {ATTESTED_LABEL: "true"}):
        patch = patched(raw_node(labels=labels), listing(trust(node_certificate_at=None)))
        assert patch is not None
        assert patch.labels == {ATTESTED_LABEL: "false"}


def test_an_event_tells_a_change_of_the_label() -> None:
    """And why."""
    actions = reconcile(read_node(raw_node(labels=CLAIMED)), listing(trust(trusted=False)), NodePolicy(), AT)
    event = actions[-1]
    assert isinstance(event, EmitEvent)
    assert (event.reason, event.type) == ("TrustLapsed", "Warning")


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        ("verified", ("RunVerified", "Normal")),
        ("failed", ("RunFailed", "Warning")),
        ("indeterminate", ("RunIndeterminate", "Warning")),
    ],
)
def test_an_event_says_what_the_label_says(verdict: str, told: tuple[str, str]) -> None:
    """A machine may be trusted whose last attestation run failed: `Trusted` would be the opposite of the label."""
    raw = raw_node(labels={**CLAIMED, RUN_VERDICT_LABEL: verdict})
    event = reconcile(read_node(raw), listing(trust()), NodePolicy(), AT)[-1]
    assert isinstance(event, EmitEvent)
    assert (event.reason, event.type) == told
    assert f"={verdict}:" in event.note


class TestServiceAway:
    """The service has not answered for a while, or not since the start."""

    def test_what_it_said_counts_for_as_long_as_it_said(self) -> None:
        """Not a second longer, and nothing is raised meanwhile."""
        node = raw_node(labels=CLAIMED | {ATTESTED_LABEL: "true"})
        assert patched(node, listing(trust()), minutes=9) is None
        lowered = patched(node, listing(trust()), minutes=10)
        assert lowered is not None
        assert lowered.labels == {ATTESTED_LABEL: "false"}

    def test_after_a_start_labels_stay_for_a_while_and_are_never_raised(self) -> None:
        """Five minutes, then false."""
        began = Listing(machines=None, at=AT)
        for label in ("true", "false"):
            assert patched(raw_node(labels=CLAIMED | {ATTESTED_LABEL: label}), began) is None
        late = UNKNOWN_KEPT.total_seconds() / 60
        lowered = patched(raw_node(labels=CLAIMED | {ATTESTED_LABEL: "true"}), began, minutes=late)
        assert lowered is not None
        assert lowered.labels == {ATTESTED_LABEL: "false"}

    def test_an_unclaimed_node_is_not_tainted_for_it(self) -> None:
        """A cluster that is being moved loses nothing by an outage."""
        began = Listing(machines=None, at=AT)
        patch = patched(raw_node(), began, BOTH, minutes=10)
        assert patch is not None
        assert (patch.taints, patch.unschedulable) == (None, None)


class TestClaim:
    """Whose a Node is, is written by us, once, where it is safe."""

    def test_a_node_that_came_after_the_certificate_is_claimed(self) -> None:
        """All three labels in one request."""
        patch = patched(raw_node(), listing(trust()))
        assert patch is not None
        assert patch.labels == CLAIMED | {ATTESTED_LABEL: "true"}

    @pytest.mark.parametrize(
        "machines",
        [
            [],
            [trust(hostname="cp-2")],
            [trust(), trust(OTHER)],
            [trust(trusted=False)],
            [trust(trust_expires_at=AT)],
            [trust(status=Status.LOCKED)],
            [trust(node_certificate_at=None)],
            [trust(node_certificate_at=AT - timedelta(minutes=50))],
        ],
    )
    def test_no_other_is(self, machines: list[NodeTrust]) -> None:
        """No machine of the name, two of them, not trusted, never certified, or an older Node."""
        patch = patched(raw_node(), listing(*machines))
        assert patch is not None
        assert patch.labels == {ATTESTED_LABEL: "false"}

    @pytest.mark.parametrize(
        ("machine", "wanted"),
        [
            (trust(status=Status.LOCKED, trusted=False), HARD),
            (trust(status=Status.REVOKED, trusted=False, node_certificate_at=None), HARD),
            (trust(trusted=False), SOFT),
        ],
    )
    def test_a_node_that_was_deleted_and_came_back_is_no_better(
        self, machine: NodeTrust, wanted: dict[str, str]
    ) -> None:
        """A kubelet makes its Node again, without labels and taints, with the certificate that it still has."""
        patch = patched(raw_node(), listing(machine), BOTH)
        assert patch is not None
        assert patch.taints == (wanted,)
        assert patch.unschedulable is True
        assert OWNER_LABEL not in patch.labels

    def test_a_claim_is_never_changed(self) -> None:
        """The name went to another machine: the Node stays the first one's, and is not trusted."""
        patch = patched(raw_node(labels={OWNER_LABEL: OTHER}), listing(trust()))
        assert patch is not None
        assert patch.labels == {ATTESTED_LABEL: "false"}

    def test_a_kubelet_that_names_another_machine_is_not_claimed(self) -> None:
        """It contradicts what would be written."""
        patch = patched(raw_node(labels={MACHINE_ID_LABEL: OTHER}), listing(trust()))
        assert patch is not None
        assert OWNER_LABEL not in patch.labels


class TestTaint:
    """Only where somebody wants it, and only our own key."""

    @pytest.mark.parametrize(
        ("machine", "wanted"),
        [
            (trust(trusted=False), SOFT),
            (trust(status=Status.REVOKED), HARD),
            (trust(hostname="cp-2"), HARD),
            (trust(OTHER), HARD),
        ],
    )
    def test_put_beside_those_of_others(self, machine: NodeTrust, wanted: dict[str, str]) -> None:
        """A lapse keeps new pods off; a machine that lost its name or was locked loses its pods."""
        node = raw_node(labels=CLAIMED, taints=[FOREIGN])
        patch = patched(node, listing(machine), NodePolicy(taint=True))
        assert patch is not None
        assert patch.taints == (FOREIGN, wanted)
        off = patched(node, listing(machine))
        assert off is not None
        assert off.taints is None

    def test_taken_back_when_trust_is_back_or_nobody_wants_it(self) -> None:
        """Only ours."""
        node = raw_node(labels=CLAIMED | {ATTESTED_LABEL: "true"}, taints=[HARD, FOREIGN])
        for policy in (NodePolicy(taint=True), NodePolicy()):
            patch = patched(node, listing(trust()), policy)
            assert patch is not None
            assert patch.taints == (FOREIGN,)

    def test_changed_when_it_gets_worse(self) -> None:
        """From no new pods to none at all."""
        node = raw_node(labels=CLAIMED | {ATTESTED_LABEL: "false"}, taints=[SOFT])
        patch = patched(node, listing(trust(status=Status.LOCKED)), NodePolicy(taint=True))
        assert patch is not None
        assert patch.taints == (HARD,)

    def test_a_node_that_was_never_claimed_is_not_tainted(self) -> None:
        """Most are not, while a cluster is being moved to this."""
        patch = patched(raw_node(), listing(), BOTH)
        assert patch is not None
        assert (patch.taints, patch.unschedulable) == (None, None)


class TestCordon:
    """Only where somebody wants it, and taken back only where we did it."""

    def test_put_and_remembered_in_a_label_that_no_kubelet_writes(self) -> None:
        """In the same request."""
        patch = patched(raw_node(labels=CLAIMED), listing(trust(trusted=False)), NodePolicy(cordon=True))
        assert patch is not None
        assert patch.unschedulable is True
        assert patch.labels[CORDONED_LABEL] == "true"

    def test_a_cordon_of_somebody_else_is_neither_taken_over_nor_back(self) -> None:
        """An administrator's stays an administrator's."""
        policy = NodePolicy(cordon=True)
        node = raw_node(labels=CLAIMED, unschedulable=True)
        for machine in (trust(), trust(trusted=False)):
            patch = patched(node, listing(machine), policy)
            assert patch is not None
            assert patch.unschedulable is None
            assert CORDONED_LABEL not in patch.labels

    @pytest.mark.parametrize("policy", [NodePolicy(cordon=True), NodePolicy()])
    def test_ours_is_taken_back(self, policy: NodePolicy) -> None:
        """With trust; and when nobody wants it any more."""
        labels = CLAIMED | {ATTESTED_LABEL: "true", CORDONED_LABEL: "true"}
        patch = patched(raw_node(labels=labels, unschedulable=True), listing(trust()), policy)
        assert patch is not None
        assert patch.unschedulable is False
        assert patch.labels == {CORDONED_LABEL: None}

    def test_opened_by_hand_it_is_cordoned_again(self) -> None:
        """And by hand and trusted, only the label goes."""
        labels = CLAIMED | {ATTESTED_LABEL: "false", CORDONED_LABEL: "true"}
        again = patched(raw_node(labels=labels), listing(trust(trusted=False)), NodePolicy(cordon=True))
        assert again is not None
        assert again.unschedulable is True
        gone = patched(raw_node(labels=labels), listing(trust()), NodePolicy(cordon=True))
        assert gone is not None
        assert (gone.unschedulable, gone.labels[CORDONED_LABEL]) == (None, None)
