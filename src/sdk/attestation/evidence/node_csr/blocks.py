"""The text of a container: PEM blocks, read so strictly that each byte is accounted for (HSM-AND-KUBERNETES §18).

    text  = block *( *eol block )
    block = "-----BEGIN " type "-----" eol *( 64 base64 eol ) 1*64 base64 eol "-----END " type "-----" [ eol ]
    eol   = LF / CR LF

ASCII; nothing before the first block; between two only CR and LF; nothing behind the last but its own end of line; no
headers (RFC 1421); base64 in lines of 64 characters, canonical (RFC 7468 §3, strict). The reader of the API server,
Go's `encoding/pem`, is more lenient: it passes over text. So it takes the same first block as this reader, or this
one refuses the whole.
"""

from __future__ import annotations

import re
from typing import Final

from attestation.errors import MalformedEvidence
from attestation.wire import b64decode, b64encode

LINE_CHARACTERS: Final = 64
MAX_TYPE_CHARACTERS: Final = 32

_BEGIN: Final = b"-----BEGIN "
_END: Final = b"-----END "
_DASHES: Final = b"-----"
_LINE_ENDS: Final = re.compile(rb"[\r\n]*")


def read_blocks(data: bytes, limits: dict[str, int]) -> dict[str, bytes]:
    """Return type -> content of each block, in their order.

    Args:
        data: The text.
        limits: Each type that may stand there -> its longest content in bytes.

    Raises:
        MalformedEvidence: The only way to fail: another form, an unknown type, a type twice, content too long.
    """
    if not data.isascii():
        raise MalformedEvidence("container: not ASCII")
    found: dict[str, bytes] = {}
    at, size = 0, len(data)
    while at < size:
        kind, body = _begin(data, at)
        if kind not in limits:
            raise MalformedEvidence("container: a block of an unknown type")
        if kind in found:
            raise MalformedEvidence(f"container: {kind} twice")
        end_line = b"-----END " + kind.encode("ascii") + _DASHES
        end = data.find(_END, body)
        if end < 0 or not data.startswith(end_line, end):
            raise MalformedEvidence(f"container: {kind} does not end")
        found[kind] = _content(data[body:end], kind, limits[kind])
        at = _after_line(data, end + len(end_line), kind)
        ends = _LINE_ENDS.match(data, at)
        assert ends is not None
        if ends.end() == size != at:
            raise MalformedEvidence("container: bytes behind the last block")
        at = ends.end()
    if not found:
        raise MalformedEvidence("container: no blocks")
    return found


def write_block(kind: str, content: bytes) -> bytes:
    """Return one block."""
    text = b64encode(content)
    lines = [text[i : i + LINE_CHARACTERS] for i in range(0, len(text), LINE_CHARACTERS)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""]).encode("ascii")


def _begin(data: bytes, at: int) -> tuple[str, int]:
    """Return the type of the block that begins at *at*, and where its first line of base64 stands."""
    if not data.startswith(_BEGIN, at):
        raise MalformedEvidence("container: bytes outside of a block")
    start = at + len(_BEGIN)
    stop = data.find(_DASHES, start, start + MAX_TYPE_CHARACTERS + len(_DASHES))
    if stop < 0:
        raise MalformedEvidence("container: a block without a type")
    kind = data[start:stop].decode("ascii")
    body = _after_line(data, stop + len(_DASHES), "a block")
    return kind, body


def _after_line(data: bytes, at: int, what: str) -> int:
    """Return where the line behind the one that ends at *at* begins; the last line needs no end."""
    if data.startswith(b"\n", at):
        return at + 1
    if data.startswith(b"\r\n", at):
        return at + 2
    if at == len(data):
        return at
    raise MalformedEvidence(f"container: more behind the dashes of {what}")


def _content(body: bytes, kind: str, max_bytes: int) -> bytes:
    """Return what the lines of base64 in *body* say."""
    # Lengths first: what is longer than its cap is not even split.
    if len(body) > (max_bytes + 2) // 3 * 4 // LINE_CHARACTERS * (LINE_CHARACTERS + 2) + LINE_CHARACTERS + 2:
        raise MalformedEvidence(f"container: {kind} is longer than {max_bytes} bytes")
    lines = body.replace(b"\r\n", b"\n").split(b"\n")
    # Behind the last end of line nothing stands; each line before the last one is full.
    if (
        len(lines) < 2
        or lines.pop()
        or any(len(line) != LINE_CHARACTERS for line in lines[:-1])
        or not 0 < len(lines[-1]) <= LINE_CHARACTERS
    ):
        raise MalformedEvidence(f"container: {kind} is not in lines of {LINE_CHARACTERS} characters")
    return b64decode(b"".join(lines).decode("ascii"), f"container: {kind}", max_bytes=max_bytes)
