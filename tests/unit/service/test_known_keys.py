"""Processes that share a database have the same keys, or do not start (docs/adr/0109)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from attestation.store import Store, open_store
from attestation_service.keys import known_keys
from attestation_service.keys.known_keys import KeysDiffer
from attestation_service.keys.service_keys import KeyHolder
from attestation_service.settings import Settings
from attestation_service.storage import database
from attestation_service.storage.database import DatabaseNotRecognised
from attestation_service.transparency import load_log_signer
from attestation_service.transparency.memory import MemoryFile
from attestation_service.transparency.signing import RETIRED_KEYS
from tests.unit.service.conftest import HeldClock, Starter, settings_for

CLOCK = HeldClock()


@pytest.fixture
def store(tmp_path: Path, migrated: Path) -> Iterator[Store]:
    """An open store on an empty database."""
    path = tmp_path / "machines.db"
    path.write_bytes(migrated.read_bytes())
    opened = open_store(f"sqlite:///{path}")
    yield opened
    opened.close()


def begin(store: Store, settings: Settings) -> None:
    """Do what a start does with keys."""
    keys = KeyHolder(settings)
    keys.open(make=True)
    known_keys.demand(settings, store, CLOCK, keys, load_log_signer(settings, create=True))


def of(tmp_path: Path, folder: str = "one", **changed: Any) -> Settings:
    """Return settings of a process whose keys are in *folder*."""
    return settings_for(tmp_path, enrollment_ca_dir=tmp_path / folder, **changed)


@pytest.mark.parametrize("kept", ["service", "audit-ed25519", "audit-mldsa44"])
def test_one_with_another_key_does_not_start(tmp_path: Path, store: Store, kept: str) -> None:
    """Two empty folders at the same moment: who comes second is told whose the database is. One key is enough."""
    begin(store, of(tmp_path))
    (tmp_path / "other").mkdir()
    for name in {"service-key.pem", "audit-ed25519.pem", "audit-mldsa44.pem"} - {
        f"{kept}.pem",
        f"{kept}-key.pem",
    }:
        shutil.copy(tmp_path / "one" / name, tmp_path / "other" / name)
    with pytest.raises(KeysDiffer, match=r"copy .*/other of one that serves"):
        begin(store, of(tmp_path, "other"))
    begin(store, of(tmp_path))


def test_a_change_of_the_service_key_goes_from_one_replica_to_the_next(tmp_path: Path, store: Store) -> None:
    """Old and new settings side by side at each step; who missed all of them is refused in the end."""
    first, second = (f"file:{tmp_path}/{name}.pem" for name in ("first", "second"))
    steps: tuple[dict[str, str], ...] = (
        {"service_key": first},
        {"service_key": first, "service_key_next": second},
        {"service_key": second, "service_key_previous": first},
        {"service_key": second},
    )
    begin(store, of(tmp_path, **steps[0]))
    for before, after in pairwise(steps):
        for step in (after, before, after):
            begin(store, of(tmp_path, **step))
    with pytest.raises(KeysDiffer, match="another service key"):
        begin(store, of(tmp_path, **steps[0]))


def test_new_keys_of_the_log_are_believed_by_the_list_of_the_old_ones(tmp_path: Path, store: Store) -> None:
    """Not without it, not by a list of others; and who still has the old ones is refused from then on."""
    begin(store, of(tmp_path))
    old, strange = (load_log_signer(of(tmp_path, name), create=True).vkeys for name in ("one", "strange"))
    shutil.copytree(tmp_path / "one", tmp_path / "stays")
    for name in ("audit-ed25519.pem", "audit-mldsa44.pem"):
        (tmp_path / "one" / name).unlink()
    for listed in ((), strange, old[:1]):
        (tmp_path / "one" / RETIRED_KEYS).write_text("".join(f"{each}\n" for each in listed))
        with pytest.raises(KeysDiffer, match=r"audit-retired-vkeys\.txt"):
            begin(store, of(tmp_path))
    (tmp_path / "one" / RETIRED_KEYS).write_text("".join(f"{each}\n" for each in old))
    begin(store, of(tmp_path))
    with pytest.raises(KeysDiffer):
        begin(store, of(tmp_path, "stays"))


@pytest.mark.anyio
async def test_copies_of_the_keys_have_a_memory_of_their_own(start: Starter, tmp_path: Path) -> None:
    """A replica with an empty folder takes what its keys signed; without keys, or with others, it is refused."""
    service = await start()
    await service.operator("GET", "/machines")
    await service.resources.transparency.advance(force=True)
    one = service.resources.settings
    shutil.copytree(one.enrollment_ca_dir, tmp_path / "copies")
    store = service.resources.store

    def recognised(folder: str, state: str) -> MemoryFile:
        changed = {"state_dir": tmp_path / state, "db_url": one.db_url}
        settings = settings_for(tmp_path, enrollment_ca_dir=tmp_path / folder, **changed)
        database.recognise(settings, store, CLOCK)
        return MemoryFile.of(settings)

    remembered = recognised("copies", "state").read()
    signed = MemoryFile.of(one).read()
    assert signed is not None
    assert remembered == signed
    assert remembered.last.size > 0
    with pytest.raises(DatabaseNotRecognised, match="is missing"):
        recognised("empty", "state-2")
    load_log_signer(of(tmp_path, "others"), create=True)
    with pytest.raises(DatabaseNotRecognised, match="not signed by the keys here"):
        recognised("others", "state-3")


@pytest.mark.anyio
async def test_a_memory_follows_what_others_signed(start: Starter, tmp_path: Path) -> None:
    """So a database that is older than that is noticed by each replica, not only by who signed."""
    one = await start()
    await one.resources.transparency.advance(force=True)
    shutil.copytree(one.resources.settings.enrollment_ca_dir, tmp_path / "copies")
    other = await start(enrollment_ca_dir=tmp_path / "copies", state_dir=tmp_path / "state")
    await one.operator("GET", "/machines")
    await one.resources.transparency.advance(force=True)
    await other.resources.transparency.follow()
    theirs, ours = (MemoryFile.of(each.resources.settings).read() for each in (one, other))
    assert theirs is not None
    assert ours == theirs
