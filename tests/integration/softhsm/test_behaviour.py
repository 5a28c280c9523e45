"""Each row of the table "situation | SoftHSM | ours" (HSM-AND-KUBERNETES §3), on SoftHSM itself.

What SoftHSM answers is asserted beside what we make of it, so a new version of it shows here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pkcs11
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from pkcs11 import Attribute, KeyType, Mechanism, MechanismFlag, ObjectClass

from attestation.errors import (
    KeyAmbiguous,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    KeyURIInvalid,
    ModuleUnusable,
    PINRejected,
    SignerUnavailable,
    TokenAbsent,
    UnwrapFailed,
)
from attestation.keys.open import KeyOptions, OpenKey, create_key, open_key
from attestation.keys.pkcs11.objects import key_id_of
from attestation.keys.pkcs11.provision import create_kek, unwrap_key
from attestation.keys.wrapping import wrap_key
from tests.fixtures.pkcs11_double import Faults
from tests.fixtures.softhsm import PIN, SoftHSM
from tools.softhsm import library

pytestmark = pytest.mark.softhsm

SCHEME = ec.ECDSA(hashes.SHA384())
P384 = bytes.fromhex("06052b81040022")


def sign(key: OpenKey) -> None:
    """Sign something, and verify it."""
    key.self_test(key.public_key)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Count what the worker asks of the library."""
    faults, real = Faults(), pkcs11.lib
    monkeypatch.setattr(pkcs11, "lib", lambda path: faults.load(path, real))
    return faults


def in_worker(hsm: SoftHSM, key: OpenKey, work: Callable[[Any], Any]) -> Any:
    """Do *work* with the session of *key* in the worker's thread, as only that may."""
    raw: Any = key.private_key
    return hsm.worker().run(raw._raw._token, work)


def test_made_once_and_opened_again(softhsm: SoftHSM) -> None:
    """A key that was made is found again by its label, and is what it was."""
    made = softhsm.create()
    assert (made.origin, made.algorithm, made.backend) == ("generated", "ecdsa-p384", "pkcs11")
    assert softhsm.create().public_key == made.public_key
    softhsm.close()
    opened = softhsm.open()
    assert opened.public_key == made.public_key
    assert opened.origin == "generated"
    sign(opened)
    with pytest.raises(KeyMismatch, match="is ecdsa-p384"):
        softhsm.create(algorithm="rsa-4096")


