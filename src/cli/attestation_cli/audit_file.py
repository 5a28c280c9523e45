"""Exports of the audit log on an auditor's disk: verified in one pass, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attestation.audit import checkpoint
from attestation.audit.checkpoint import UnverifiedCheckpoint
from attestation.audit.export import LogVerifier, Pinned, VerifiedLog
from attestation.audit.note import MAX_NOTE_BYTES, VerifierKey, parse_vkey
from attestation.errors import AlreadyExists, LogBroken, LogRejected, MalformedNote, RequestInvalid
from attestation_cli.progress import Progress

PIECE_BYTES = 1 << 18
MOST_VKEY_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What came of verifying an export.

    Args:
        verdict: What was proven; None where it is broken.
        error: What is wrong, where something is.
        good: How many entries were good.
    """

    verdict: VerifiedLog | None
    error: LogRejected | MalformedNote | None
    good: int

    @property
    def first_invalid_id(self) -> int | None:
        """The first entry that does not fit, where one can be named."""
        return self.error.entry_id if isinstance(self.error, LogBroken) else None


def read_vkeys(given: Sequence[str], file: Path | None) -> tuple[VerifierKey, ...]:
    """Return the keys *given* and those in *file*: one a line, empty lines and `#` lines passed over.

    Raises:
        RequestInvalid: The file cannot be read, or one of them is no vkey.
    """
    lines = list(given)
    if file is not None:
        try:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(MOST_VKEY_CHARACTERS + 1)
        except (OSError, UnicodeDecodeError) as e:
            raise RequestInvalid(f"{file}: cannot be read as text") from e
        if len(text) > MOST_VKEY_CHARACTERS:
            raise RequestInvalid(f"{file}: too long for a file of vkeys")
        lines += [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    try:
        return tuple(dict.fromkeys(parse_vkey(line) for line in lines))
    except MalformedNote as e:
        raise RequestInvalid(f"not a vkey: {e}") from e


def pinned(
    log_keys: tuple[VerifierKey, ...], witnesses: tuple[VerifierKey, ...], quorum: int | None
) -> Pinned | None:
    """Return whom to believe; None where nobody is pinned. Without *quorum* every witness must have cosigned.

    Raises:
        RequestInvalid: The keys are of several logs, or the quorum cannot be met.
    """
    origins = sorted({key.name for key in log_keys})
    if len(origins) > 1:
        raise RequestInvalid(f"the vkeys are of several logs: {', '.join(origins)}")
    names = {key.name for key in witnesses}
    if quorum is not None and quorum > len(names):
        raise RequestInvalid(f"a quorum of {quorum} cannot be met by {len(names)} witnesses")
    if not log_keys:
        if witnesses:
            raise RequestInvalid("witnesses are pinned, but no key of the log: give its vkeys too")
        return None
    return Pinned(log_keys=log_keys, witnesses=witnesses, quorum=len(names) if quorum is None else quorum)


def read_checkpoint(path: Path) -> UnverifiedCheckpoint:
    """Read a signed checkpoint that somebody kept.

    Raises:
        RequestInvalid: It cannot be read, or is no checkpoint.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_NOTE_BYTES + 1)
    except OSError as e:
        raise RequestInvalid(f"{path}: {e.strerror}") from e
    try:
        return checkpoint.parse(data)
    except MalformedNote as e:
        raise RequestInvalid(f"{path} is no signed checkpoint: {e}") from e


def verify_file(
    path: Path, *, pinned: Pinned | None, earlier: Sequence[UnverifiedCheckpoint], silent: bool
) -> Checked:
    """Verify the export in *path*, in one pass and constant memory.

    Raises:
        RequestInvalid: It cannot be read.
    """

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                yield data

    checker = _Checker(pinned, earlier)
    try:
        for _ in _watched(checker, pieces(), "verifying", silent=silent):
            if checker.error is not None:
                break
    except OSError as e:
        raise RequestInvalid(f"{path}: {e.strerror}") from e
    return checker.done()


def save(
    path: Path,
    pieces: Iterator[bytes],
    *,
    pinned: Pinned | None,
    earlier: Sequence[UnverifiedCheckpoint],
    replace: bool,
    silent: bool,
    convert: Callable[[bytes], bytes] | None = None,
) -> Checked:
    """Write *pieces* to *path*, mode 0600, and verify them on the way: the whole file or none.

    What does not verify is written all the same: it is evidence. What breaks off on the way is not, nor what *convert*
    made of a log that does not verify: that would be evidence of nothing.

    Raises:
        AlreadyExists: There is such a file, and it is not to be replaced.
        RequestInvalid: It cannot be written, or something other than a file is there.
    """
    if path.exists() and not replace:
        raise AlreadyExists(f"{path} exists; an older export is evidence too")
    # The new file takes the place of what is there: of /dev/stdout too, for everybody, where root asks.
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise RequestInvalid(f"{path} is no regular file; an export replaces only those")
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.part")
    checker = _Checker(pinned, earlier)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in _watched(checker, pieces, "exporting", silent=silent):
                    if convert is not None and checker.error is not None:
                        break  # it is not written, so the rest need not be waited for, however long it is
                    file.write(piece if convert is None else convert(piece))
                file.flush()
                os.fsync(file.fileno())
            checked = checker.done()
            if checked.error is None or convert is None:
                temporary.rename(path)
                _sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as e:
        raise RequestInvalid(f"{path} cannot be written: {e.strerror}") from e
    return checked


class _Checker:
    """A verifier that remembers the first error instead of raising it."""

    def __init__(self, pinned: Pinned | None, earlier: Sequence[UnverifiedCheckpoint]) -> None:
        self._verifier = LogVerifier(pinned=pinned, earlier=earlier)
        self.error: LogRejected | MalformedNote | None = None

    @property
    def entries(self) -> int:
        return self._verifier.entries

    @property
    def size(self) -> int | None:
        return self._verifier.size

    def feed(self, data: bytes) -> None:
        if self.error is None:
            try:
                self._verifier.feed(data)
            except (LogRejected, MalformedNote) as e:
                self.error = e

    def done(self) -> Checked:
        verdict = None
        if self.error is None:
            try:
                verdict = self._verifier.finish()
            except (LogRejected, MalformedNote) as e:
                self.error = e
        return Checked(verdict=verdict, error=self.error, good=self.entries)


def _watched(checker: _Checker, pieces: Iterator[bytes], label: str, *, silent: bool) -> Iterator[bytes]:
    """Feed *pieces* to *checker* and hand them on, with a bar once the header said how many entries there are."""
    with contextlib.ExitStack() as stack:
        bar: Progress | None = None
        shown = 0
        for piece in pieces:
            checker.feed(piece)
            if bar is None and checker.size is not None:
                bar = stack.enter_context(Progress(label, total=checker.size, silent=silent))
            if bar is not None:
                bar.advance(checker.entries - shown)
                shown = checker.entries
            yield piece


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
