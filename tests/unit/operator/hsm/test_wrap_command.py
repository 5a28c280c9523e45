"""`attestation hsm verify|wrap|sign-bundle`: nothing leaves an administrator's hands for what was not verified here."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec, mldsa, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import load_der_x509_certificate, load_pem_x509_certificates

from attestation.clock import rfc3339
from attestation.errors import BundleRejected, KeyNotFound, KeyUnusable, RequestInvalid
from attestation.evidence.hsm_key import PROOF
from attestation.keys.file import pem_of
from attestation.keys.provisioning import fingerprint, read_bundle
from attestation.pki.external import make_ca
from attestation.quote import evidence_digest, key_fingerprint, parse_envelope
from attestation.wire import b64encode
from attestation_cli.session import Session
from attestation_operator.commands import hsm_judging
from attestation_operator.commands.hsm_files import write_new
from attestation_operator.commands.hsm_wrap import sign_bundle_too, verify, wrap
from attestation_testing import yubihsm
from attestation_testing.tee.intel import collateral_json
from tests.unit.evidence import test_hsm_key as hsm_kit
from tests.unit.evidence import test_key_certification as tpm_kit
from tests.unit.evidence.dcap_zoo import AT, PLATFORM
from tests.unit.pki.leaf_kit import CA_NAME, SERIAL
from tests.unit.quote.quote_kit import NONCE, UID, binding, evidence, spec
from tests.unit.quote.test_handing import spki
from tests.unit.quote.test_quote_types import BOOT, quoted

ADA = ec.derive_private_key(31, ec.SECP384R1())
BOB = mldsa.MLDSA87PrivateKey.from_seed_bytes(bytes(32))
CA_KEY = ec.derive_private_key(32, ec.SECP384R1())


def pem(key: Any) -> bytes:
    """Return a private key in PEM."""
    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that an administrator has."""
    made: Path = tmp_path_factory.mktemp("wrap")
    kek = spki(rsa.generate_private_key(65537, 3072))
    said = spec(
        data=evidence("sgx", binding("sgx", subject_spki=kek)),
        publicKey=b64encode(kek),
        expiresAt=rfc3339(AT + timedelta(days=1)),
    )
    about = {"uid": "qa-uid", "namespace": "apps", "name": "ca-1"}
    (made / "qa.json").write_text(json.dumps({"kind": "QuoteAttestation", "metadata": about, "spec": said}))
    (made / "collateral.json").write_bytes(collateral_json(PLATFORM.collateral("SGX")))
    (made / "root.der").write_bytes(PLATFORM.pki.root)
    policy = {
        "format": "itl-policy/2",
        "name": "enclaves",
        "version": 1,
        "sgx": {"mrenclave": [(b"\xe1" * 32).hex()]},
    }
    (made / "policy.json").write_text(json.dumps(policy))
    certificate = make_ca(
        subject=CA_NAME,
        spki=spki(CA_KEY),
        key=CA_KEY,
        serial=SERIAL,
        at=AT,
        duration=timedelta(days=9),
        path_length=0,
    )
    (made / "ca.pem").write_bytes(load_der_x509_certificate(certificate).public_bytes(Encoding.PEM))
    for name, key in (("ca", CA_KEY), ("ada", ADA), ("bob", BOB)):
        file = made / f"{name}.key"
        file.touch(0o600)
        file.write_bytes(pem(key))
    return made


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the clock of the administrator's computer."""
    monkeypatch.setattr(hsm_judging, "now", lambda: AT)


def run(command: Any, folder: Path, *more: str, **changed: str | None) -> Result:
    """Run a command in the folder, with other options where *changed*; None: without that option."""
    options: dict[str, str | None] = {
        "issuer_uid": UID,
        "evidence": "sgx",
        "nonce": b64encode(NONCE),
        "policy": str(folder / "policy.json"),
        "collateral": str(folder / "collateral.json"),
        "intel_root": str(folder / "root.der"),
    }
    qa = changed.pop("qa", None) or "qa.json"
    given = [
        part
        for name, value in (options | changed).items()
        if value is not None
        for part in (f"--{name.replace('_', '-')}", value)
    ]
    return CliRunner().invoke(command, [str(folder / qa), *given, *more], obj=Session())


def wrapping(folder: Path, out: Path, **files: str) -> list[str]:
    """Return the options of `wrap`."""
    named = {"key": "ca.key", "chain": "ca.pem", "sign-with": "ada.key"} | files
    return [
        *(part for name, file in named.items() for part in (f"--{name}", str(folder / file))),
        "--bundle",
        str(out),
    ]