def test_found_by_id(softhsm: SoftHSM) -> None:
    """CKA_ID is the first 20 bytes of SHA-256 over the public key; the URI may name it, and both halves have it."""
    made: Any = softhsm.create().public_key
    identity = key_id_of(made)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(made.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    assert identity == digest.finalize()[:20]
    encoded = "".join(f"%{byte:02x}" for byte in identity)
    uri = f"pkcs11:token=hsm;id={encoded}?module-name=softhsm&pin-source=file:{softhsm.pin_file}"
    key = open_key(uri, softhsm.options)
    softhsm.opened.append(key)
    assert key.public_key == made
    assert softhsm.tool("--list-objects").count(f"ID:         {identity.hex()}\n") == 2


@pytest.mark.parametrize("ask", [open_key, lambda uri, options: create_key(uri, "ecdsa-p384", options)])
def test_module_missing(softhsm: SoftHSM, ask: Callable[..., OpenKey]) -> None:
    """PKCS11Error with the loader's text; ours names the module."""
    gone = softhsm.folder / "none.so"
    with pytest.raises(pkcs11.PKCS11Error, match="cannot open shared object file"):
        pkcs11.lib(str(gone))
    with pytest.raises(ModuleUnusable, match=r"none\.so"):
        ask(softhsm.uri(), KeyOptions(modules={"softhsm": gone}))


def test_module_is_none(softhsm: SoftHSM) -> None:
    """A library of something else, and a file that is no library."""
    other = library("libz.so.1")
    text = softhsm.folder / "text.so"
    text.write_text("no library")
    for path, says in ((other, "C_GetFunctionList"), (text, "too short|invalid ELF")):
        with pytest.raises(pkcs11.PKCS11Error, match=says):
            pkcs11.lib(str(path))
        with pytest.raises(ModuleUnusable, match=says):
            open_key(softhsm.uri(), KeyOptions(modules={"softhsm": path}))


def test_bad_configuration(softhsm: SoftHSM, monkeypatch: pytest.MonkeyPatch) -> None:
    """GeneralError without a text; ours says which file or folder it is."""
    monkeypatch.setenv("SOFTHSM2_CONF", "/nonexistent/softhsm2.conf")
    with pytest.raises(ModuleUnusable, match=r"SOFTHSM2_CONF=/nonexistent/softhsm2.conf cannot be read"):
        softhsm.open()
    monkeypatch.setenv("SOFTHSM2_CONF", str(softhsm.configuration))
    softhsm.configure(softhsm.folder / "nowhere")
    with pytest.raises(ModuleUnusable, match=r"GeneralError.*nowhere, which cannot be used"):
        softhsm.open()
    softhsm.configure()
    sign(softhsm.create())


def test_token_absent(softhsm: SoftHSM, spy: Faults) -> None:
    """It is said after one restart of the library, with the tokens that are there."""
    with pytest.raises(TokenAbsent, match="no token token=elsewhere; tokens that are there: 'hsm'"):
        softhsm.open(token="elsewhere")
    assert (spy.calls["load"], spy.calls["finalize"], spy.calls["login"]) == (1, 2, 0)  # the second: closing


def test_two_tokens_of_a_label(softhsm: SoftHSM) -> None:
    """They are told apart by their serial numbers."""
    softhsm.create()
    softhsm.new_token("hsm")
    softhsm.close()
    with pytest.raises(KeyAmbiguous, match="2 tokens are token=hsm; add serial="):
        softhsm.open()
    lib = pkcs11.lib(str(softhsm.module))
    serials = [s.get_token().serial.decode() for s in lib.get_slots() if s.get_token().label == "hsm"]
    lib.finalize()
    found = 0
    for serial in serials:
        uri = softhsm.uri().replace("token=hsm", f"token=hsm;serial={serial}")
        try:
            softhsm.opened.append(open_key(uri, softhsm.options))
            found += 1
        except KeyNotFound:
            pass
    assert found == 1


@pytest.mark.parametrize("pin", ["wrong-pin-0000", "1"])
def test_wrong_or_short_pin(softhsm: SoftHSM, spy: Faults, pin: str) -> None:
    """PinIncorrect; ours is permanent, after exactly one attempt, until the file changes."""
    softhsm.create()
    softhsm.close()
    spy.calls.clear()
    softhsm.pin_file.write_text(pin)
    uri = softhsm.uri()
    first = pytest.raises(PINRejected, match="PinIncorrect")
    with first:
        open_key(uri, softhsm.options)
    assert spy.calls["login"] == 1
    softhsm.pin_file.write_text(PIN)
    sign(softhsm.open())


def test_a_wrong_pin_is_tried_once(softhsm: SoftHSM, spy: Faults) -> None:
    """While the service runs: the PIN changed on the token, then in the file; one attempt for each PIN in the file."""
    key = softhsm.create()
    sign(key)
    spy.calls.clear()
    softhsm.pin_file.write_text("changed-on-the-token")
    softhsm.tool("--change-pin", "--new-pin", "changed-by-hand-0000")
    spy.fail("sign", pkcs11.SessionHandleInvalid())
    for _ in range(5):
        with pytest.raises(PINRejected):
            sign(key)
    assert spy.calls["login"] == 1
    softhsm.pin_file.write_text("still-wrong-000")
    for _ in range(5):
        with pytest.raises(PINRejected):
            sign(key)
    assert spy.calls["login"] == 2
    softhsm.pin_file.write_text("changed-by-hand-0000\n")
    sign(key)
    assert spy.calls["login"] == 3


def test_not_logged_in(softhsm: SoftHSM) -> None:
    """Private keys are invisible: without a PIN there is no key."""
    softhsm.create()
    softhsm.close()
    with pytest.raises(KeyNotFound):
        open_key(softhsm.uri().partition("?")[0] + "?module-name=softhsm", softhsm.options)


def test_logged_out_behind_our_back(softhsm: SoftHSM, spy: Faults) -> None:
    """A session that is logged out has no keys; that is not yet key-not-found: with a new login they are there."""
    softhsm.create("another")
    key = softhsm.create()
    sign(key)

    def log_out(connection: Any) -> None:
        beside = connection.session.token.open()
        connection.session.close()  # C_Logout: for the whole process
        connection.session = beside

    in_worker(softhsm, key, log_out)
    spy.calls.clear()
    sign(key)
    assert (spy.calls["finalize"], spy.calls["login"]) == (0, 1)
    in_worker(softhsm, key, log_out)
    sign(softhsm.open("another"))
    assert (spy.calls["finalize"], spy.calls["login"]) == (0, 2)


def test_one_login_and_one_session(softhsm: SoftHSM, spy: Faults) -> None:
    """However many keys are open and whoever signs: SoftHSM would refuse a second login."""
    keys = [softhsm.create(label) for label in ("one", "two", "three")]
    sign(keys[0])
    spy.calls.clear()
    threads = [threading.Thread(target=sign, args=(key,)) for key in keys * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (spy.calls["open"], spy.calls["login"], spy.calls["sign"]) == (
        0,
        0,
        26,
    )  # two handles proven first
    assert len(spy.threads) == 1
    assert threading.get_ident() not in spy.threads


def test_session_lost(softhsm: SoftHSM, spy: Faults) -> None:
    """A closed session is opened again, with one login, without a restart."""
    key = softhsm.create()
    sign(key)
    in_worker(softhsm, key, lambda connection: connection.session.inner.close())
    spy.calls.clear()
    sign(key)
    assert (spy.calls["finalize"], spy.calls["login"]) == (0, 1)


def test_the_class_is_always_asked_for(softhsm: SoftHSM) -> None:
    """Public key and certificate share the label: MultipleObjectsReturned, unless the class is asked for."""
    key = softhsm.create()
    write_certificate(softhsm, key)
    softhsm.close()
    lib = pkcs11.lib(str(softhsm.module))
    with (
        lib.get_token(token_label="hsm").open(user_pin=PIN) as session,
        pytest.raises(pkcs11.MultipleObjectsReturned),
    ):
        session.get_key(label="ca")
    lib.finalize()
    sign(softhsm.open())


def write_certificate(hsm: SoftHSM, key: OpenKey) -> None:
    """Put a certificate of *key* beside it: same label, same id."""
    name, now = x509.Name([]), datetime(2026, 1, 1, tzinfo=UTC)
    der = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .serial_number(1)
        .public_key(key.public_key)
        .not_valid_before(now)
        .not_valid_after(now)
        .sign(key.private_key, hashes.SHA384())
        .public_bytes(Encoding.DER)
    )
    file = hsm.folder / "ca.der"
    file.write_bytes(der)
    identity = key_id_of(key.public_key)  # type: ignore[arg-type]
    hsm.tool("--write-object", str(file), "--type", "cert", "--label", "ca", "--id", identity.hex())


def test_two_keys_of_a_label(softhsm: SoftHSM) -> None:
    """They are ambiguous, also where one should be made; each is found by its id."""
    first: Any = softhsm.create().public_key
    softhsm.tool("--keypairgen", "--key-type", "EC:secp384r1", "--label", "ca", "--id", "0102", "--sensitive")
    softhsm.close()
    for ask in (softhsm.open, softhsm.create):
        with pytest.raises(KeyAmbiguous, match="2 private keys"):
            ask()
    uri = softhsm.uri().replace("object=ca", "object=ca;id=%01%02")
    second = open_key(uri, softhsm.options)
    softhsm.opened.append(second)
    assert second.public_key != first
    sign(second)


def test_another_key_of_that_label_appears(softhsm: SoftHSM, spy: Faults) -> None:
    """Of an open key it is known which one it is; somebody who adds another one changes nothing."""
    key = softhsm.create()
    softhsm.tool("--keypairgen", "--key-type", "EC:secp384r1", "--label", "ca", "--id", "0102", "--sensitive")
    spy.fail("sign", pkcs11.DeviceError())
    sign(key)


def test_a_key_is_destroyed(softhsm: SoftHSM, spy: Faults) -> None:
    """ObjectHandleInvalid, looked for again, then key-not-found; other keys sign on, and are not disturbed for long."""
    key, other = softhsm.create("ca"), softhsm.create("other")
    sign(key)
    softhsm.tool("--delete-object", "--type", "privkey", "--label", "ca")
    spy.calls.clear()
    with pytest.raises(KeyNotFound):
        sign(key)
    assert spy.calls["finalize"] == 1
    sign(other)
    for _ in range(10):
        with pytest.raises(KeyNotFound):
            sign(key)
    sign(other)
    assert spy.calls["finalize"] == 1


@pytest.mark.threat("T88")
def test_another_key_under_the_same_id(softhsm: SoftHSM, spy: Faults) -> None:
    """A key that is replaced by another one never signs in its place: each handle is proven before it is used."""
    key = softhsm.create()
    identity = key_id_of(key.public_key)  # type: ignore[arg-type]
    for kind in ("privkey", "pubkey"):
        softhsm.tool("--delete-object", "--type", kind, "--label", "ca")
    more = ("--label", "ca", "--id", identity.hex(), "--sensitive")
    softhsm.tool("--keypairgen", "--key-type", "EC:secp384r1", *more)
    # Nobody verifies what comes out here, as nobody does who asks a CA.
    private: Any = key.private_key
    with pytest.raises(KeyMismatch):
        private.sign(b"a certificate", ec.ECDSA(hashes.SHA384()))


@pytest.mark.threat("T91")
def test_fork(softhsm: SoftHSM) -> None:
    """A child could sign with SoftHSM; the standard forbids it, and so do we."""
    key = softhsm.create()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sign(key)
            os.write(writing, b"signed")
        except SignerUnavailable as e:
            os.write(writing, str(e).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert "do not survive a fork" in answer.read()
    sign(key)


@pytest.mark.threat("T88")
def test_keys_cannot_be_read_wrapped_or_altered(softhsm: SoftHSM) -> None:
    """Proven by the module: every way out of the token is closed."""
    key = softhsm.create()

    def attack(connection: Any) -> None:
        session = connection.session
        (private,) = session.get_objects({Attribute.CLASS: ObjectClass.PRIVATE_KEY})
        for attribute in (Attribute.VALUE,):
            with pytest.raises(pkcs11.AttributeSensitive):
                private[attribute]
        kek = session.generate_key(KeyType.AES, 256, capabilities=MechanismFlag.WRAP)
        with pytest.raises(pkcs11.KeyUnextractable):
            kek.wrap_key(private, mechanism=Mechanism.AES_KEY_WRAP_PAD)
        for attribute, value in ((Attribute.EXTRACTABLE, True), (Attribute.SENSITIVE, False)):
            with pytest.raises(pkcs11.AttributeReadOnly):
                private[attribute] = value
        with pytest.raises((pkcs11.AttributeReadOnly, pkcs11.TemplateInconsistent)):
            private.copy({Attribute.EXTRACTABLE: True, Attribute.TOKEN: False})

    raw: Any = key.private_key
    softhsm.worker().run(raw._raw._token, attack, writes=True)
    sign(key)


@pytest.mark.threat("T88")
@pytest.mark.parametrize("algorithm", ["ecdsa-p384", "rsa-4096"])
def test_pkcs11_tool_agrees(softhsm: SoftHSM, algorithm: str) -> None:
    """An independent client sees the key as never extractable and made on the token, and cannot read it."""
    key = softhsm.create(algorithm=algorithm)
    assert softhsm.recovering(key) == []
    shown = softhsm.tool("--list-objects", "--type", "privkey")
    assert "sensitive, always sensitive, never extractable, local" in " ".join(shown.split())
    assert "Usage:      sign\n" in shown
    said = softhsm.tool("--read-object", "--type", "privkey", "--label", "ca", ok=False)
    assert "reading private keys not (yet) supported" in said
    if algorithm == "ecdsa-p384":
        return  # OpenSC 0.23 reads no EC public keys; test_pkcs11_tool_verifies uses one instead
    public = softhsm.folder / "public.der"
    softhsm.tool("--read-object", "--type", "pubkey", "--label", "ca", "--output-file", str(public), pin=None)
    assert load_der_public_key(public.read_bytes()) == key.public_key


def test_pkcs11_tool_verifies(softhsm: SoftHSM) -> None:
    """What we signed, the token itself verifies through the independent client."""
    key = softhsm.create()
    signature = key.private_key.sign(b"a message", SCHEME)  # type: ignore[call-arg,arg-type]
    files = {"message": b"a message", "signature": signature}
    for name, content in files.items():
        (softhsm.folder / name).write_bytes(content)
    # SoftHSM hashes no ECDSA input itself: the client is given the digest.
    digest = hashes.Hash(hashes.SHA384())
    digest.update(b"a message")
    (softhsm.folder / "digest").write_bytes(digest.finalize())
    said = softhsm.tool(
        *("--verify", "--mechanism", "ECDSA", "--label", "ca", "--signature-format", "openssl"),
        *(
            "--input-file",
            str(softhsm.folder / "digest"),
            "--signature-file",
            str(softhsm.folder / "signature"),
        ),
    )
    assert "Signature is valid" in said


def test_what_softhsm_cannot(softhsm: SoftHSM) -> None:
    """ML-DSA is refused before anything is made; a URI with an id makes nothing."""
    with pytest.raises(KeyUnsupported, match="ml-dsa-87"):
        softhsm.create(algorithm="ml-dsa-87")
    with pytest.raises(KeyURIInvalid, match="by its label"):
        create_key(softhsm.uri().replace("object=ca", "object=ca;id=%01"), "ecdsa-p384", softhsm.options)
    assert softhsm.tool("--list-objects").count("Private Key Object") == 0


@pytest.mark.threat("T88")
def test_a_key_that_was_brought_in(softhsm: SoftHSM) -> None:
    """It is `provisioned`; one that may leave the token is refused."""
    pem = softhsm.folder / "key.pem"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384", "-out", str(pem)],
        check=True,
        capture_output=True,
    )
    for label, more in (("kept", ()), ("loose", ("--extractable",))):
        run_import(softhsm, pem, label, more)
    assert softhsm.open("kept").origin == "provisioned"
    with pytest.raises(KeyUnusable, match="can be read out of its token"):
        softhsm.open("loose")


def run_import(hsm: SoftHSM, pem: Path, label: str, more: tuple[str, ...]) -> None:
    """Bring a key in as an operator would: private and public half under one id."""
    der, public = pem.with_suffix(".der"), pem.with_suffix(".pub")
    for arguments in (("-out", der), ("-pubout", "-out", public)):
        subprocess.run(
            ["openssl", "pkey", "-in", str(pem), "-outform", "DER", *map(str, arguments)],
            check=True,
            capture_output=True,
        )
    identity = f"{sum(label.encode()):04x}"
    named = ("--label", label, "--id", identity)
    hsm.tool("--write-object", str(der), "--type", "privkey", "--usage-sign", "--sensitive", *named, *more)
    hsm.tool("--write-object", str(public), "--type", "pubkey", *named)


def test_the_public_half_is_nowhere(softhsm: SoftHSM) -> None:
    """Without it nobody could prove which key it is; a certificate beside it will do."""
    key = softhsm.create()
    softhsm.tool("--delete-object", "--type", "pubkey", "--label", "ca")
    with pytest.raises(KeyUnusable, match="neither a public key nor a certificate"):
        softhsm.open()
    write_certificate(softhsm, key)
    assert softhsm.open().public_key == key.public_key


def test_several_processes_make_one_key(softhsm: SoftHSM) -> None:
    """Six processes that make the same key at the same time all get the same one."""
    program = (
        "import sys;from pathlib import Path;from attestation.keys.open import *;"
        "key=create_key(sys.argv[1],'ecdsa-p384',KeyOptions(modules={'softhsm':Path(sys.argv[2])}));"
        "key.self_test(key.public_key);n=key.public_key.public_numbers();print(n.x);key.close()"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, softhsm.uri(), str(softhsm.module)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    answers = [process.communicate(timeout=240)[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    assert len(set(answers)) == 1
    assert softhsm.tool("--list-objects").count("Private Key Object") == 1


def flipped(blob: bytes, place: int) -> bytes:
    """Return *blob* with another byte at *place*: one that is set may be the one that was there."""
    changed = bytearray(blob)
    changed[place] ^= 1
    return bytes(changed)


def test_wrapped_keys(softhsm: SoftHSM) -> None:
    """Tampered, cut, another KEK: GeneralError; ours is one error. More of it: test_provision.py."""
    kek = create_kek(softhsm.uri("kek"), softhsm.options)
    key = ec.generate_private_key(ec.SECP384R1())
    blob = wrap_key(key, kek, oaep_hash="sha1")
    other = wrap_key(key, rsa.generate_private_key(65537, 3072).public_key(), oaep_hash="sha1")
    for wrong in (flipped(blob, 0), flipped(blob, -1), blob[:-8], other):
        with pytest.raises(UnwrapFailed):
            unwrap_key(
                softhsm.uri(),
                wrong,
                softhsm.uri("kek"),
                oaep_hash="sha1",
                certificate_or_public_key=key.public_key(),
                options=softhsm.options,
            )
    keeper = softhsm.create("keeper")

    def refuse(connection: Any) -> None:
        (opens,) = connection.session.get_objects({Attribute.LABEL: "kek", Attribute.UNWRAP: True})
        for wrong in (flipped(blob, 0)[:384], blob[:383], other[:384]):
            with pytest.raises(pkcs11.GeneralError):
                opens.unwrap_key(
                    ObjectClass.SECRET_KEY,
                    KeyType.AES,
                    wrong,
                    mechanism=Mechanism.RSA_PKCS_OAEP,
                    mechanism_param=(Mechanism.SHA_1, pkcs11.MGF.SHA1, None),
                )

    in_worker(softhsm, keeper, refuse)
