"""The signed list: only what a pinned key signed, in its time, in one meaning."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attestation.audit.note import KeyType, VerifierKey, ed25519_message, signature_line, signed_note
from attestation.keys.notes import Ed25519NoteKey
from attestation_agent.exits import UsageError
from attestation_agent.kiosk import listing, main
from attestation_agent.kiosk.exits import ImageRejected
from tests.unit.agent.kiosk.bench import KEY, NAME, signed, vkey

AT = datetime(2026, 11, 27, 4, tzinfo=UTC)
KEYS = listing.parse_keys(vkey())
DIGEST = bytes(range(32))


def note(text: str, *, name: str = NAME, key: Ed25519NoteKey = KEY) -> bytes:
    """Sign any text."""
    public = VerifierKey(name=name, type=KeyType.ED25519, key=key.public_key)
    return signed_note(text, [signature_line(public, key.sign(ed25519_message(text)))]).encode()


def test_a_list_names_digests() -> None:
    """Of what it names, and of nothing else; also beside signatures of others."""
    found = listing.verify(signed({"os.raw": DIGEST, "b.raw.xz": bytes(32)}), keys=KEYS, at=AT)
    assert found.digest_of("os.raw") == DIGEST
    assert found.signed_by == NAME
    with pytest.raises(ImageRejected, match=r"names no image 'x\.raw'"):
        found.digest_of("x.raw")
    stranger = "\u2014 other.example AAAAAAAA\n".encode()
    assert listing.verify(signed({"os.raw": DIGEST}) + stranger, keys=KEYS, at=AT).sha256 == {
        "os.raw": DIGEST
    }


@pytest.mark.threat("T330")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        f"{DIGEST.hex()}  os.raw\n".encode(),
        note(
            f"{DIGEST.hex()}  os.raw\n", key=Ed25519NoteKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
        ),
        note(f"{DIGEST.hex()}  os.raw\n", name="images.other"),
        signed({"os.raw": DIGEST}).replace(b"os.raw", b"os.raz"),
    ],
)
def test_what_no_pinned_key_signed_is_refused(data: bytes) -> None:
    """No note, another key, the same key under another name, another text."""
    with pytest.raises(ImageRejected):
        listing.verify(data, keys=KEYS, at=AT)


@pytest.mark.parametrize(
    "text",
    [
        "# nothing\n",
        f"{DIGEST.hex()}  os.raw\n{bytes(32).hex()}  os.raw\n",
        f"{DIGEST.hex()[:-1]}  os.raw\n",
        f"{DIGEST.hex().upper()}  os.raw\n",
        f"{DIGEST.hex()}  ../os.raw\n",
        f"{DIGEST.hex()} os.raw\n",
        f"# valid-until: soon\n{DIGEST.hex()}  os.raw\n",
    ],
)
def test_a_signed_text_that_is_no_list_is_refused(text: str) -> None:
    """A line that could be read in two ways, or is none, makes all of it none."""
    with pytest.raises(ImageRejected):
        listing.verify(note(text), keys=KEYS, at=AT)


@pytest.mark.threat("T330")
def test_a_list_ends() -> None:
    """At its instant, not after it."""
    data = signed({"os.raw": DIGEST}, until=AT)
    assert listing.verify(data, keys=KEYS, at=AT.replace(hour=3)).sha256
    with pytest.raises(ImageRejected, match="ended at 2026-11-27T04"):
        listing.verify(data, keys=KEYS, at=AT)


@pytest.mark.parametrize("text", ["", "# none\n", "x+y+z", ",".join([vkey()] * 17), "a+00000000+BA=="])
def test_keys_that_are_none_are_refused(text: str) -> None:
    """Without a pinned key nothing would be verified; a list has no cosignatures."""
    with pytest.raises(UsageError):
        listing.parse_keys(text)


def test_the_program_signs_what_kiosks_and_sha256sum_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is made, its public half printed; the text in the note is that of `sha256sum`."""
    monkeypatch.chdir(tmp_path)
    Path("os.raw").write_bytes(b"image")
    words = ["sign", "--key", f"file:{tmp_path}/key.pem", "--name", NAME, "os.raw"]
    assert main.main([*words, "--valid-until", "2027-03-01T00:00:00Z"]) == 0
    keys = listing.parse_keys(capsys.readouterr().out)
    data = Path("images.note").read_bytes()
    listing.verify(data, keys=keys, at=AT)
    Path("sums").write_bytes(data.partition(b"\n\n")[0] + b"\n")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "sums"], check=True)
    assert main.main([*words, "--valid-until", "soon"]) == 64
    assert main.main([*words, "missing.raw"]) == 64
    assert main.main(["sign", "--key", "key.pem", "--name", NAME, "os.raw"]) == 64
