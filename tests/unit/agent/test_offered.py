"""Certificates as other programs find them: whole sets, modes, and what a crash may leave behind."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from attestation_agent.offered import (
    ABOUT,
    ALL,
    BUNDLE,
    CERTIFICATE,
    CHAIN,
    FULL_CHAIN,
    KEY,
    Offered,
    directory_of,
)
from tests.fixtures.operator_pki import OperatorCA

CA = OperatorCA(datetime(2026, 11, 21, tzinfo=UTC))
PEMS = [CA.issue(name).pem for name in ("one", "two")]


def files(number: int = 0) -> dict[str, bytes]:
    """Return a set whose key names its certificate."""
    pem = PEMS[number]
    return {KEY: b"key of " + pem, CERTIFICATE: pem, CHAIN: b"", BUNDLE: CA.pem}


@pytest.fixture
def offered(tmp_path: Path) -> Offered:
    """An empty directory."""
    return Offered(tmp_path / "tls")


def test_a_set_is_found_as_it_was_offered(offered: Offered) -> None:
    """With the files that are made of the others."""
    assert offered.current("client") is None
    version = offered.replace("client", files(), {"serial": "1"})
    found = offered.current("client")
    assert found is not None
    assert (found.version, found.about) == (version, {"serial": "1"})
    assert found.files == {**files(), FULL_CHAIN: PEMS[0], ALL: files()[KEY] + PEMS[0]}
    assert found.certificate.subject.rfc4514_string().startswith("CN=one")
    assert offered.current("server") is None


@pytest.mark.threat("T112")
def test_modes(offered: Offered, tmp_path: Path) -> None:
    """Keys are for the agent's user, certificates for everybody, whatever the umask says; with a group, for it too."""
    before = os.umask(0o077)
    try:
        offered.replace("client", files(), {})
        Offered(tmp_path / "group", group=os.getgid()).replace("client", files(), {})
    finally:
        os.umask(before)
    for directory, secret in ((offered.path("client"), 0o600), (tmp_path / "group" / "client", 0o640)):
        for path in directory.resolve().iterdir():
            expected = secret if path.name in (KEY, ALL) else 0o644
            assert stat.S_IMODE(path.stat().st_mode) == expected, path.name
            assert path.stat().st_gid == os.getgid()
        for made in (directory.parent, directory.resolve()):
            assert stat.S_IMODE(made.stat().st_mode) == 0o755


