"""A change of the service's key, with real agents: the ones that are there, the one that was away, and two workers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from attestation.keys import key_set_sha256, thumbprints
from attestation_agent.exits import Exit
from attestation_service.keys.known_keys import KeysDiffer
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.integration.agent.rig import Rig


class Change:
    """One service in one directory, started anew for each step of a change."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.old, self.new = (f"file:{directory / 'ca' / name}.pem" for name in ("old", "new"))

    @contextmanager
    def step(self, **settings: Any) -> Iterator[InProcessService]:
        """Run the service with these settings."""
        with in_process_service(self.directory, **settings) as started:
            yield started

    @property
    def before(self) -> dict[str, str]:
        """Settings before the change."""
        return {"service_key": self.old}

    @property
    def announced(self) -> dict[str, str]:
        """The next key is published."""
        return {"service_key": self.old, "service_key_next": self.new}

    @property
    def switched(self) -> dict[str, str]:
        """The new key signs, the old one tells who was away."""
        return {"service_key": self.new, "service_key_previous": self.old}

    @property
    def done(self) -> dict[str, str]:
        """The old key is gone."""
        return {"service_key": self.new}


def pinned(rig: Rig) -> str:
    keys = rig.state.service_keys()
    assert keys is not None
    return key_set_sha256(thumbprints(keys)).hex()


def told(service: InProcessService) -> int:
    count: int = service.operator().call("GET", "/stats")["service_keys_pinned"]
    return count


def serve(rig: Rig, service: InProcessService) -> Exit:
    rig.service = service
    return rig.once()


@pytest.fixture
def change(tmp_path: Path) -> Change:
    """A service whose key is to be changed."""
    (tmp_path / "service" / "ca").mkdir(parents=True)
    return Change(tmp_path / "service")


@pytest.mark.threat("T141")
def test_a_key_follows_another_and_no_machine_is_lost(change: Change, tmp_path: Path) -> None:
    """Those that attest meanwhile learn of it at once and forget the old one at the end; orders are obeyed."""
    with change.step(**change.before) as service:
        rig = Rig(service, tmp_path, lock_command="lock", unlock_command="unlock")
        rig.admitted()
        first = pinned(rig)
        service.operator().act(rig.machine_id, "lock")
        assert (serve(rig, service), told(service), pinned(rig)) == (Exit.LOCKED, 0, first)
    with change.step(**change.announced) as service:
        service.operator().act(rig.machine_id, "unlock")
        assert (serve(rig, service), told(service)) == (Exit.OK, 1)
        both = pinned(rig)
        assert both not in (first, None)
        shown = service.client().get("/api/v1/service-keys").json()
        assert key_set_sha256(thumbprints(shown)).hex() == both
        # It is told once.
        before = len(rig.events.entries)
        assert serve(rig, service) is Exit.OK
        assert "service_keys.changed" not in [event for event, _ in rig.events.entries[before:]]
    with change.step(**change.switched) as service:
        service.operator().act(rig.machine_id, "lock")
        assert (serve(rig, service), told(service), pinned(rig)) == (Exit.LOCKED, 1, both)
    with change.step(**change.done) as service:
        service.operator().act(rig.machine_id, "unlock")
        assert (serve(rig, service), told(service)) == (Exit.OK, 1)
        assert pinned(rig) not in (first, both)
        assert serve(rig, service) is Exit.OK
    assert rig.commands == [("lock",), ("unlock",), ("lock",), ("unlock",)]
    # The key that is gone does not start the service of this database; and with another one it is believed no more.
    with pytest.raises(KeysDiffer, match="another service key"), change.step(**change.before):
        pass
    with closing(sqlite3.connect(tmp_path / "service" / "machines.db")) as db, db:
        db.execute("DELETE FROM known_keys")
    with change.step(**change.before) as service:
        rig.commands.clear()
        service.operator().act(rig.machine_id, "lock")
        assert serve(rig, service) is Exit.NOT_AUTHENTIC
        assert rig.commands == []


@pytest.mark.parametrize("forgot", [False, True])
def test_a_machine_that_was_away_is_told_by_the_key_that_it_knows(
    change: Change, tmp_path: Path, *, forgot: bool
) -> None:
    """Also at an activation: its AK was reset meanwhile. After the end of the change it knows nobody, and says so."""
    with change.step(**change.before) as service:
        rig, late = (Rig(service, tmp_path, seed=seed, lock_command="lock") for seed in (1, 2))
        rig.admitted()
        late.admitted()
        first = pinned(late)
    with change.step(**change.switched) as service:
        operator = service.operator()
        operator.act(rig.machine_id, "ak-reset" if forgot else "lock", reason="away")
        assert serve(rig, service) is (Exit.OK if forgot else Exit.LOCKED)
        assert pinned(rig) != first
        assert told(service) == 1
    with change.step(**change.done) as service:
        service.operator().act(late.machine_id, "lock")
        assert serve(late, service) is Exit.NOT_AUTHENTIC
        assert (late.commands, pinned(late)) == ([], first)
        assert serve(rig, service) is (Exit.OK if forgot else Exit.LOCKED)


def test_workers_of_both_sides_of_the_switch_serve_the_same_machines(change: Change, tmp_path: Path) -> None:
    """While replicas are replaced one by one, a machine meets now the one, now the other."""
    with change.step(**change.before) as service:
        rig = Rig(service, tmp_path, lock_command="lock", unlock_command="unlock")
        rig.admitted()
    with change.step(**change.announced) as first, change.step(**change.switched) as second:
        for act, service in (("lock", first), ("unlock", second), ("lock", second), ("unlock", first)):
            service.clock.pass_(seconds=30)
            service.operator().act(rig.machine_id, act)
            assert serve(rig, service) is (Exit.LOCKED if act == "lock" else Exit.OK)
        assert told(first) == told(second) == 1
    assert rig.commands == [("lock",), ("unlock",)] * 2
