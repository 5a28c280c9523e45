"""Where an image comes from, and how it is unpacked: pieces of bytes that nobody believes until the list says so."""

from __future__ import annotations

import lzma
import re
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from attestation.client import ServiceUnreachable
from attestation.client.carrier import Carrier, Reply
from attestation.client.connection import carrier_for, tls_context
from attestation_agent.exits import UsageError
from attestation_agent.kiosk.exits import ImageRejected, NoImage, WriteFailed
from attestation_agent.kiosk.fat import Medium

LIST_NAME: Final = "images.note"
MAX_LIST_BYTES: Final = 131_072
PIECE_BYTES: Final = 1 << 20
LZMA_MEMORY_BYTES: Final = 96 << 20
"""`xz -9` needs 65 MiB; what asks for more is refused before it is given."""
FORMS: Final = (".raw", ".raw.xz", ".raw.gz", ".img", ".img.xz", ".img.gz", ".iso")

PACE_BYTES: Final = 65_536
PACE_SECONDS: Final = 60.0
"""A server that gives less in that time keeps a machine for days: it counts as broken off."""

_RANGE = re.compile(r"bytes (\d{1,20})-\d{1,20}/(\d{1,20}|\*)\Z")


class Source(Protocol):
    """Something that has the image."""

    @property
    def name(self) -> str:
        """As the list names it."""
        ...

    def chunks(self, from_byte: int) -> Generator[bytes, None, None]:
        """Yield its bytes from *from_byte* on.

        Raises:
            ServiceUnreachable: It broke off; the same may succeed a moment later.
            NoImage: It is not to be had.
        """
        ...

    def listing(self) -> bytes:
        """Return the signed list.

        Raises:
            ServiceUnreachable, NoImage: As above.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An image on a server.

    Args:
        url: Of the image.
        listing_url: Of the list.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        carrier: What carries the requests instead of the network: for tests.
        monotonic: Tells the time, for the pace.
    """

    url: str
    listing_url: str
    ca_file: Path | None
    carrier: Carrier | None = None
    monotonic: Callable[[], float] = time.monotonic

    @property
    def name(self) -> str:
        """The last part of the path."""
        return urlsplit(self.url).path.rpartition("/")[2]

    def chunks(self, from_byte: int) -> Generator[bytes, None, None]:
        """Yield the image from *from_byte* on."""
        headers = {"Range": f"bytes={from_byte}-"} if from_byte else {}
        with (
            closing(self._carrier(self.url)) as carrier,
            closing(_asked(carrier, self.url, headers)) as reply,
        ):
            if from_byte:
                _check_range(reply, from_byte, self.url)
            elif reply.status != 200:
                raise NoImage(f"{self.url}: {reply.status} {reply.reason}")
            yield from self._in_time(reply)

    def _in_time(self, reply: Reply) -> Iterator[bytes]:
        began, got = self.monotonic(), 0
        for chunk in reply.chunks():
            yield chunk
            got += len(chunk)
            if got >= PACE_BYTES:
                began, got = self.monotonic(), 0
            elif self.monotonic() > began + PACE_SECONDS:
                raise ServiceUnreachable(f"{self.url}: less than {PACE_BYTES} bytes in {PACE_SECONDS:.0f} s")

    def listing(self) -> bytes:
        """Return the signed list."""
        url, data = self.listing_url, b""
        with closing(self._carrier(url)) as carrier, closing(_asked(carrier, url, {})) as reply:
            if reply.status != 200:
                raise NoImage(f"{url}: {reply.status} {reply.reason}")
            for chunk in self._in_time(reply):
                data += chunk
                if len(data) > MAX_LIST_BYTES:
                    raise ImageRejected(f"{url}: more than {MAX_LIST_BYTES} bytes")
        return data

    def _carrier(self, url: str) -> Carrier:
        tls = tls_context(self.ca_file) if url.startswith("https:") else None
        return carrier_for(url, tls, self.carrier)


def _asked(carrier: Carrier, url: str, headers: dict[str, str]) -> Reply:
    # As it is: what is counted and hashed is what is served.
    reply = carrier.send(
        "GET", url, {"Accept-Encoding": "identity", "User-Agent": "itl-kiosk/0.1", **headers}, None
    )
    if reply.headers.get("content-encoding", "identity").lower() != "identity":
        reply.close()
        raise NoImage(f"{url}: compressed on its way, although we asked for it as it is")
    if reply.status >= 500:
        reply.close()
        raise ServiceUnreachable(f"{url}: {reply.status} {reply.reason}")
    return reply


