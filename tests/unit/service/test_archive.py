"""The archive of sealed bundles: written once, whole, and never again; where it is, a URL says."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from attestation_service.archive import ArchiveFault, Fault, archive_of, bucket
from attestation_service.archive.bucket import BucketArchive
from attestation_service.archive.directory import DirectoryArchive
from attestation_service.archive_location import Bucket, Directory, LocationInvalid, parse_location
from attestation_service.settings import Settings

NAME = "prod-1/2026/11/0c1d2e3f-0000-4000-8000-000000000009.intoto.jsonl"
TYPE = "application/json"
DATA = b"line\n" * 1000


@pytest.fixture
def archive(tmp_path: Path) -> DirectoryArchive:
    """Return an archive in a directory that is not there yet."""
    return DirectoryArchive(tmp_path / "deep" / "bundles")


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("file:///var/lib/bundles", Directory(path=Path("/var/lib/bundles"))),
        ("file:///var/lib/b%20c", Directory(path=Path("/var/lib/b c"))),
        ("s3://bundles", Bucket(name="bundles", prefix="", endpoint=None, region="us-east-1")),
        (
            "s3://bundles/itl/prod?endpoint=https://s3.example:9000&region=eu-west-1",
            Bucket(
                name="bundles", prefix="itl/prod/", endpoint="https://s3.example:9000", region="eu-west-1"
            ),
        ),
        (
            "s3://bundles/?endpoint=http://127.0.0.1:8333/",
            Bucket(name="bundles", prefix="", endpoint="http://127.0.0.1:8333", region="us-east-1"),
        ),
    ],
)
def test_where_an_archive_is(url: str, location: Directory | Bucket) -> None:
    """A directory of this computer, or a bucket of a server."""
    assert parse_location(url) == location


@pytest.mark.parametrize(
    "url",
    [
        *("", "bundles", "/var/lib/bundles", "file://bundles", "file://host/bundles", "file:///a?b=c"),
        *(
            "file:///a/../b",
            "https://bundles",
            "s3://",
            "s3://Bundles",
            "s3://bundles:80",
            "s3://u:p@bundles",
        ),
        *("s3://bundles/a b", "s3://bundles/../x", "s3://bundles?secret=x", "s3://bundles?region=a&region=b"),
        *("s3://bundles?region=EU!", "s3://bundles?endpoint=http://s3.example", "s3://bundles?endpoint=x"),
        *(
            "s3://bundles?endpoint=https://u@s3.example",
            "s3://bundles?endpoint=https://s3.example/x",
            "s3://[",
        ),
        *("s3://bundles?endpoint=https://[", "s3://bundles#x"),
    ],
)
def test_what_names_no_archive_is_refused(url: str) -> None:
    """Neither credentials, nor a way that others could listen on, nor an option that means nothing."""
    with pytest.raises(LocationInvalid):
        parse_location(url)


def test_the_setting_is_looked_at_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What names no archive, or needs a package that is not there, stops the start; unset, it is beside the keys."""
    with pytest.raises(ValueError, match="file://"):
        Settings(runs_archive="/var/lib/bundles")
    assert Settings(enrollment_ca_dir=Path("/x/ca")).archive_url == "file:///x/bundles"
    assert Settings(runs_archive="file:///y").archive_url == "file:///y"
    monkeypatch.setattr("attestation_service.settings.find_spec", lambda name: None)
    assert Settings(runs_archive="file:///y").archive_url == "file:///y"
    with pytest.raises(ValueError, match=r"itl-attestation-service\[s3\]"):
        Settings(runs_archive="s3://bundles")


def test_a_file_is_kept_read_only_under_its_name(archive: DirectoryArchive, tmp_path: Path) -> None:
    """Whoever has its URL gets just these bytes; nothing is left beside it."""
    stored = archive.put(NAME, DATA, TYPE)
    path = tmp_path / "deep" / "bundles" / NAME
    assert (stored.url, path.read_bytes()) == (f"file://{path}", DATA)
    assert stat.S_IMODE(path.stat().st_mode) == 0o440
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert archive.get(stored.url) == DATA
    assert isinstance(archive_of(tmp_path.as_uri(), retention=timedelta(1)), DirectoryArchive)


def test_it_is_written_once(archive: DirectoryArchive) -> None:
    """The same again is success, and touches nothing; other content is an error, and what is there stays."""
    stored = archive.put(NAME, DATA, TYPE)
    before = Path(stored.url.removeprefix("file://")).stat()
    assert archive.put(NAME, DATA, TYPE) == stored
    with pytest.raises(ArchiveFault) as caught:
        archive.put(NAME, DATA + b"x", TYPE)
    assert caught.value.fault is Fault.OTHER_CONTENT
    after = Path(stored.url.removeprefix("file://")).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert archive.get(stored.url) == DATA