def signing(folder: Path, out: Path, *signers: Any, key: str = "bob.key", chain: str = "ca.pem") -> list[str]:
    """Return the options of `sign-bundle`, where *signers* signed before."""
    by = [part for each in signers or (ADA,) for part in ("--signed-by", fingerprint(each.public_key()))]
    files = {"bundle": out, "chain": folder / chain, "sign-with": folder / key}
    return [*by, *(part for name, file in files.items() for part in (f"--{name}", str(file))), "--yes"]


def made(folder: Path, tmp_path: Path) -> Path:
    """Return a bundle by the first administrator."""
    out = tmp_path / "bundle.json"
    done = run(wrap, folder, *wrapping(folder, out))
    assert done.exit_code == 0, done.output
    return out


def test_verify_tells_and_ends_with_the_verdict(folder: Path) -> None:
    """Verified ends with 0; another issuer than the administrator's with 1."""
    good = run(verify, folder)
    assert (good.exit_code, "verified" in good.stdout) == (0, True), good.output
    assert "another one" in good.stderr
    bad = run(verify, folder, "-o", "json", issuer_uid="another")
    told = json.loads(bad.stdout)
    assert (bad.exit_code, told["verdict"]) == (1, "failed")
    assert {"outcome": "failed", "check": "quote-question", "found": UID} in told["checks"]


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({"issuer_uid": "another"}, ()),
        ({"nonce": b64encode(bytes(32))}, ()),
        ({"evidence": "tdx"}, ()),
        ({"evidence": "null"}, ()),
        ({"evidence": "null"}, ("--insecure-accept-null-evidence",)),
        ({}, ("--purpose", "CsrAttestation")),
    ],
)
def test_the_question_is_the_administrators(
    folder: Path, changed: dict[str, str | None], more: tuple[str, ...]
) -> None:
    """Issuer, nonce, type and purpose of the file count nowhere: where they differ, the verdict is failed."""
    assert run(verify, folder, *more, **changed).exit_code == 1


def test_what_an_administrator_must_say(folder: Path) -> None:
    """Issuer, type and policy have no default; which nonce was given out neither; another hash is refused."""
    for name in ("issuer_uid", "evidence", "policy"):
        assert run(verify, folder, **{name: None}).exit_code == 2
    assert "which nonce" in str(run(verify, folder, nonce=None).exception)
    assert "--oaep-hash" in str(run(verify, folder, oaep_hash="sha1").exception)


def test_wrap_writes_what_a_controller_reads(folder: Path, tmp_path: Path) -> None:
    """A bundle for this question, by this administrator, in files that nobody else reads."""
    out = made(folder, tmp_path)
    signer = fingerprint(ADA.public_key())
    signatures = out.with_suffix(".jws").read_text().splitlines()
    found = read_bundle(out.read_bytes(), signatures, signers={signer}, required=1).bundle
    asked = parse_envelope(json.loads((folder / "qa.json").read_text())["spec"])
    assert (found.qa_uid, found.signer_uid, found.nonce) == ("qa-uid", UID, asked.nonce)
    assert found.evidence_digest == evidence_digest(asked)
    assert [stat.S_IMODE(each.stat().st_mode) for each in sorted(tmp_path.iterdir())] == [0o600, 0o600]


def test_files_are_replaced_only_where_that_is_said(folder: Path, tmp_path: Path) -> None:
    """And a bundle is not where its signatures are to be; what stands there stays as it is."""
    out = made(folder, tmp_path)
    before = out.read_bytes()
    again = run(wrap, folder, *wrapping(folder, out))
    assert isinstance(again.exception, RequestInvalid)
    assert out.read_bytes() == before
    assert run(wrap, folder, "--force", *wrapping(folder, out)).exit_code == 0
    assert out.read_bytes() != before
    out.with_suffix(".jws").unlink()
    assert isinstance(run(wrap, folder, *wrapping(folder, out)).exception, RequestInvalid)
    assert not out.with_suffix(".jws").exists(), "signatures of a bundle that was not written"
    itself = run(wrap, folder, *wrapping(folder, tmp_path / "x.jws"))
    assert "not called .jws" in str(itself.exception)
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "elsewhere")
    assert isinstance(run(wrap, folder, *wrapping(folder, link)).exception, RequestInvalid)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_comes_meanwhile_stays(tmp_path: Path) -> None:
    """Whoever was first has the name."""
    there = tmp_path / "file"
    there.write_bytes(b"theirs")
    with pytest.raises(RequestInvalid, match="--force"):
        write_new(there, b"ours", force=False)
    assert there.read_bytes() == b"theirs"
    with pytest.raises(RequestInvalid, match="No such file"):
        write_new(tmp_path / "no" / "file", b"ours", force=True)


