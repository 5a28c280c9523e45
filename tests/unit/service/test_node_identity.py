"""Extractors and providers that others bring: found by name, bounded, and never an approval by accident."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from attestation.endorsements.membership import Member, Membership, NotMember, Undecided
from attestation.endorsements.node_identity import MACHINE, SHIPPED, IdentitySource, NodeIdentity
from attestation_service.settings import SettingsInvalid
from attestation_service.verifier import node_identity
from attestation_service.verifier.node_identity import IDENTITY_GROUP, MEMBERSHIP_GROUP, Asking
from attestation_testing import CertificateAuthority, pem
from attestation_testing.ak_certificates import make_ak_certificate
from attestation_testing.software_keys import SoftwareAK

AT = datetime(2026, 11, 23, tzinfo=UTC)

WHO = NodeIdentity(extractor="rack", value="rack/7", node_name=None, machine_id="m", hostname="host")


class Rack:
    """An extractor of somebody else."""

    name = "rack"
    certified = True

    @staticmethod
    def extract(source: IdentitySource) -> NodeIdentity:
        """Name everybody the same."""
        return WHO


class Inventory:
    """A provider of somebody else."""

    def __init__(self, url: str) -> None:
        self.url = url

    def is_member(self, identity: NodeIdentity) -> Membership:
        """Know everybody."""
        return Member(node_name=self.url)


def inventory(_cluster_id: str, options: Mapping[str, str]) -> Inventory:
    """Make one."""
    return Inventory(options["url"])


def not_a_provider(_cluster_id: str, _options: Mapping[str, str]) -> object:
    """Make something else."""
    return object()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install distributions with entry points of this module, and one that is broken."""
    here = __name__
    points = [
        *(
            metadata.EntryPoint(name, f"{here}:{value}", IDENTITY_GROUP)
            for name, value in (
                ("rack", "Rack"),
                ("machine", "Rack"),
                ("other", "Rack"),
                ("text", "__name__"),
                ("twice", "Rack"),
                ("twice", "Rack"),
                ("gone", "NoSuchThing"),
            )
        ),
        *(
            metadata.EntryPoint(name, f"{here}:{value}", MEMBERSHIP_GROUP)
            for name, value in (
                ("inventory", "inventory"),
                ("text", "__name__"),
                ("nothing", "not_a_provider"),
            )
        ),
    ]

    def entry_points(*, group: str, name: str | None = None) -> list[metadata.EntryPoint]:
        return [each for each in points if each.group == group and name in (None, each.name)]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    # The module of a test has no importable name of its own.
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda point: globals()[point.value.partition(":")[2]])


@pytest.mark.usefixtures("installed")
def test_an_extractor_is_found_by_its_name() -> None:
    """Ours are always ours; others are what their entry point says."""
    assert node_identity.extractor("rack") is Rack
    assert node_identity.extractor("machine") is MACHINE
    assert [node_identity.extractor(name) for name in SHIPPED] == list(SHIPPED.values())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nobody", "none is installed; known are gce-instance"),
        ("twice", "2 distributions"),
        ("gone", "cannot be loaded"),
        ("other", "no extractor of this name"),
        ("text", "no extractor of this name"),
        ("../rack", "is no name"),
        ("", "is no name"),
    ],
)
def test_an_extractor_that_cannot_be_used_ends_the_start(name: str, why: str) -> None:
    """Better no service than one that names nodes by something else."""
    with pytest.raises(SettingsInvalid, match=why):
        node_identity.extractor(name)


@pytest.mark.usefixtures("installed")
def test_an_extractor_without_extract_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail at the first node."""
    monkeypatch.setattr(Rack, "extract", None)
    with pytest.raises(SettingsInvalid, match="no extract"):
        node_identity.extractor("rack")


@pytest.mark.usefixtures("installed")
def test_a_provider_is_made_for_a_cluster(tmp_path: Path) -> None:
    """Ours, and another's, of the options that the operator configured."""
    found = node_identity.provider("inventory", "c", {"url": "node-1"})
    assert found.is_member(WHO) == Member(node_name="node-1")
    assert node_identity.provider("machine", "c", {}).is_member(WHO) == Member(node_name="host")
    members = tmp_path / "members.json"
    members.write_text('{"format": "itl-node-members/1", "members": {"rack/7": "node-7"}}')
    listed = node_identity.provider("file", "c", {"path": str(members)})
    assert listed.is_member(WHO) == Member(node_name="node-7")


