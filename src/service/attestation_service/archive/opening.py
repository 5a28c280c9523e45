"""The archive that a URL names."""

from __future__ import annotations

from datetime import timedelta

from attestation_service.archive.archive import Archive
from attestation_service.archive.directory import DirectoryArchive
from attestation_service.archive_location import Bucket, parse_location


def archive_of(url: str, *, retention: timedelta) -> Archive:
    """Return the archive that *url* names; asks nobody yet.

    Args:
        url: See `parse_location`.
        retention: For so long a bucket lets nobody delete what is kept; a directory knows no such thing.

    Raises:
        LocationInvalid: It names none.
    """
    location = parse_location(url)
    if isinstance(location, Bucket):
        from attestation_service.archive.bucket import (
            BucketArchive,  # here: only who has one needs its package
        )

        return BucketArchive(location, retention)
    return DirectoryArchive(location.path)