@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    """What was there stays, and the next try is not in its own way."""

    class Full(io.FileIO):
        def write(self, data: Any, /) -> int:
            """Write a part, as a disk does before it is full."""
            super().write(bytes(data)[:1])
            raise OSError(errno.ENOSPC, "No space left on device")

    there = tmp_path / "bundle.json"
    if force:
        there.write_bytes(b"theirs")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", Full)
        with pytest.raises(RequestInvalid, match="No space left"):
            write_new(there, b"ours", force=force)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([b"theirs"] if force else [])
    write_new(there, b"ours", force=force)


def test_wrap_writes_nothing_otherwise(folder: Path, tmp_path: Path) -> None:
    """For another issuer or nonce; with files that hold something else, or keys that others may read."""
    out = tmp_path / "bundle.json"
    for changed in ({"issuer_uid": "another"}, {"nonce": b64encode(bytes(32))}):
        assert run(wrap, folder, *wrapping(folder, out), **changed).exit_code == 1
    open_to_all = folder / "open.key"
    open_to_all.write_bytes(pem(CA_KEY))
    open_to_all.chmod(0o644)
    refusals: list[tuple[dict[str, str], type[Exception]]] = [
        ({"chain": "ca.key"}, RequestInvalid),
        ({"key": "policy.json"}, KeyUnusable),
        ({"key": "open.key"}, KeyUnusable),
        ({"sign-with": "open.key"}, KeyUnusable),
        ({"sign-with": "no.key"}, KeyNotFound),
    ]
    for files, error in refusals:
        told = run(wrap, folder, *wrapping(folder, out, **files))
        assert isinstance(told.exception, error)
        assert "PRIVATE KEY" not in told.output + str(told.exception)
    for qa in ("ca.pem", "policy.json"):
        assert isinstance(run(verify, folder, qa=qa).exception, RequestInvalid)
    assert not list(tmp_path.iterdir())


def test_an_encrypted_key(folder: Path, tmp_path: Path) -> None:
    """Is opened by a passphrase from a file."""
    locked = tmp_path / "locked.key"
    locked.touch(0o600)
    locked.write_bytes(pem_of(CA_KEY, b"secret"))
    word = tmp_path / "word"
    word.write_text("secret\n")
    out = tmp_path / "bundle.json"
    options = wrapping(folder, out, key=str(locked))
    assert isinstance(run(wrap, folder, *options).exception, KeyUnusable)
    assert run(wrap, folder, *options, "--key-passphrase", str(word)).exit_code == 0


def test_no_evidence_where_somebody_accepts_that(folder: Path, tmp_path: Path) -> None:
    """It is warned of, and wrapped for; without the word nothing is."""
    raw = json.loads((folder / "qa.json").read_text())
    raw["spec"]["evidence"] |= {"type": "null", "format": "null"}
    (folder / "null.json").write_text(json.dumps(raw))
    free = {
        "format": "itl-policy/2",
        "name": "any",
        "version": 1,
        "rules": [{"name": "a", "expression": "true"}],
    }
    (folder / "any.json").write_text(json.dumps(free))
    changed = {"qa": "null.json", "evidence": "null", "policy": str(folder / "any.json")}
    out = tmp_path / "bundle.json"
    assert run(wrap, folder, *wrapping(folder, out), **changed).exit_code == 1
    assert not out.exists()
    done = run(wrap, folder, "--insecure-accept-null-evidence", *wrapping(folder, out), **changed)
    assert (done.exit_code, out.exists()) == (0, True), done.output
    assert "warning: without evidence" in done.stderr


def asked_by(folder: Path, name: str, kind: str, spki_: bytes, data: bytes, **changed: Any) -> None:
    """Put a QuoteAttestation of another type into the folder."""
    raw = json.loads((folder / "qa.json").read_text())
    said = raw["spec"]
    said["evidence"] = {"type": kind, "format": kind, "data": b64encode(data), "certChain": []}
    said["publicKey"] = b64encode(spki_)
    said["binding"]["hash"] = "sha256" if kind.startswith("tpm") else "sha512"
    said |= changed
    (folder / name).write_text(json.dumps(raw))