@pytest.mark.usefixtures("installed")
def test_a_provider_that_cannot_be_made_ends_the_start(tmp_path: Path) -> None:
    """Whatever keeps it from being made."""
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    cases: list[tuple[str, dict[str, str], str]] = [
        ("machine", {"path": "x"}, "options are none"),
        ("file", {}, "options are path"),
        ("file", {"path": str(tmp_path / "none")}, "No such file"),
        ("file", {"path": str(broken)}, "format and members expected"),
        ("inventory", {}, "url"),
        ("text", {}, "cannot be called"),
        ("nothing", {}, "no is_member"),
        ("nobody", {}, "none is installed"),
    ]
    for name, options, why in cases:
        with pytest.raises(SettingsInvalid, match=why):
            node_identity.provider(name, "c", options)


class Says:
    """A provider that does as told."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def is_member(self, _identity: NodeIdentity) -> Membership:
        """Do it."""
        answer: Membership = self._act()
        return answer


def _raise() -> Membership:
    raise OSError("the inventory is away")


def ask(act: Any, *, seconds: float = 30.0) -> Membership:
    """Ask a provider that does *act*."""
    return asyncio.run(Asking(seconds=seconds).is_member(Says(act), WHO))


def test_an_answer_is_passed_on() -> None:
    """Each of the three."""
    for answer in (Member(node_name="n"), NotMember(reason="no"), Undecided(reason="later")):
        assert ask(lambda answer=answer: answer) == answer


def test_a_provider_that_fails_or_answers_nonsense_has_not_decided() -> None:
    """True is no member: what is not one of the three answers is none."""
    for act in (_raise, lambda: True, lambda: None, lambda: "member"):
        assert isinstance(ask(act), Undecided)
    assert "OSError" in str(ask(_raise))
    assert "inventory" not in str(ask(_raise)), "what it says may hold a secret"


def test_a_provider_that_hangs_has_not_decided_and_holds_nobody_up() -> None:
    """Its thread counts until it ends; the loop goes on, and others get their answer as long as there is room."""
    release = threading.Event()

    def hang() -> Membership:
        assert release.wait(60)
        return Member(node_name="too late")

    async def work() -> None:
        asking = Asking(seconds=0.05, most_at_once=2)
        good = Says(lambda: Member(node_name="n"))
        assert isinstance(await asking.is_member(Says(hang), WHO), Undecided)
        patient = Asking(seconds=30, most_at_once=2)
        assert await patient.is_member(good, WHO) == Member(node_name="n")
        assert isinstance(await asking.is_member(Says(hang), WHO), Undecided)
        full = await asking.is_member(good, WHO)
        assert isinstance(full, Undecided)
        assert "too many" in full.reason
        release.set()

    try:
        asyncio.run(work())
    finally:
        release.set()


def test_anchors_are_read_from_a_folder(tmp_path: Path) -> None:
    """DER or PEM, one a file; whatever is no certificate of a CA ends the start."""
    one, two = CertificateAuthority("One", seed=1), CertificateAuthority("Two", seed=2)
    (tmp_path / "one.der").write_bytes(one.certificate)
    (tmp_path / "two.PEM").write_bytes(pem(two.certificate))
    (tmp_path / "README").write_text("not read")
    assert len(node_identity.load_anchors(tmp_path)) == 2
    for content, why in (
        (b"nothing", "bad.crt"),
        (make_ak_certificate(SoftwareAK(seed=1).public.spki_der(), one, at=AT), "certificate of a CA"),
    ):
        (tmp_path / "bad.crt").write_bytes(content)
        with pytest.raises(SettingsInvalid, match=why):
            node_identity.load_anchors(tmp_path)
    with pytest.raises(SettingsInvalid, match="No such file"):
        node_identity.load_anchors(tmp_path / "none")
