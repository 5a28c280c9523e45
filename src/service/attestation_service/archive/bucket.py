"""An archive in a bucket with object lock: retention COMPLIANCE, which nobody can shorten or bypass.

Credentials are found as every tool for S3 finds them: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, a file, the
role of a pod or machine. `AWS_CA_BUNDLE` names a CA of one's own.
"""

# Algorithms for: digest
from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from attestation_service.archive.archive import ArchiveFault, Fault, Stored, demand_name
from attestation_service.archive.bounded import TookTooLong, bind, bounded
from attestation_service.archive_location import Bucket

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 20
"""Longest wait for the next byte."""
WHOLE_SECONDS: Final = 30
"""Longest time for all of what keeps or reads an object, and a second more for each MiB: others wait behind it."""
LOCK: Final = "COMPLIANCE"
MAX_BYTES: Final = 128 << 20
SLACK: Final = timedelta(minutes=5)
"""So much sooner a lock may end than was asked for: servers round."""

_FAULTS: Final = {
    "AccessDenied": Fault.DENIED,
    "InvalidAccessKeyId": Fault.DENIED,
    "SignatureDoesNotMatch": Fault.DENIED,
    "NoSuchBucket": Fault.MISSING,
    "NoSuchKey": Fault.MISSING,
    "NoSuchVersion": Fault.MISSING,
    "404": Fault.MISSING,
    "403": Fault.DENIED,
    "QuotaExceeded": Fault.FULL,
    "XMinioStorageFull": Fault.FULL,
    "507": Fault.FULL,
    # A bucket without object lock refuses the headers that ask for it.
    "InvalidRequest": Fault.NOT_LOCKED,
    "ObjectLockConfigurationNotFoundError": Fault.NOT_LOCKED,
}


class BucketArchive:
    """The objects of *bucket*, each locked for *retention* from when it is kept.

    Args:
        bucket: Where.
        retention: For how long.
        clock: Tells the time: a lock ends at an instant.
    """

    def __init__(
        self,
        bucket: Bucket,
        retention: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._bucket = bucket
        self._retention = retention
        self._clock = clock
        self._session = get_session()
        self._config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            # What fails is tried again by who asked, after a while, and told of until then.
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "auto" if bucket.endpoint is None else "path"},
        )
        self._making = Lock()
        self._found: Any = None

    def put(self, name: str, data: bytes, media_type: str) -> Stored:
        """Keep *data* in the object *name*, locked."""
        demand_name(name)
        with self._bounded(name, len(data)):
            return self._put(self._bucket.prefix + name, data, media_type)

    def get(self, url: str) -> bytes:
        """Return the object of *url*, in the version that it names."""
        key, version = self._parts(url)
        with self._bounded(key, MAX_BYTES):
            return self._read(key, version)[0]

    def _put(self, key: str, data: bytes, media_type: str) -> Stored:
        until = (self._clock() + self._retention).replace(microsecond=0)
        with self._told(key):
            try:
                answer = self._client().put_object(
                    Bucket=self._bucket.name,
                    Key=key,
                    Body=data,
                    ContentType=media_type,
                    # Never a second one under the name: which of them was sealed, nobody could tell by it.
                    IfNoneMatch="*",
                    ChecksumSHA256=base64.b64encode(hashlib.sha256(data).digest()).decode(),
                    ObjectLockMode=LOCK,
                    ObjectLockRetainUntilDate=until,
                )
                version = answer.get("VersionId")
            except ClientError as e:
                if _code(e) not in ("PreconditionFailed", "412", "ConditionalRequestConflict", "409"):
                    raise
                version = self._kept(key, data, until)
        self._demand_lock(key, version, until)
        return Stored(url=self._url(key, version))

    def _kept(self, key: str, data: bytes, until: datetime) -> str | None:
        """Return the version of the object that is there, which has to be the same; lock it for as long as a new one.

        An attempt before kept it, and had no answer; or somebody who may write here, without a lock.
        """
        found, version = self._read(key, None)
        if found != data:
            raise ArchiveFault(Fault.OTHER_CONTENT, f"{self._url(key, version)} has other content")
        with self._told(key):
            self._client().put_object_retention(
                Bucket=self._bucket.name,
                Key=key,
                Retention={"Mode": LOCK, "RetainUntilDate": until},
                **_of(version),
            )
        return version

    def _read(self, key: str, version: str | None) -> tuple[bytes, str | None]:
        with self._told(key):
            answer = self._client().get_object(Bucket=self._bucket.name, Key=key, **_of(version))
            data = answer["Body"].read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ArchiveFault(Fault.OTHER_CONTENT, f"{key}: longer than anything of ours")
        return data, answer.get("VersionId")

    def _demand_lock(self, key: str, version: str | None, until: datetime) -> None:
        """Check that the server did what it was asked: some take the headers and lock nothing."""
        with self._told(key):
            held = self._client().head_object(Bucket=self._bucket.name, Key=key, **_of(version))
            end = held.get("ObjectLockRetainUntilDate")
            ends_early = end is not None and end < until - SLACK
        # Without a version, a delete of the name would leave nothing that a lock could hold.
        if version is None or held.get("ObjectLockMode") != LOCK or end is None:
            raise ArchiveFault(Fault.NOT_LOCKED, f"{key}: not locked; does the bucket have object lock?")
        if ends_early:
            raise ArchiveFault(Fault.NOT_LOCKED, f"{key}: locked until {end:%Y-%m-%d} only")

    def _client(self) -> Any:
        # At the first use: that reads files and environment, and may ask the cloud for a role. A client may be used
        # by several threads, and be made by one.
        with self._making:
            if self._found is None:
                self._found = bind(
                    self._session.create_client(
                        "s3",
                        region_name=self._bucket.region,
                        endpoint_url=self._bucket.endpoint,
                        config=self._config,
                    )
                )
            return self._found

    def _url(self, key: str, version: str | None) -> str:
        query = f"?versionId={quote(version, safe='')}" if version is not None else ""
        return f"s3://{self._bucket.name}/{key}{query}"

    def _parts(self, url: str) -> tuple[str, str | None]:
        parts = urlsplit(url)
        if parts.scheme != "s3" or parts.netloc != self._bucket.name:
            raise ArchiveFault(Fault.MISSING, f"{url} is not in the bucket {self._bucket.name}")
        version = unquote(parts.query.removeprefix("versionId=")) if parts.query else None
        return parts.path.removeprefix("/"), version

    @contextmanager
    def _bounded(self, key: str, size: int) -> Iterator[None]:
        try:
            with bounded(WHOLE_SECONDS + size / (1 << 20)):
                yield
        except TookTooLong as e:
            raise ArchiveFault(Fault.UNREACHABLE, f"{key}: {e}") from e

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Tell what fails as a fault of the archive."""
        try:
            yield
        except ClientError as e:
            raise self._fault(key, e) from e
        except BotoCoreError as e:
            raise ArchiveFault(Fault.UNREACHABLE, f"{key}: {type(e).__name__}") from e
        except (ValueError, TypeError) as e:
            # A proxy may answer in place of the storage, for a moment: nothing that ends a seal, or holds up others.
            raise ArchiveFault(Fault.FAILED, f"{key}: no answer of S3: {type(e).__name__}") from e

    def _fault(self, key: str, error: ClientError) -> ArchiveFault:
        code = _code(error)
        # Code and status only: the message may repeat what was sent.
        return ArchiveFault(_FAULTS.get(code, Fault.FAILED), f"{self._bucket.name}/{key}: {code}")


def _of(version: str | None) -> dict[str, str]:
    return {"VersionId": version} if version is not None else {}


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))[:64]
