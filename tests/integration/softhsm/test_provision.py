"""Wrapped keys brought into SoftHSM: what opens, what never does, and that nothing is left behind."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

import pkcs11
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.keywrap import aes_key_wrap_with_padding
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pkcs11 import Attribute, ObjectClass

from attestation.errors import (
    AlgorithmForbidden,
    KeyAmbiguous,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    KeyURIInvalid,
    UnwrapFailed,
)
from attestation.keys.importing import drop_key, import_kek, import_key
from attestation.keys.open import KeyOptions, OpenKey
from attestation.keys.pkcs11 import provision
from attestation.keys.pkcs11.objects import is_true, key_id_of
from attestation.keys.pkcs11.provision import (
    create_kek,
    destroy_keks,
    kek_of,
    rehearse_kek,
    unwrap_key,
)
from attestation.keys.uri import parse_key_uri
from attestation.keys.wrapping import REFUSED, wrap_key
from tests.fixtures.softhsm import PIN, SoftHSM

pytestmark = pytest.mark.softhsm


@cache
def ca_key(algorithm: str = "ecdsa-p384") -> Any:
    """The key that is brought in."""
    if algorithm == "ecdsa-p384":
        return ec.generate_private_key(ec.SECP384R1())
    return rsa.generate_private_key(65537, 4096)


def certified(signer: Any, public: Any) -> x509.Certificate:
    """Return a certificate of *public* by *signer*."""
    name, now = x509.Name([]), datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, public, 1, now, now)
    return builder.sign(signer, hashes.SHA384())


class Place:
    """A token with a KEK, and ways to look at all that is on it."""

    def __init__(self, hsm: SoftHSM) -> None:
        self.hsm = hsm
        self.kek = create_kek(hsm.uri("kek"), hsm.options)
        # Keeps the module loaded, so that session objects, too, would be seen.
        self.keeper = hsm.create("keeper")

    def blob(self, key: Any = None, kek: rsa.RSAPublicKey | None = None) -> bytes:
        """Wrap as SoftHSM needs it."""
        return wrap_key(key or ca_key(), kek or self.kek, oaep_hash="sha1")

    def unwrap(self, blob: bytes, public: Any = None, label: str = "ca", **more: Any) -> OpenKey:
        """Bring it in; it is closed at the end."""
        key = unwrap_key(
            self.hsm.uri(label),
            blob,
            more.pop("kek", self.hsm.uri("kek")),
            oaep_hash=more.pop("oaep_hash", "sha1"),
            certificate_or_public_key=public or ca_key().public_key(),
            options=more.pop("options", self.hsm.options),
        )
        self.hsm.opened.append(key)
        return key

    def refused(self, blob: bytes, public: Any = None, **more: Any) -> None:
        """It is the one error, in the same words, and nothing is left behind."""
        before = self.objects()
        with pytest.raises(UnwrapFailed) as caught:
            self.unwrap(blob, public, **more)
        assert str(caught.value) == REFUSED
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None or caught.value.__suppress_context__
        assert self.objects() == before

    def objects(self) -> list[tuple[Any, ...]]:
        """Return all objects that this process sees, those of sessions included."""

        def work(connection: Any) -> list[tuple[Any, ...]]:
            return sorted(
                (each.object_class.name, each[Attribute.LABEL], each[Attribute.ID].hex())
                for each in connection.session.get_objects()
            )

        raw: Any = self.keeper.private_key
        found: list[tuple[Any, ...]] = self.hsm.worker().run(raw._raw._token, work)
        return found

    def shown(self, label: str) -> str:
        """Return what pkcs11-tool says of a private key, which lists all whatever it is asked for."""
        said = " ".join(self.hsm.tool("--list-objects", "--type", "privkey").split())
        (found,) = (each for each in said.split("Private Key Object") if f"label: {label} " in each)
        return found


@pytest.fixture
def place(softhsm: SoftHSM) -> Place:
    """A token with a KEK."""
    return Place(softhsm)


@pytest.mark.parametrize(("algorithm", "size"), [("ecdsa-p384", 584), ("rsa-4096", 2768)])
def test_round_trip(place: Place, algorithm: str, size: int) -> None:
    """It signs for its certificate, came from outside, cannot leave, and is found again by name."""
    key = ca_key(algorithm)
    root = certified(key, key.public_key())
    blob = place.blob(key)
    assert len(blob) == size
    before = place.objects()
    opened = place.unwrap(blob, root)
    assert (opened.origin, opened.algorithm, opened.backend) == ("provisioned", algorithm, "pkcs11")
    certified(opened.private_key, ca_key().public_key()).verify_directly_issued_by(root)
    identity = key_id_of(key.public_key()).hex()
    new = [each for each in place.objects() if each not in before]
    assert new == [("PRIVATE_KEY", "ca", identity), ("PUBLIC_KEY", "ca", identity)]
    shown = place.shown("ca")
    assert "Usage: sign Access: sensitive" in shown, shown
    for word in ("local", "always sensitive", "never extractable", "decrypt"):
        assert word not in shown, shown
    assert place.hsm.recovering(opened) == []
    place.hsm.close()
    again = place.hsm.open()
    assert (again.public_key, again.origin) == (key.public_key(), "provisioned")


def test_it_cannot_leave(place: Place) -> None:
    """Neither the key nor the KEK is read, wrapped or altered."""
    place.unwrap(place.blob())

    def attack(connection: Any) -> None:
        session = connection.session
        outer = session.generate_key(pkcs11.KeyType.AES, 256, capabilities=pkcs11.MechanismFlag.WRAP)
        for label, secret in (("ca", Attribute.VALUE), ("kek", Attribute.PRIVATE_EXPONENT)):
            (private,) = session.get_objects(
                {Attribute.CLASS: ObjectClass.PRIVATE_KEY, Attribute.LABEL: label}
            )
            with pytest.raises(pkcs11.AttributeSensitive):
                private[secret]
            with pytest.raises(pkcs11.KeyUnextractable):
                outer.wrap_key(private, mechanism=pkcs11.Mechanism.AES_KEY_WRAP_PAD)
            for attribute, value in ((Attribute.EXTRACTABLE, True), (Attribute.SENSITIVE, False)):
                with pytest.raises(pkcs11.AttributeReadOnly):
                    private[attribute] = value

    raw: Any = place.keeper.private_key
    place.hsm.worker().run(raw._raw._token, attack, writes=True)


def test_damaged_blobs(place: Place) -> None:
    """A byte of either half, a cut, something more, nothing at all, what is no PKCS#8: one error."""
    blob = place.blob()
    for where in (0, 383, 384, 391, 400, 583):
        place.refused(blob[:where] + bytes((blob[where] ^ 1,)) + blob[where + 1 :])
    for size in (0, 1, 383, 384, 392, 400, 576, 583):
        place.refused(blob[:size])
    for more in (b"\0", bytes(8), bytes(17000)):
        place.refused(blob + more)
    place.refused(bytes(584))
    place.refused(b"\xff" * 584)
    other = place.blob()
    place.refused(blob[:384] + other[384:])
    place.unwrap(blob)


