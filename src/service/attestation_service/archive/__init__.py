"""Where sealed bundles are kept, each written once: a directory, or a bucket that locks its objects."""

from attestation_service.archive.archive import Archive, ArchiveFault, Fault, Stored
from attestation_service.archive.opening import archive_of

__all__ = ["Archive", "ArchiveFault", "Fault", "Stored", "archive_of"]
