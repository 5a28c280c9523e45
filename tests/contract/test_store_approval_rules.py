"""Approval rules in the store: in which order they are asked, and that none approves more than its count."""

from __future__ import annotations

import pytest

from attestation.errors import AlreadyExists, ApprovalRuleUnknown
from attestation.store import Store
from tests.contract.store_samples import an_approval_rule


def test_a_rule_comes_back_and_is_switched(store: Store) -> None:
    """What it says stays; a second one of its name is refused, and one that is removed is unknown."""
    rule = an_approval_rule(hostname="w-{serial}", used=1)
    store.write_sync(lambda tx: tx.approval_rules.add(rule))
    with pytest.raises(AlreadyExists):
        store.write_sync(lambda tx: tx.approval_rules.add(an_approval_rule()))
    changed = an_approval_rule(enabled=True, changed_by="bob", expression="false", max_count=9)
    store.write_sync(lambda tx: tx.approval_rules.switch(changed))
    found = store.read_sync(lambda tx: tx.approval_rules.require(rule.name))
    assert (found.enabled, found.changed_by, found.expression, found.used) == (True, "bob", "true", 1)
    assert store.read_sync(lambda tx: tx.approval_rules.page(None, 10)).items == (found,)
    store.write_sync(lambda tx: tx.approval_rules.remove(rule.name))
    with pytest.raises(ApprovalRuleUnknown):
        store.read_sync(lambda tx: tx.approval_rules.require(rule.name))


def test_rules_are_asked_by_priority_and_used_up(store: Store) -> None:
    """Only those that are enabled and have machines left; the count is never passed."""
    for name, priority, enabled in (("a", 1, True), ("b", 9, True), ("c", 9, True), ("d", 99, False)):
        rule = an_approval_rule(name=name, priority=priority, enabled=enabled, max_count=1)
        store.write_sync(lambda tx, one=rule: tx.approval_rules.add(one))  # type: ignore[misc]

    def asked() -> list[str]:
        return [rule.name for rule in store.read_sync(lambda tx: tx.approval_rules.enabled(9))]

    assert asked() == ["b", "c", "a"]
    assert store.write_sync(lambda tx: tx.approval_rules.use("b")) is True
    assert store.write_sync(lambda tx: tx.approval_rules.use("b")) is False
    assert store.write_sync(lambda tx: tx.approval_rules.use("d")) is False
    assert asked() == ["c", "a"]
