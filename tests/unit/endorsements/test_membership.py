"""Who belongs to a cluster, and by what name (HSM-AND-KUBERNETES §20)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attestation.endorsements.membership import (
    FORMAT,
    MAX_LIST_BYTES,
    MAX_MEMBERS,
    MachineMembership,
    Member,
    NotMember,
    parse_members,
)
from attestation.endorsements.node_identity import NodeIdentity
from attestation.errors import RequestInvalid


def identity(**changed: Any) -> NodeIdentity:
    """Return who a node is."""
    members = {
        "extractor": "gce-instance",
        "value": "gce/1/z/2",
        "node_name": None,
        "machine_id": "m",
        "hostname": "host",
    }
    return NodeIdentity(**{**members, **changed})


def written(members: object, **more: object) -> bytes:
    """Return a list of members."""
    return json.dumps({"format": FORMAT, "members": members, **more}).encode()


def test_a_machine_with_a_host_name_is_a_member() -> None:
    """By that name, and only where the certificate does not say another one."""
    ask = MachineMembership().is_member
    assert ask(identity()) == Member(node_name="host")
    assert ask(identity(node_name="host")) == Member(node_name="host")
    for strange in ({"node_name": "other"}, {"hostname": None}, {"machine_id": None}):
        assert isinstance(ask(identity(**strange)), NotMember), strange


def test_a_list_names_its_members() -> None:
    """By their identity; the name on the list is the only one."""
    ask = parse_members(written({"gce/1/z/2": "node-1"})).is_member
    assert ask(identity(machine_id=None, hostname=None)) == Member(node_name="node-1")
    assert ask(identity(node_name="node-1")) == Member(node_name="node-1")
    assert isinstance(ask(identity(node_name="node-2")), NotMember)
    assert isinstance(ask(identity(value="gce/1/z/3")), NotMember)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b"\xff",
        b" " * (MAX_LIST_BYTES + 1),
        written({}, more=1),
        json.dumps({"format": "itl-node-members/2", "members": {}}).encode(),
        written([]),
        written({"a": 1}),
        written({"": "n"}),
        written({"a\n": "n"}),
        written({"a": "Node"}),
        written({"a": "n" * 254}),
        written({"a": "n", "b": "n"}),
        b'{"format": "itl-node-members/1", "members": {"a": "n", "a": "m"}}',
        written({str(i): f"n{i}" for i in range(MAX_MEMBERS + 1)}),
    ],
)
def test_a_list_that_is_none(data: bytes) -> None:
    """It stops the start instead of admitting somebody."""
    with pytest.raises(RequestInvalid):
        parse_members(data)
