"""A KEK on a token and in a TPM does what one in a file does; what it wrapped opens nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attestation.errors import KeyNotFound, KeyUnusable, UnwrapFailed
from attestation.keys import KEK, KeyOptions, create_kek, create_key, open_kek
from tests.fixtures.softhsm import SoftHSM
from tests.fixtures.tpm import MakeTPM

Place = tuple[str, str, KeyOptions]


@pytest.fixture(
    params=[
        "file",
        pytest.param("pkcs11", marks=pytest.mark.softhsm),
        pytest.param("tpm2-path", marks=pytest.mark.swtpm),
        pytest.param("tpm2-handle", marks=pytest.mark.swtpm),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a KEK is made, and where another one."""
    kind: str = request.param
    if kind == "file":
        return f"file:{tmp_path}/a", f"file:{tmp_path}/b", KeyOptions()
    if kind == "pkcs11":
        hsm: SoftHSM = request.getfixturevalue("softhsm")
        return hsm.uri("a"), hsm.uri("b"), hsm.options
    make: MakeTPM = request.getfixturevalue("make_tpm")
    tpm = make()
    if kind == "tpm2-handle":
        return *(f"tpm2:handle=0x8101003{i}?tcti={tpm.uri}" for i in "12"), KeyOptions()  # type: ignore[return-value]  # two
    return *(f"tpm2:path={tmp_path}/{i}.tss2?tcti={tpm.uri}" for i in "ab"), KeyOptions()  # type: ignore[return-value]  # two


@pytest.fixture
def keks(place: Place) -> Iterator[tuple[KEK, KEK]]:
    """Two of them."""
    made = tuple(create_kek(uri, place[2]) for uri in place[:2])
    yield made[0], made[1]
    for each in made:
        each.close()
        each.close()


def test_it_opens_what_it_wrapped_and_nothing_else(keks: tuple[KEK, KEK], place: Place) -> None:
    """The same after it was opened anew; not under another KEK, for another purpose, or with a bit flipped."""
    here, other = keks
    wrapped = here.wrap(b"k" * 32, b"whose")
    again = create_kek(place[0], place[2])  # there is one
    assert again.key_id == here.key_id != other.key_id
    assert again.unwrap(wrapped, b"whose") == b"k" * 32
    again.close()
    assert here.wrap(b"k" * 32, b"whose") != wrapped
    bad = [wrapped[:-1], b"", wrapped + b"\0"]
    for where in (0, len(wrapped) // 2, len(wrapped) - 1):
        flipped = bytearray(wrapped)
        flipped[where] ^= 1
        bad.append(bytes(flipped))
    for each in bad:
        with pytest.raises(UnwrapFailed):
            here.unwrap(each, b"whose")
    for plaintext in (b"", b"k" * 65):
        with pytest.raises(ValueError, match=f"1 to 64 bytes, not {len(plaintext)}"):
            here.wrap(plaintext, b"whose")
    with pytest.raises(UnwrapFailed):
        here.unwrap(wrapped, b"another's")
    with pytest.raises(UnwrapFailed):
        other.unwrap(wrapped, b"whose")


def test_nothing_is_made_by_opening(place: Place) -> None:
    """A KEK that is gone is not replaced: what it wrapped would be lost without a word."""
    with pytest.raises(KeyNotFound):
        open_kek(place[0], place[2])


@pytest.mark.parametrize("kind", ["pkcs11", "tpm2"])
def test_a_key_that_signs_is_no_kek(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A CA's key named by mistake is refused."""
    if kind == "pkcs11":
        hsm: SoftHSM = request.getfixturevalue("softhsm")
        uri, options = hsm.uri("ca"), hsm.options
    else:
        make: MakeTPM = request.getfixturevalue("make_tpm")
        uri, options = f"tpm2:path={tmp_path}/ca.tss2?tcti={make().uri}", KeyOptions()
    create_key(uri, "ecdsa-p384", options).close()
    with pytest.raises(KeyUnusable):
        open_kek(uri, options)
