"""The agent on Talos: only a verified order reaches machined, and there is one way to do what it says."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from attestation_agent import main
from attestation_agent.exits import ApplyFailed, Exit, UsageError, WipeFailed
from attestation_agent.settings import load
from attestation_agent.state import State
from tests.unit.agent.test_node import FORGED_DELIVERIES, attested
from tests.unit.agent.world import CONFIG, OTHER_ID, URL, Machine, World, signer

SOCKET = "/system/run/machined/machine.sock"


class Talos:
    """What reaches machined, in order."""

    can_wipe = True
    named: Mapping[str, str] = {"by": "machined"}

    def __init__(self) -> None:
        self.asked: list[bytes | str] = []
        self.fails = False

    def apply(self, config: bytes) -> None:
        """Note it."""
        self.asked.append(config)
        if self.fails:
            raise ApplyFailed("machined answers INVALID_ARGUMENT, at line 3")

    def wipe(self) -> None:
        """Note it."""
        self.asked.append("wipe")
        if self.fails:
            raise WipeFailed("machined hung up")


def on_talos(tmp_path: Path, wipe_order_dir: str | None = None) -> tuple[World, Talos]:
    """Return a world whose machine is attested, and its machined, which was asked for nothing yet."""
    world = World(tmp_path) if wipe_order_dir is None else World(tmp_path, wipe_order_dir=wipe_order_dir)
    talos = Talos()
    world.machined = talos
    attested(world)
    talos.asked.clear()
    world.service.acks.clear()
    return world, talos


@pytest.mark.threat("T19")
@pytest.mark.parametrize("action", ["wipe", "apply-config"])
def test_an_order_that_is_not_proven_does_not_reach_machined(tmp_path: Path, action: str) -> None:
    """Unsigned, by another key, for another machine, replayed: machined hears of none, the service of no outcome."""
    world, talos = on_talos(tmp_path)
    old = world.service.claims(action=action)
    world.service.action = action
    for forge in (
        lambda claims: None,
        lambda claims: "a.b.c",
        lambda claims: signer(tmp_path, "another").sign_jwt(claims, typ="itl-directive+jwt"),
        lambda claims: world.service.sign(
            {**claims, "binding": {**claims["binding"], "ak_name": "000b" + "0" * 64}}
        ),
        lambda claims: world.service.sign({**old, "nonce": claims["nonce"]}),
    ):
        world.service.directive = forge
        assert world.run() is Exit.NOT_AUTHENTIC
    assert talos.asked == []
    assert world.service.acks == []


@pytest.mark.threat("T17")
def test_a_configuration_that_the_service_did_not_sign_does_not_reach_machined(tmp_path: Path) -> None:
    """By none of the ways to forge a delivery."""
    world, talos = on_talos(tmp_path)
    world.service.action = "apply-config"
    for forge in FORGED_DELIVERIES.values():
        world.service.token_id, world.service.action = "e" * 16, "apply-config"
        world.service.config_signature = lambda claims, forge=forge: forge(world, claims)
        assert world.run() is Exit.NOT_AUTHENTIC
    assert talos.asked == []


@pytest.mark.threat("T19")
def test_a_planted_order_does_not_reach_machined(tmp_path: Path) -> None:
    """Whoever can write the state directory cannot wipe the machine by it."""
    world, talos = on_talos(tmp_path)
    forged = signer(tmp_path, "another").sign_jwt(
        world.service.claims(action="wipe", nonce=""), typ="itl-directive+jwt"
    )
    (world.settings.state_dir / "wipe.json").write_text(
        json.dumps({"directive": forged, "acknowledged": True})
    )
    assert world.run() is Exit.NOT_AUTHENTIC
    assert talos.asked == []


def test_what_machined_refuses_is_told_and_tried_again(tmp_path: Path) -> None:
    """Neither counts as done; no file and no command takes the place of machined."""
    world, talos = on_talos(tmp_path)
    talos.fails = True
    world.service.token_id, world.service.action, world.service.owes = "e" * 16, "apply-config", True
    assert world.run() is Exit.APPLY_FAILED
    assert [ack["detail"] for ack in world.service.acks] == ["machined answers INVALID_ARGUMENT, at line 3"]
    talos.fails = False
    assert world.run() is Exit.OK
    world.service.status, world.service.action = "revoked", "wipe"
    talos.fails = True
    assert world.run() is Exit.WIPE_FAILED
    world.clock.at += timedelta(hours=1)
    talos.fails = False
    assert world.run() is Exit.REVOKED
    assert talos.asked == [CONFIG, CONFIG, "wipe", "wipe"]
    assert world.commands == []
    assert not world.config_path.exists()


# What memory forgets


def forget(world: World) -> None:
    """Boot anew: what was kept in memory is gone."""
    shutil.rmtree(world.state.directory)
    world.state = State(world.settings.state_dir, wipe_orders=world.settings.wipe_order_dir)


def wiping(tmp_path: Path) -> tuple[World, Talos, Path]:
    """Return a machine that is told to wipe itself, and where its disk keeps such an order."""
    disk = tmp_path / "var/lib/itl-tpm"
    disk.parent.mkdir(parents=True)
    world, talos = on_talos(tmp_path, str(disk))
    world.service.status, world.service.action = "revoked", "wipe"
    return world, talos, disk


@pytest.mark.threat("T322")
@pytest.mark.parametrize("heard", [True, False])
def test_a_wipe_that_was_acknowledged_outlives_the_memory(tmp_path: Path, heard: bool) -> None:
    """Power fails between acknowledgement and wipe: a service that asks no more is not asked; the disk remembers."""
    world, talos, disk = wiping(tmp_path)

    class PowerCut(BaseException):
        """Nothing of ours runs any more."""

    def cut(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/ack") and not heard:
            raise PowerCut
        return body

    def wipe() -> None:
        raise PowerCut

    world.service.alter = cut
    talos.wipe = wipe  # type: ignore[method-assign]  # the power goes
    with pytest.raises(PowerCut):
        world.run()
    assert [ack["outcome"] for ack in world.service.acks] == ["done"]
    del talos.wipe
    world.service.alter, world.service.action = (lambda path, body: body), "none"
    forget(world)
    assert world.run() is Exit.REVOKED
    assert talos.asked == ["wipe"]
    assert not (disk / "wipe.json").exists()
    assert world.state.wipe_order() is None


def test_without_a_disk_the_order_is_kept_in_memory(tmp_path: Path) -> None:
    """In maintenance there is none, and nothing on it to be wiped: the wipe is no worse off than before."""
    world, talos, disk = wiping(tmp_path)
    disk.parent.rmdir()
    talos.fails = True
    assert world.run() is Exit.WIPE_FAILED
    world.service.action, talos.fails = "none", False
    assert world.run() is Exit.REVOKED
    assert talos.asked == ["wipe", "wipe"]
    assert not disk.exists()


def test_a_disk_that_is_there_and_full_keeps_the_acknowledgement_back(tmp_path: Path) -> None:
    """What could be forgotten is not acknowledged; the service orders it again."""
    world, talos, disk = wiping(tmp_path)
    disk.write_text("no directory")
    assert world.run() is Exit.STATE_NOT_KEPT
    assert (talos.asked, world.service.acks) == ([], [])
    disk.unlink()
    assert world.run() is Exit.REVOKED
    assert talos.asked == ["wipe"]


@pytest.mark.threat("T322")
def test_an_order_on_a_disk_from_another_box_wipes_nothing(tmp_path: Path) -> None:
    """It is for another TPM: forgotten once, so that this machine goes on."""
    world, talos, disk = wiping(tmp_path)
    talos.fails = True
    assert world.run() is Exit.WIPE_FAILED
    talos.asked.clear()
    talos.fails = False
    forget(world)
    world.machine = Machine(seed=2)
    world.service.status, world.service.action = "pending_approval", "none"
    world.service.machine_id = OTHER_ID
    assert world.run() is Exit.PENDING_APPROVAL
    assert talos.asked == []
    assert "wipe.foreign" in world.events.names()
    assert not (disk / "wipe.json").exists()


@pytest.mark.parametrize(
    "option", [{"config_path": "/x"}, {"apply_command": "apply"}, {"wipe_command": "wipe"}]
)
def test_there_is_one_way_to_apply_and_to_wipe(option: dict[str, str]) -> None:
    """A second one beside machined is refused by name: nobody could tell which is meant."""
    flags = {"server_url": URL, "machined_socket": SOCKET}
    assert load(flags, environ={}).machined_socket == Path(SOCKET)
    with pytest.raises(UsageError, match=f"--{next(iter(option)).replace('_', '-')} has no meaning beside"):
        load({**flags, **option}, environ={})


def test_the_socket_is_never_guessed() -> None:
    """Without the setting there is no machined, whatever lies at its path."""
    assert load({"server_url": URL}, environ={}).machined_socket is None
    assert main._machined(None, 1.0) is None
    assert main._machined(Path(SOCKET), 1.0) is not None


def test_without_h2_the_agent_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra of the distribution, and not the name of a module."""
    monkeypatch.delitem(sys.modules, "attestation_agent.talos.machined", raising=False)
    monkeypatch.delitem(sys.modules, "attestation_agent.talos.calls", raising=False)
    monkeypatch.setitem(sys.modules, "h2.config", None)
    with pytest.raises(UsageError, match=r"needs itl-attestation-agent\[talos\]"):
        main._machined(Path(SOCKET), 1.0)