def _check_range(reply: Reply, from_byte: int, url: str) -> None:
    said = _RANGE.match(reply.headers.get("content-range", ""))
    if reply.status != 206 or said is None or int(said[1]) != from_byte:
        raise NoImage(f"{url}: broke off, and the server does not go on where it did")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """An image on a medium.

    Args:
        medium: The medium.
        folder: Where on it the bundle is, with a slash behind it; empty for the medium itself.
        name: Of the image.
    """

    medium: Medium
    folder: str
    name: str

    def chunks(self, from_byte: int) -> Generator[bytes, None, None]:
        """Yield the image from *from_byte* on."""
        left = from_byte
        with closing(self.medium.stream(self.folder + self.name)) as chunks:
            for chunk in chunks:
                yield chunk[left:]
                left = max(0, left - len(chunk))

    def listing(self) -> bytes:
        """Return the signed list."""
        data = self.medium.read(self.folder + LIST_NAME, max_bytes=MAX_LIST_BYTES)
        if data is None:
            raise NoImage(f"the bundle holds no {self.folder}{LIST_NAME}")
        return data


def served(url: str, sums: str | None, ca_file: Path | None, carrier: Carrier | None = None) -> Served:
    """Return the image at *url*, its list at *sums* or beside it.

    Raises:
        UsageError: One of them is no http(s) address, or the image has a form that we do not unpack.
    """
    listing = sums or url.rpartition("/")[0] + "/" + LIST_NAME
    for each in (url, listing):
        parts = urlsplit(each)
        printable = all("!" <= character <= "~" for character in each)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or "@" in parts.netloc
            or not printable
        ):
            raise UsageError("image: the address must begin with https:// or http://, and carry no password")
    found = Served(url=url, listing_url=listing, ca_file=ca_file, carrier=carrier)
    if not found.name.endswith(FORMS):
        raise UsageError(f"image: its name must end in one of {', '.join(FORMS)}")
    return found


def unpack(name: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what *chunks* of the file *name* unpack to, in pieces of at most 1 MiB, however small they came.

    Raises:
        ImageRejected: They do not unpack, or end too early.
    """
    if name.endswith(".xz"):
        return _unpacked(chunks, lambda: _XZ(), padded=True)
    if name.endswith(".gz"):
        return _unpacked(chunks, lambda: _GZ(), padded=False)
    return (chunk[at : at + PIECE_BYTES] for chunk in chunks for at in range(0, len(chunk), PIECE_BYTES))


class _Stream(Protocol):
    """One compressed stream of a file, which may hold several."""

    ended: bool
    rest: bytes

    def pieces(self, chunk: bytes) -> Iterator[bytes]: ...


class _XZ:
    def __init__(self) -> None:
        self._inner = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LZMA_MEMORY_BYTES)
        self.ended, self.rest = False, b""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what becomes of *chunk*; a small one may become very much, so piece by piece."""
        while chunk or not self._inner.needs_input:
            piece = self._inner.decompress(chunk, PIECE_BYTES)
            chunk = b""
            if piece:
                yield piece
            if self._inner.eof:
                self.ended, self.rest = True, self._inner.unused_data
                return


class _GZ:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)
        self.ended, self.rest = False, b""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what becomes of *chunk*, as above."""
        while chunk:
            piece = self._inner.decompress(chunk, PIECE_BYTES)
            chunk = self._inner.unconsumed_tail
            if piece:
                yield piece
            if self._inner.eof:
                self.ended, self.rest = True, self._inner.unused_data
                return


def _unpacked(chunks: Iterable[bytes], make: Callable[[], _Stream], *, padded: bool) -> Iterator[bytes]:
    stream, begun = make(), False
    try:
        for each in chunks:
            chunk = each
            while chunk:
                if not begun and stream.ended:
                    # Between streams: xz pads with zeros to four bytes, and another stream may follow.
                    chunk = chunk.lstrip(b"\0") if padded else chunk
                    if not chunk:
                        break
                    stream = make()
                begun = True
                yield from stream.pieces(chunk)
                chunk = stream.rest if stream.ended else b""
                begun = not stream.ended
    except (lzma.LZMAError, zlib.error, MemoryError) as e:
        raise ImageRejected(f"the image does not unpack: {e}") from e
    if not stream.ended:
        raise ImageRejected("the image ends before its compressed data do")


def bounded(pieces: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield *pieces* as long as they have room.

    Raises:
        WriteFailed: They have more than *max_bytes*.
    """
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > max_bytes:
            raise WriteFailed(f"the disk has no room for it: more than {max_bytes} bytes")
        yield piece