def test_impossible_lengths_never_reach_the_token(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What RFC 5649 cannot have made, or is no key of ours by its size, is refused before."""

    def asked(*_: Any) -> None:
        raise AssertionError("the token was asked")

    monkeypatch.setattr(provision, "_of_blob", asked)
    for size in (0, 383, 384, 392, 583, 384 + 16392):
        place.refused(bytes(size))


def test_a_token_without_the_mechanisms(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before the blob is looked at."""
    lacking = pkcs11.Mechanism.BLOWFISH_KEY_GEN  # stands for whatever a token does not have
    names = ("RSA_PKCS_OAEP", "AES_KEY_WRAP_PAD", "RSA_PKCS_KEY_PAIR_GEN")
    monkeypatch.setattr(provision, "Mechanism", SimpleNamespace(**dict.fromkeys(names, lacking)))
    for blob in (place.blob(), b""):
        with pytest.raises(KeyUnsupported, match="does not unwrap with BLOWFISH"):
            place.unwrap(blob)
    with pytest.raises(KeyUnsupported, match="makes no RSA keys"):
        create_kek(place.hsm.uri("another"), place.hsm.options)


def test_the_aes_key_is_destroyed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the key is proven, and also where it does not open; the session would end it only later."""
    real = provision._unwrap
    left: list[int] = []

    def spy(session: Any, *more: Any) -> Any:
        try:
            return real(session, *more)
        finally:
            left.append(len(list(session.get_objects({Attribute.CLASS: ObjectClass.SECRET_KEY}))))

    monkeypatch.setattr(provision, "_unwrap", spy)
    blob = place.blob()
    place.refused(blob[:-1] + bytes((blob[-1] ^ 1,)))
    place.refused(blob, ca_key("rsa-4096").public_key())
    place.unwrap(blob)
    assert left == [0, 0, 0]


def test_the_session_is_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the module answers then is no fault of the blob: it is opened in a new session."""
    real = provision.find_kek
    died: list[Any] = []

    def dying(session: Any, name: Any) -> Any:
        found = real(session, name)
        if not died:
            died.append(session)
            session.close()
        return found

    monkeypatch.setattr(provision, "find_kek", dying)
    assert place.unwrap(place.blob()).origin == "provisioned"
    assert len(died) == 1


def test_other_keks_labels_hashes_and_contents(place: Place) -> None:
    """Made for another KEK, with a label or hash of OAEP that we do not use, or around something else."""
    private = ca_key().private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    place.refused(place.blob(kek=rsa.generate_private_key(65537, 3072).public_key()))

    def made(
        content: bytes, hashing: hashes.HashAlgorithm, label: bytes | None, aes: bytes = bytes(32)
    ) -> bytes:
        sealed = place.kek.encrypt(aes, padding.OAEP(padding.MGF1(hashing), hashing, label))
        return sealed + aes_key_wrap_with_padding(aes, content)

    sha1 = hashes.SHA1()
    place.refused(made(private, sha1, b"another label"))
    place.refused(made(private, hashes.SHA256(), None))
    for content in (b"junk" * 40, b"\x30\x00", private[:-8], private[8:]):
        place.refused(made(content, sha1, None))
    place.unwrap(made(private, sha1, None))


@pytest.mark.parametrize("announced", ["another", "p256", "rsa"])
def test_the_wrong_public_key(place: Place, announced: str) -> None:
    """The key opens, but it is not the one that was announced: destroyed, in the words of every refusal."""
    others = {
        "another": ec.generate_private_key(ec.SECP384R1()),
        "p256": ec.generate_private_key(ec.SECP256R1()),
        "rsa": ca_key("rsa-4096"),
    }
    other = others[announced]
    place.refused(place.blob(), other.public_key())
    place.refused(place.blob(), certified(other, other.public_key()))
    place.refused(place.blob(other), ca_key().public_key())


def test_a_label_is_never_taken_twice(place: Place) -> None:
    """Neither by the same blob nor by another; what is there stays."""
    place.unwrap(place.blob())
    before = place.objects()
    for key in (ca_key(), ca_key("rsa-4096")):
        with pytest.raises(KeyAmbiguous, match="is there already"):
            place.unwrap(place.blob(key), key.public_key())
    assert place.objects() == before


def test_softhsm_knows_sha1_only(place: Place) -> None:
    """That is no fault of the blob: the error names it, for good blobs and bad ones alike."""
    blob = wrap_key(ca_key(), place.kek)
    before = place.objects()
    for each in (blob, place.blob(), bytes(584)):
        with pytest.raises(KeyUnsupported, match=r"no OAEP with sha256; SoftHSM 2\.6\.1 knows sha1 only"):
            place.unwrap(each, oaep_hash="sha256")
    with pytest.raises(KeyUnsupported, match="sha256 or sha1"):
        place.unwrap(blob, oaep_hash="md5")
    assert place.objects() == before


def test_the_kek_is_made_once_and_unwraps_only(place: Place) -> None:
    """Asked for again it is the same; an independent client sees what it may do."""
    assert create_kek(place.hsm.uri("kek"), place.hsm.options) == place.kek
    assert place.kek.key_size == 3072
    assert place.hsm.recovering(place.keeper) == []
    shown = place.shown("kek")
    assert "Usage: unwrap Access: sensitive, always sensitive, never extractable, local" in shown
    assert key_id_of(place.kek).hex() in shown


def test_a_kek_is_tried_before_anybody_wraps_for_it(place: Place) -> None:
    """With a hash that the token has, and with one that it has not; nothing is left of either."""
    uri, options, before = place.hsm.uri("kek"), place.hsm.options, place.objects()
    rehearse_kek(uri, options, oaep_hash="sha1")
    with pytest.raises(KeyUnsupported, match="no OAEP with sha256"):
        rehearse_kek(uri, options, oaep_hash="sha256")
    assert place.objects() == before
    with pytest.raises(KeyNotFound):
        rehearse_kek(place.hsm.uri("nowhere"), options, oaep_hash="sha1")


def test_keks_are_found_and_destroyed_by_their_labels(place: Place) -> None:
    """One, or all whose labels begin alike; a key that signs stays, whatever it is called."""
    hsm = place.hsm
    for label in ("kek-1", "kek-10"):
        create_kek(hsm.uri(label), hsm.options)
    hsm.create("kek-ca")
    assert kek_of(hsm.uri("kek"), hsm.options) == place.kek
    with pytest.raises(KeyNotFound):
        kek_of(hsm.uri("kek-2"), hsm.options)
    assert destroy_keks(hsm.uri("kek-1"), hsm.options) == 1
    labels = [each[1] for each in place.objects()]
    assert sorted(labels) == ["keeper", "keeper", "kek", "kek", "kek-10", "kek-10", "kek-ca", "kek-ca"]
    assert destroy_keks(hsm.uri("kek"), hsm.options, any_that_begins=True) == 2
    assert sorted(each[1] for each in place.objects()) == ["keeper", "keeper", "kek-ca", "kek-ca"]
    assert destroy_keks(hsm.uri("kek"), hsm.options) == 0


def test_what_is_no_kek(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that signs, one that decrypts, a short one, several: refused before any blob is opened."""
    hsm = place.hsm
    make = ("--keypairgen", "--sensitive", "--label")
    hsm.tool(*make, "decrypts", "--key-type", "rsa:3072", "--usage-wrap", "--usage-decrypt")
    with monkeypatch.context() as patched:
        patched.setattr(provision, "KEK_BITS", 2048)
        create_kek(hsm.uri("short"), hsm.options)
    for label, says in (("keeper", "UNWRAP"), ("decrypts", "DECRYPT"), ("short", "at least 3072")):
        with pytest.raises(KeyUnusable, match=says):
            place.unwrap(place.blob(), kek=hsm.uri(label))
        with pytest.raises(KeyUnusable, match=says):
            create_kek(hsm.uri(label), hsm.options)
    with pytest.raises(KeyNotFound):
        place.unwrap(place.blob(), kek=hsm.uri("nowhere"))
    hsm.tool(*make, "kek", "--key-type", "rsa:3072", "--usage-wrap", "--id", "0102")
    with pytest.raises(KeyAmbiguous):
        place.unwrap(place.blob())


def test_names(place: Place) -> None:
    """A label for the new key, the same token for both, an algorithm that the policy allows."""
    uri, options = place.hsm.uri(), place.hsm.options
    for wrong in (
        uri.replace("object=ca", "object=ca;id=%01"),
        uri.replace("object=ca;", ""),
        "file:/ca.pem",
    ):
        with pytest.raises(KeyURIInvalid):
            create_kek(wrong, options)
    for kek in ("file:/kek.pem", place.hsm.uri("kek", token="other")):
        with pytest.raises(KeyURIInvalid, match="same token"):
            place.unwrap(place.blob(), kek=kek)

    def forbid(algorithm: str) -> None:
        raise AlgorithmForbidden(algorithm)

    before = place.objects()
    with pytest.raises(AlgorithmForbidden, match="ecdsa-p384"):
        place.unwrap(place.blob(), options=KeyOptions(modules=options.modules, allowed=forbid))
    with pytest.raises(KeyUnsupported, match="only EC and RSA"):
        place.unwrap(place.blob(), PIN)
    assert place.objects() == before


def test_the_token_makes_something_else(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes are read back: a key, or KEK, that is not what was asked for is destroyed."""
    before = place.objects()

    def loose(key: pkcs11.Object, attribute: Attribute) -> bool:
        new = key[Attribute.LABEL] in ("ca", "another")
        return is_true(key, attribute) or (new and attribute is Attribute.EXTRACTABLE)

    monkeypatch.setattr(provision, "is_true", loose)
    with pytest.raises(KeyUnusable, match=r"EXTRACTABLE of .*object=ca"):
        place.unwrap(place.blob())
    assert place.objects() == before
    with pytest.raises(KeyUnusable, match=r"EXTRACTABLE of .*object=another"):
        create_kek(place.hsm.uri("another"), place.hsm.options)
    assert place.objects() == before


def test_no_flipped_bit_is_accepted(softhsm: SoftHSM) -> None:
    """Wherever it is, nothing comes in."""
    place = Place(softhsm)
    blob = place.blob()

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(blob) * 8 - 1))
    def flip(bit: int) -> None:
        changed = bytearray(blob)
        changed[bit // 8] ^= 1 << bit % 8
        place.refused(bytes(changed))

    flip()
    place.unwrap(blob)


def test_a_ca_key_of_before_is_brought_to_where_the_ca_keys_are(softhsm: SoftHSM) -> None:
    """Under a label of its own, not extractable; taken away again where nobody agreed."""
    base = parse_key_uri(softhsm.uri("any"))
    blob = wrap_key(ca_key(), import_kek(base, softhsm.options), oaep_hash="sha1")
    uri = softhsm.uri("itl-enrollment-ca-0123")
    for _ in range(2):
        opened = import_key(
            uri,
            blob,
            base,
            oaep_hash="sha1",
            public_key=ca_key().public_key(),
            options=softhsm.options,
        )
        assert (opened.origin, opened.algorithm) == ("provisioned", "ecdsa-p384")
        listed = softhsm.tool("--list-objects", "--type", "privkey")
        assert "itl-enrollment-ca-0123" in listed
        drop_key(opened, uri, softhsm.options)
        assert "itl-enrollment-ca-0123" not in softhsm.tool("--list-objects", "--type", "privkey")
