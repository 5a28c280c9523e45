"""Standard output that may not be written: a full disk behind `>`, a reader that has gone."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Final, NoReturn, TextIO

_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


@contextlib.contextmanager
def to_the_end(program: str, status: int) -> Iterator[None]:
    """Have all that the block prints written when it ends, or end *program* with a sentence and *status*.

    A reader that has gone has enough, and who closed the output (`>&-`) wants none: they are told nothing. Who closed
    standard error gets the exit code alone.
    """
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as e:
        if not is_of_output(e):
            raise
        gone = isinstance(e, BrokenPipeError)
        _end(status, "" if gone else f"{program}: the output cannot be written: {e.strerror}\n")


def is_of_output(error: OSError) -> bool:
    """Return True if *error* says that the output cannot be written, or that its reader has gone."""
    # With a name it is another file; other causes are no matter of where it is written to.
    return isinstance(error, BrokenPipeError) or (error.filename is None and error.errno in _UNWRITABLE)


def give_up() -> None:
    """Let standard output go nowhere: what it still holds is tried again at the exit, which would tell it once more."""
    _to_nowhere(sys.stdout)


def _end(status: int, words: str = "") -> NoReturn:
    give_up()
    try:
        sys.stderr.write(words)
        sys.stderr.flush()
    except OSError:  # nor can that be told
        _to_nowhere(sys.stderr)  # else Python, which tries again, would end with a code of its own
    raise SystemExit(status) from None


def _to_nowhere(stream: TextIO) -> None:
    with contextlib.suppress(OSError, AttributeError):  # there is none, or it is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