@pytest.mark.parametrize(
    ("call", "number", "fault"),
    [
        ("fsync", errno.ENOSPC, Fault.FULL),
        ("link", errno.EDQUOT, Fault.FULL),
        ("open", errno.EROFS, Fault.DENIED),
        ("link", errno.EIO, Fault.FAILED),
    ],
)
def test_what_cannot_be_kept_is_not_there(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch, call: str, number: int, fault: Fault
) -> None:
    """A disk that is full, or fails, leaves no part of a file; and the next attempt finds room for it."""

    def failing(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(ArchiveFault) as caught:
            archive.put(NAME, DATA, TYPE)
    assert caught.value.fault is fault
    root = archive._root
    assert [each for each in root.rglob("*") if each.is_file()] == []
    assert archive.get(archive.put(NAME, DATA, TYPE).url) == DATA


def test_a_link_is_not_followed(archive: DirectoryArchive, tmp_path: Path) -> None:
    """What stands under the name is a file of the archive, or nothing that it would read or write."""
    other = tmp_path / "other"
    other.write_bytes(DATA)
    path = archive._root / NAME
    path.parent.mkdir(parents=True)
    path.symlink_to(other)
    for act in (lambda: archive.put(NAME, DATA, TYPE), lambda: archive.get(path.as_uri())):
        with pytest.raises(ArchiveFault):
            act()
    assert other.read_bytes() == DATA


@pytest.mark.parametrize("url", ["file:///etc/passwd", "s3://bundles/x", "{root}/../x", "{root}/none"])
def test_only_what_is_in_the_archive_is_read(archive: DirectoryArchive, url: str) -> None:
    """A URL from a database leads nowhere else."""
    with pytest.raises(ArchiveFault) as caught:
        archive.get(url.replace("{root}", archive._root.as_uri()))
    assert caught.value.fault is Fault.MISSING


@pytest.mark.parametrize(
    "name", ["", "/etc/x", "../x", "a/../b", "a//b", ".hidden", "a/.b", "a b", "a/", "é"]
)
def test_a_name_stays_in_the_archive(archive: DirectoryArchive, name: str) -> None:
    """Nothing is kept under a name that could mean another place."""
    with pytest.raises(ValueError):
        archive.put(name, DATA, TYPE)


class _Strange:
    """What stands in the place of an object storage, as a proxy does for a moment."""

    def __init__(self, put: Exception | None, held: dict[str, Any]) -> None:
        self._put = put
        self._held = held

    def put_object(self, **_: Any) -> dict[str, Any]:
        if self._put is not None:
            raise self._put
        return {"VersionId": "1"}

    def head_object(self, **_: Any) -> dict[str, Any]:
        return {"ObjectLockMode": "COMPLIANCE", **self._held}


@pytest.mark.parametrize(
    ("put", "held"),
    [
        (ValueError("invalid literal for int(): of a Content-Length"), {}),
        (None, {"ObjectLockRetainUntilDate": datetime(2099, 1, 1)}),  # noqa: DTZ001 -- an answer without a zone
    ],
)
def test_what_is_no_answer_of_a_storage_is_a_fault_that_passes(
    put: Exception | None, held: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told otherwise, one such answer ended a seal for ever, or held up all that wait behind it."""
    archive = BucketArchive(Bucket(name="b", prefix="", endpoint=None, region="r"), timedelta(days=1))
    monkeypatch.setattr(archive, "_client", lambda: _Strange(put, held))
    with pytest.raises(ArchiveFault) as caught:
        archive.put(NAME, DATA, TYPE)
    assert caught.value.fault is Fault.FAILED


def _trickle(listener: socket.socket, cut: threading.Event) -> None:
    """Answer one request without an end, a byte at a time; note when nobody takes it any more."""
    with contextlib.suppress(OSError):
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            try:
                for _ in range(2000):
                    connection.sendall(b"x")
                    cut.wait(0.01)
            except OSError:
                cut.set()


def test_a_storage_that_answers_byte_by_byte_has_a_time_for_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte came in time, the answer never, and every seal waited behind it: its thread has to be free again."""
    monkeypatch.setattr(bucket, "WHOLE_SECONDS", 1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("NO_PROXY", "*")
    cut = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        server = threading.Thread(target=_trickle, args=(listener, cut))
        server.start()
        place = Bucket(
            name="bucket",
            prefix="",
            endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}",
            region="us-east-1",
        )
        archive = BucketArchive(place, timedelta(days=1))
        archive._client()  # read from many files, outside of the time that is bounded here
        with pytest.raises(ArchiveFault, match="not done in 1") as caught:
            archive.put(NAME, DATA, TYPE)
        server.join(timeout=30)
    assert caught.value.fault is Fault.UNREACHABLE
    assert cut.is_set()