def test_a_machine_that_names_a_key(folder: Path, tmp_path: Path) -> None:
    """Verified by the AK that the administrator names; wrapped for only where they accept that it says no more."""
    kek = spki(rsa.generate_private_key(65537, 3072))
    bound = binding("tpm-quote", subject_spki=kek, tpm=True)
    asked_by(folder, "quote.json", "tpm-quote", kek, quoted(bound))
    for name, area in (
        ("ak", tpm_kit.AK.public),
        ("ek", tpm_kit.EK.public),
        ("other", tpm_kit.OTHER_AK.public),
    ):
        (folder / f"{name}.pub").write_bytes(area.tpm2b())
    booted = {"format": "itl-policy/2", "name": "booted", "version": 1, "tpm": BOOT}
    (folder / "booted.json").write_text(json.dumps(booted))
    changed: dict[str, str | None] = {
        "qa": "quote.json",
        "evidence": "tpm-quote",
        "policy": str(folder / "booted.json"),
        "ek": str(folder / "ek.pub"),
    }
    mine = changed | {"ak": str(folder / "ak.pub")}
    told = run(verify, folder, "-o", "json", **mine)
    assert (told.exit_code, json.loads(told.stdout)["tier"]) == (0, "tpm-machine"), told.output
    assert run(verify, folder, **changed).exit_code == 1
    assert run(verify, folder, **(changed | {"ak": str(folder / "other.pub")})).exit_code == 1
    out = tmp_path / "bundle.json"
    assert isinstance(run(wrap, folder, *wrapping(folder, out), **mine).exception, BundleRejected)
    assert not list(tmp_path.iterdir())
    assert run(wrap, folder, "--accept-tpm-quote", *wrapping(folder, out), **mine).exit_code == 0


def test_a_key_in_an_hsm(folder: Path) -> None:
    """Verified under the maker's root that the administrator names, PEM or DER; without one nothing is decided."""
    key = yubihsm.spki(hsm_kit.KEY)
    bound = binding("hsm-x509", purpose="CsrAttestation", subject_spki=key)
    asked_by(
        folder,
        "hsm.json",
        "hsm-x509",
        key,
        hsm_kit.evidence(signed=PROOF + bound),
        purpose="CsrAttestation",
    )
    raw = json.loads((folder / "hsm.json").read_text())
    raw["spec"]["evidence"]["certChain"] = [b64encode(each) for each in hsm_kit.DEVICE.chain]
    (folder / "hsm.json").write_text(json.dumps(raw))
    ours = {"name": "ours", "expression": "key.hwserial == '7150001'"}
    policy = {"format": "itl-policy/2", "name": "ours", "version": 1, "rules": [ours]}
    (folder / "ours.json").write_text(json.dumps(policy))
    der_file, pem_file = folder / "maker.der", folder / "maker.pem"
    der_file.write_bytes(hsm_kit.DEVICE.root)
    pem_file.write_bytes(load_der_x509_certificate(hsm_kit.DEVICE.root).public_bytes(Encoding.PEM))
    changed = {
        "qa": "hsm.json",
        "evidence": "hsm-x509",
        "policy": str(folder / "ours.json"),
        "purpose": "CsrAttestation",
    }
    for root in (der_file, pem_file):
        told = run(verify, folder, "--vendor-root", str(root), **changed)
        assert (told.exit_code, "7150001" in told.stdout) == (0, True), told.output
    without = run(verify, folder, "-o", "json", **changed)
    assert (without.exit_code, json.loads(without.stdout)["verdict"]) == (1, "indeterminate")


# ---------------------------------------------------------------- the service is asked


class Told:
    """A service that says this of QuoteAttestations."""

    def __init__(self, *told: Any) -> None:
        self.told = told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def quote_attestations(self) -> Any:
        """Yield them."""
        return iter(self.told)