@pytest.mark.threat("T111")
def test_a_reader_never_sees_a_mixture(offered: Offered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who resolves the link first, or reads all.pem: key and certificate fit, through a hundred switches."""
    offered.replace("client", files(), {})
    link = Path.symlink_to

    def slowly(self: Path, target: str) -> None:
        time.sleep(0.001)  # whoever looks now finds what was there before
        link(self, target)

    monkeypatch.setattr(Path, "symlink_to", slowly)
    stop, seen = threading.Event(), set()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            try:
                directory = offered.directory / offered.path("client").readlink()
            except FileNotFoundError:
                wrong.append("nothing is offered for a moment")
                continue
            try:
                key, pem = (directory / KEY).read_bytes(), (directory / CERTIFICATE).read_bytes()
                both = (offered.path("client") / ALL).read_bytes()
            except FileNotFoundError:
                # Two switches between two reads: the set before the present one is kept, not the one before that.
                continue
            seen.add(pem)
            if (
                key != b"key of " + pem
                or both[: len(both) // 2 + 4] != b"key of " + both[7 : len(both) // 2 + 4]
            ):
                wrong.append(str(directory))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    number = 0
    while number < 100 or seen != set(PEMS):
        offered.replace("client", files(number % 2), {})
        number += 1
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert seen == set(PEMS)


def test_the_set_before_stays_and_no_other(offered: Offered) -> None:
    """Whoever began to read it may finish; a crash leaves nothing for ever."""
    versions = [offered.replace("client", files(number % 2), {}) for number in range(5)]
    offered.replace("server", files(), {})
    (offered.directory / (".client-" + 16 * "0")).mkdir()
    (offered.directory / ".client-notours").mkdir()
    versions.append(offered.replace("client", files(), {}))
    left = {path.name for path in offered.directory.glob(".client-*")}
    assert left == {*versions[-2:], ".client-notours"}
    assert offered.current("server") is not None


@pytest.mark.parametrize("step", ["_write", "_switch"])
def test_a_failure_leaves_what_was(offered: Offered, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """And nothing half done."""
    before = offered.replace("client", files(), {})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Offered, step, full)
    with pytest.raises(OSError, match="No space"):
        offered.replace("client", files(1), {})
    assert [path.name for path in offered.directory.glob(".client-*")] == [before]
    found = offered.current("client")
    assert found is not None
    assert found.version == before


def test_a_failure_after_the_switch_keeps_the_new_set(
    offered: Offered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link names it: removing it would take the certificate away."""
    offered.replace("client", files(), {})

    def failing(directory: Path) -> None:
        if directory == offered.directory:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("attestation_agent.offered.sync_directory", failing)
    with pytest.raises(OSError, match="Input"):
        offered.replace("client", files(1), {})
    found = offered.current("client")
    assert found is not None
    assert found.files[CERTIFICATE] == PEMS[1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (ABOUT, b"rubbish"),
        (ABOUT, b"[]"),
        (CERTIFICATE, b"rubbish"),
        (KEY, None),
        (BUNDLE, None),
        (ABOUT, None),
        (CERTIFICATE, None),
        (BUNDLE, bytes(2 << 20)),
    ],
)
def test_what_cannot_be_read_is_not_offered(offered: Offered, name: str, content: bytes | None) -> None:
    """A set that somebody damaged is as none: a new certificate is asked for."""
    offered.replace("client", files(), {})
    path = offered.path("client") / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert offered.current("client") is None


def test_a_link_to_somewhere_else_is_not_ours(offered: Offered, tmp_path: Path) -> None:
    """Only what `replace` made counts."""
    version = offered.replace("client", files(), {})
    (offered.directory / "elsewhere").symlink_to(version)
    offered.path("client").unlink()
    offered.path("client").symlink_to("elsewhere")
    assert offered.current("client") is None
    assert json.loads((offered.directory / "elsewhere" / ABOUT).read_bytes()) == {}


def test_a_key_that_waits(offered: Offered) -> None:
    """Kept, mode 0600, and forgotten."""
    assert offered.pending_key("client") is None
    offered.set_pending_key("client", b"key")
    assert offered.pending_key("client") == b"key"
    (path,) = offered.directory.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(offered.directory.stat().st_mode) == 0o755
    for _ in range(2):
        offered.set_pending_key("client", None)
    assert offered.pending_key("client") is None


def test_asking_for_a_renewal(offered: Offered) -> None:
    """Until it is answered; and a pause after failures ends."""
    offered.set_notes("client", {"next_try_at": "soon", "error": {"code": "x"}})
    assert not offered.asked("client")
    offered.ask("client")
    assert offered.asked("client")
    assert offered.notes("client") == {"error": {"code": "x"}}
    for _ in range(2):
        offered.answered("client")
    assert not offered.asked("client")


def test_notes_are_written_when_they_change(offered: Offered) -> None:
    """Not at every look."""
    offered.set_notes("client", {"a": 1})
    path = offered.directory / ".client.notes.json"
    before = path.stat().st_ino
    offered.set_notes("client", {"a": 1})
    assert path.stat().st_ino == before
    path.write_text("rubbish")
    assert offered.notes("client") == {}


def test_the_directory(tmp_path: Path) -> None:
    """In the state directory, unless it is told otherwise."""
    assert directory_of(tmp_path, None) == tmp_path / "tls"
    assert directory_of(tmp_path, Path("/etc/itl/tls")) == Path("/etc/itl/tls")