def test_the_service_says_which_nonce_it_gave_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It agrees with all that was judged here, or nothing is wrapped; one that knows nothing of it likewise."""
    asked = parse_envelope(json.loads((folder / "qa.json").read_text())["spec"])
    good = SimpleNamespace(
        uid="qa-uid",
        verdict="verified",
        signer_uid=UID,
        purpose="KeyProvisioning",
        evidence_type="sgx",
        evidence_digest=evidence_digest(asked).hex(),
        bound_key_fingerprint=key_fingerprint(asked.spki).hex(),
    )

    def answered(*told: Any) -> Result:
        monkeypatch.setattr(Session, "client", lambda _self: Told(*told))
        return run(verify, folder, "--ask-service", nonce=None)

    assert answered(SimpleNamespace(uid="another"), good).exit_code == 0
    assert isinstance(answered().exception, BundleRejected)
    for name in vars(good):
        bad = SimpleNamespace(**(vars(good) | {name: "x"}))
        assert isinstance(answered(bad).exception, BundleRejected), name
    nothing = SimpleNamespace(**(vars(good) | {"evidence_digest": None}))
    assert isinstance(answered(nothing).exception, BundleRejected)


# ---------------------------------------------------------------- two administrators


def test_a_second_signature(folder: Path, tmp_path: Path) -> None:
    """By another key, after the same judgement; the controller then reads two signers."""
    out = made(folder, tmp_path)
    text = out.read_bytes()
    told = run(sign_bundle_too, folder, *signing(folder, out))
    assert told.exit_code == 0, told.output
    for shown in (hashlib.sha256(text).hexdigest(), UID, fingerprint(ADA.public_key()), "apps/ca-1"):
        assert shown in told.stdout
    lines = out.with_suffix(".jws").read_text().splitlines()
    signers = {fingerprint(each.public_key()) for each in (ADA, BOB)}
    assert {*read_bundle(text, lines, signers=signers, required=2).signers} == signers
    assert out.read_bytes() == text
    # Both have signed: a third one expects both.
    third = run(sign_bundle_too, folder, *signing(folder, out, ADA, BOB))
    assert "your key signed it already" in str(third.exception)


def test_a_second_signature_is_of_another_key_over_what_was_judged(folder: Path, tmp_path: Path) -> None:
    """Not of the first one's key, nor for evidence, signer, CA or bundle that are others; nothing is added then."""
    out = made(folder, tmp_path)
    signatures = out.with_suffix(".jws")
    before = signatures.read_bytes()
    other = make_ca(
        subject=CA_NAME,
        spki=spki(BOB),
        key=BOB,
        serial=SERIAL,
        at=AT,
        duration=timedelta(days=9),
        path_length=0,
    )
    mine = load_pem_x509_certificates((folder / "ca.pem").read_bytes())[0].public_bytes(Encoding.PEM)
    theirs = load_der_x509_certificate(other).public_bytes(Encoding.PEM)
    (folder / "other.pem").write_bytes(theirs)
    (folder / "longer.pem").write_bytes(mine + theirs)
    for options in (
        signing(folder, out, key="ada.key"),
        signing(folder, out, BOB),
        signing(folder, out, ADA, BOB),
        signing(folder, out, chain="other.pem"),
        signing(folder, out, chain="longer.pem"),
    ):
        assert isinstance(run(sign_bundle_too, folder, *options).exception, BundleRejected)
    assert run(sign_bundle_too, folder, *signing(folder, out), issuer_uid="another").exit_code == 1
    raw = json.loads((folder / "qa.json").read_text())
    (folder / "again.json").write_text(json.dumps(raw | {"metadata": {"uid": "another"}}))
    again = run(sign_bundle_too, folder, *signing(folder, out), qa="again.json")
    assert isinstance(again.exception, BundleRejected)
    assert signatures.read_bytes() == before
    out.write_bytes(out.read_bytes() + b" ")
    assert isinstance(run(sign_bundle_too, folder, *signing(folder, out)).exception, BundleRejected)
    signatures.unlink()
    assert "no signatures" in str(run(sign_bundle_too, folder, *signing(folder, out)).exception)


def test_a_second_signature_is_asked_for(folder: Path, tmp_path: Path) -> None:
    """Where nobody can be asked, nothing is signed."""
    out = made(folder, tmp_path)
    before = out.with_suffix(".jws").read_bytes()
    assert run(sign_bundle_too, folder, *signing(folder, out)[:-1]).exit_code != 0
    assert out.with_suffix(".jws").read_bytes() == before


def test_a_key_of_a_token_signs(folder: Path, tmp_path: Path) -> None:
    """A key URI may name modules that are listed beside it, and no others."""
    out = tmp_path / "bundle.json"
    options = wrapping(folder, out)
    options[options.index("--sign-with") + 1] = f"file:{folder / 'ada.key'}"
    assert run(wrap, folder, *options).exit_code == 0
    options[options.index("--sign-with") + 1] = "pkcs11:token=t;object=o?module-name=m"
    for listed in ("m", "=x", "m=relative"):
        told = run(wrap, folder, "--force", "--pkcs11-module", listed, *options)
        assert isinstance(told.exception, RequestInvalid), told.exception
    assert isinstance(run(wrap, folder, "--force", *options).exception, KeyUnusable)
