"""`attestation tpm-bundle`: what an operator sees of the bundle, and what changes it."""

from __future__ import annotations

import base64
import csv
import io
import json
import shlex
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation.tpm import parse_public
from attestation.tpm_bundle import load_directory, load_shipped, read_directory, read_shipped
from attestation.tpm_bundle.writing import write_directory
from attestation_cli.main import cli
from attestation_testing.certificates import CAOptions, CertificateAuthority, EKCertificateOptions, Quirk
from tests.vectors import forge

EK = parse_public(forge.ek_public("L-2"))
ROOT = CertificateAuthority("NTC root", seed=1)
ISSUER = CertificateAuthority("NTC issuer", seed=2, parent=ROOT)
LOST = CertificateAuthority("NTC lost", seed=3, parent=CertificateAuthority("nobody", seed=4))
NTC = "id:4E544300"


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ITL_TPM_CA_BUNDLE_DIR", raising=False)


def run(*words: object) -> Result:
    return CliRunner().invoke(
        cli, ["tpm-bundle", *map(str, words)], catch_exceptions=False, terminal_width=80
    )


def pem(ca: CertificateAuthority, owner: str | None = None) -> str:
    comment = "" if owner is None else f"#\n# Certificate: x\n# Owner: {owner}\n#\n"
    return (
        f"{comment}-----BEGIN CERTIFICATE-----\n{base64.encodebytes(ca.certificate).decode()}"
        "-----END CERTIFICATE-----\n"
    )


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """A folder with a root and an issuer of it."""
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "root.cer").write_bytes(ROOT.certificate)
    (folder / "issuer.pem").write_text(pem(ISSUER))
    return folder


@pytest.fixture
def own(tmp_path: Path, certs: Path) -> Path:
    """A folder of the operator's own with both."""
    target = tmp_path / "own"
    assert run("import", certs, "--vendor", "ntc", "--dir", target, "--yes").exit_code == 0
    return target


def ek_file(
    tmp_path: Path,
    issuer: CertificateAuthority = ISSUER,
    manufacturer: str = NTC,
    quirks: frozenset[Quirk] = frozenset(),
) -> Path:
    data = issuer.issue_ek_certificate(
        EK, at=datetime.now(UTC), options=EKCertificateOptions(manufacturer=manufacturer, quirks=quirks)
    )
    (tmp_path / "ek.der").write_bytes(data)
    return tmp_path / "ek.der"


def test_what_is_shipped_is_listed() -> None:
    """One line each, by manufacturer; filters narrow it."""
    listed = run("list")
    assert listed.exit_code == 0
    assert len(listed.stdout.splitlines()) == 26
    assert "24 anchors, 1 intermediate; bundle" in listed.stderr
    assert len(run("list", "--vendor", "stm").stdout.splitlines()) == 5
    assert len(run("list", "--role", "intermediate").stdout.splitlines()) == 2
    assert "No certificates." in run("list", "--vendor", "GOOG").stderr


def test_a_listing_for_programs_is_whole(own: Path) -> None:
    """JSON has every member, CSV whole hashes; one's own certificates say so."""
    document = json.loads(run("list", "--dir", own, "-o", "json").stdout)
    assert len(document["certificates"]) == 27
    origins = {c["sha256"]: c["origin"] for c in document["certificates"]}
    assert sorted(origins.values()).count("directory") == 2
    shipped = json.loads(run("list", "-o", "json").stdout)
    assert shipped["sha256"] == load_shipped().sha256 != document["sha256"]
    rows = list(csv.DictReader(io.StringIO(run("list", "--dir", own, "-o", "csv").stdout)))
    assert {row["sha_256"] for row in rows} == set(origins)
    assert all(len(row["spki_sha_256"]) == 64 and row["evidence"] for row in rows)


def test_what_expired_or_is_distrusted_is_told(tmp_path: Path) -> None:
    """The status is that of now, with the reason."""
    then = (datetime(2001, 1, 1, tzinfo=UTC), datetime(2002, 1, 1, tzinfo=UTC))
    later = (datetime(2101, 1, 1, tzinfo=UTC), datetime(2102, 1, 1, tzinfo=UTC))
    for name, validity in (("old", then), ("young", later)):
        ca = CertificateAuthority(name, seed=len(name), options=CAOptions(validity=validity))
        (tmp_path / f"{name}.der").write_bytes(ca.certificate)
    (tmp_path / "bad.der").write_bytes(ROOT.certificate)
    where = ("--vendor", "NTC", "--dir", tmp_path / "own", "--yes")
    assert run("import", tmp_path / "old.der", tmp_path / "young.der", *where).exit_code == 0
    told = run("import", tmp_path / "bad.der", "--distrusted", "key stolen", *where)
    assert "- NTC distrusted anchor  NTC root" in told.stdout
    listed = json.loads(run("list", "--dir", tmp_path / "own", "--vendor", "NTC", "-o", "json").stdout)
    words = {c["subject"]: (c["status"], c["reason"]) for c in listed["certificates"]}
    assert words["Common Name: old"] == ("expired", None)
    assert words["Common Name: young"] == ("not yet valid", None)
    assert words["Common Name: NTC root"] == ("distrusted", "key stolen")


# ---------------------------------------------------------------- verify


def test_bundles_are_verified(own: Path, tmp_path: Path) -> None:
    """What is shipped, one's own, a folder, an archive: each with its numbers."""
    both = run("verify", "--dir", own)
    assert both.exit_code == 0
    assert both.stdout.count("valid") == 2
    assert "25, each as its manifest pins it" in both.stdout
    archive = tmp_path / "own.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for file in own.rglob("*"):
            if file.is_file():
                made.write(file, str(file.relative_to(own)))
    for path in (own, archive):
        document = json.loads(run("verify", path, "-o", "json").stdout)
        assert (document["valid"], document["anchors"], document["intermediates"]) == (True, 1, 1)
    assert run("verify", own, archive).stdout.count("verdict") == 2
    for many in (run("verify", own, archive, "-o", "json"), run("verify", "--dir", own, "-o", "json")):
        assert [one["valid"] for one in json.loads(many.stdout)] == [True, True]


def test_a_damaged_bundle_is_told_with_the_file(own: Path) -> None:
    """Exit code 1, the file and the rule."""
    file = next(own.rglob("anchors/NTC/*.der"))
    file.write_bytes(file.read_bytes() + b"\0")
    done = run("verify", own)
    assert done.exit_code == 1
    assert "INVALID" in done.stdout
    assert file.name in done.stdout
    document = json.loads(run("verify", own, "-o", "json").stdout)
    assert not document["valid"]
    assert file.name in document["error"]


def test_an_intermediate_without_anchor_is_told(tmp_path: Path) -> None:
    """It vouches for nobody, so the bundle is not what somebody thinks it is."""
    (tmp_path / "seed" / "NTC").mkdir(parents=True)
    (tmp_path / "seed" / "NTC" / "lost.der").write_bytes(LOST.certificate)
    done = run("verify", tmp_path / "seed")
    assert done.exit_code == 1
    assert "1, 1 of them without an anchor" in done.stdout
    assert "NTC lost: no issuer is known" in done.stdout


def test_an_ek_certificate_is_judged_with_every_step(own: Path, tmp_path: Path) -> None:
    """Leaf, intermediate, anchor, each with its verdict; exit code 1 where nobody vouches."""
    file = ek_file(tmp_path)
    done = run("verify", file, "--dir", own)
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == ["leaf", "intermediate", "anchor"]
    assert "vouched for" in done.stdout
    assert "NTC" in done.stdout
    refused = run("verify", file)
    assert refused.exit_code == 1
    assert "not vouched for" in refused.stdout
    document = json.loads(run("verify", file, "--dir", own, "-o", "json").stdout)
    assert document["ok"]
    assert document["vendor"] == "NTC"
    assert [step["ok"] for step in document["path"]] == [True] * 3
    assert len(list(csv.reader(io.StringIO(run("verify", file, "--dir", own, "-o", "csv").stdout)))) == 4


def test_what_is_missing_is_told_with_the_command_that_brings_it(own: Path, tmp_path: Path) -> None:
    """Manufacturer, address and command as the certificate says; what is imported so makes it vouched for."""
    elsewhere = CertificateAuthority("NTC elsewhere", seed=8, parent=ROOT)
    file = ek_file(tmp_path, elsewhere, quirks=frozenset({Quirk.POINTERS}))
    done = run("verify", file, "--dir", own)
    assert done.exit_code == 1
    assert "NTC (id:4E544300)" in done.stdout
    assert "http://ca.example/zoo" in done.stdout
    assert "Missing: the intermediate Common Name: NTC elsewhere." in done.stderr
    assert "nothing was fetched" in done.stderr
    command = (
        "attestation tpm-bundle import FILE --vendor NTC --role intermediate "
        f"--source http://ca.example/zoo --dir {own}"
    )
    assert command in done.stderr
    document = json.loads(run("verify", file, "--dir", own, "-o", "json").stdout)
    assert (document["manufacturer"], document["issuer_addresses"]) == (NTC, ["http://ca.example/zoo"])
    assert document["missing"] == {
        "role": "intermediate", "vendor": "NTC", "issuer": "Common Name: NTC elsewhere", "import": command,
    }  # fmt: skip
    (tmp_path / "FILE").write_bytes(elsewhere.certificate)
    words = shlex.split(command.replace("FILE", str(tmp_path / "FILE")))[2:]
    assert run(*words, "--yes").exit_code == 0
    good = run("verify", file, "--dir", own)
    assert good.exit_code == 0
    assert "Missing" not in good.stderr
    assert json.loads(run("verify", file, "--dir", own, "-o", "json").stdout)["missing"] is None


def test_without_an_anchor_of_the_vendor_an_anchor_is_missing(tmp_path: Path) -> None:
    """Qualcomm's, of which nothing is shipped; of a manufacturer that nobody registered no import helps."""
    file = ek_file(tmp_path, manufacturer="id:51434F4D")
    assert "--vendor QCOM --role anchor --dir FOLDER" in run("verify", file).stderr
    done = run("verify", ek_file(tmp_path, manufacturer="id:58585858"))
    assert "no import makes it vouched for" in done.stderr
    assert "tpm-bundle import" not in done.stderr
    assert "not registered (id:58585858)" in done.stdout


def test_an_address_is_a_stranger_s_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quoted for the shell, control characters visible; only an address of the web becomes a source."""
    asked = ["http://a/;rm$(id)`id`", r"http://a/\x1b[2J"]
    for address in (*asked, "ldap://a/cn=x"):
        monkeypatch.setattr("attestation.endorsements.missing.issuer_addresses", lambda _, a=address: (a,))
        done = run("verify", ek_file(tmp_path))
        assert address in done.stdout
        command = next(line for line in done.stderr.splitlines() if "tpm-bundle import" in line)
        words = shlex.split(command)
        assert (address in words) == (address in asked)
        assert f"--source '{address}'" in command or address not in asked


def test_a_folder_that_is_not_there_is_a_mistake(own: Path, tmp_path: Path, certs: Path) -> None:
    """A typing error must not read like a folder without certificates; only an import makes a folder."""
    nowhere = tmp_path / "nowhere"
    for words in (["list"], ["verify"], ["verify", ek_file(tmp_path)], ["update", own, "--yes"]):
        done = run(*words, "--dir", nowhere)
        assert done.exit_code == 2
        assert "does not exist" in done.stderr
    assert run("sign", nowhere, "--key", "key.pem", "--name", "x").exit_code == 2
    assert not nowhere.exists()
    assert run("import", certs, "--vendor", "NTC", "--dir", nowhere, "--yes").exit_code == 0


def test_what_came_with_it_is_a_hint(own: Path, tmp_path: Path) -> None:
    """A file of intermediates, or the certificate and its chain in one file."""
    lowest = CertificateAuthority("NTC lowest", seed=5, parent=ISSUER)
    file = ek_file(tmp_path, lowest)
    (tmp_path / "chain.pem").write_text(pem(lowest))
    assert run("verify", file, "--dir", own).exit_code == 1
    assert run("verify", file, "--dir", own, "--chain", tmp_path / "chain.pem").exit_code == 0
    whole = tmp_path / "whole.pem"
    der = base64.encodebytes(file.read_bytes()).decode()
    whole.write_text(f"-----BEGIN CERTIFICATE-----\n{der}-----END CERTIFICATE-----\n{pem(lowest)}")
    assert run("verify", whole, "--dir", own).exit_code == 0


def test_another_maker_s_word_is_none(own: Path, tmp_path: Path) -> None:
    """The reason is told."""
    done = run("verify", ek_file(tmp_path, manufacturer="id:53544D20"), "--dir", own)
    assert done.exit_code == 1
    assert "its anchor is of NTC" in done.stdout


def test_a_software_tpm_is_called_one(tmp_path: Path, certs: Path) -> None:
    """A developer's anchor of swtpm chains, and is said to prove nothing to the service."""
    run("import", certs, "--vendor", "Simulator", "--dir", tmp_path / "sim", "--yes")
    done = run("verify", ek_file(tmp_path, manufacturer="id:00001014"), "--dir", tmp_path / "sim")
    assert done.exit_code == 0
    assert "software TPM" in done.stderr


def test_what_cannot_be_judged_is_told(tmp_path: Path) -> None:
    """Junk, a file that is too long, keys for what no key signs."""
    (tmp_path / "junk").write_bytes(b"junk")
    assert run("verify", tmp_path / "junk").exit_code == 2
    (tmp_path / "long").write_bytes(bytes(70_000))
    assert "longer than" in run("verify", tmp_path / "long").stderr
    assert "keys are for bundles" in run("verify", ek_file(tmp_path), "--vkey", VKEY).stderr


# ---------------------------------------------------------------- import


def test_an_import_shows_what_to_compare_and_asks(tmp_path: Path, certs: Path) -> None:
    """Whole fingerprints; without an answer nothing is written."""
    target = tmp_path / "own"
    refused = run("import", certs, "--vendor", "NTC", "--dir", target)
    assert refused.exit_code == 2
    assert not target.exists()
    done = run(
        "import", certs, "--vendor", "NTC", "--source", "https://ntc.example/", "--dir", target, "--yes"
    )
    assert done.exit_code == 0
    bundle = load_directory(target)
    for held in bundle.held:
        assert held.entry.sha256 in done.stdout
        assert held.entry.sources == ("https://ntc.example/",)
        assert held.entry.vendor == "NTC"
    assert "ITL_TPM_CA_BUNDLE_DIR" in done.stderr
    again = run("import", certs, "--vendor", "NTC", "--dir", target)
    assert again.exit_code == 0
    assert "2 there already" in again.stderr
    assert read_directory(target).manifest.version == 1


def test_the_folder_is_named_by_the_setting(
    tmp_path: Path, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the service has it; without either, nothing is guessed."""
    assert "which folder" in run("import", certs, "--vendor", "NTC", "--yes").stderr
    monkeypatch.setenv("ITL_TPM_CA_BUNDLE_DIR", str(tmp_path / "own"))
    assert run("import", certs, "--vendor", "NTC", "--yes").exit_code == 0
    assert len(load_directory(tmp_path / "own").held) == 2


def test_whose_they_are_is_asked_for_or_found(tmp_path: Path, certs: Path) -> None:
    """An option, a folder's name, a comment of the collection; never a guess from the certificate."""
    assert "whose is it" in run("import", certs, "--dir", tmp_path / "own", "--yes").stderr
    assert "registry" in run("import", certs, "--vendor", "ACME", "--dir", tmp_path / "own", "--yes").stderr
    (tmp_path / "all" / "stm").mkdir(parents=True)
    (tmp_path / "all" / "stm" / "a.der").write_bytes(ROOT.certificate)
    (tmp_path / "all" / "manifest.json").write_text("[]")
    (tmp_path / "all" / "NOTES.txt").write_text("x")
    assert run("import", tmp_path / "all", "--dir", tmp_path / "own", "--yes").exit_code == 0
    assert {h.entry.vendor for h in load_directory(tmp_path / "own").held} == {"STM"}
    collection = tmp_path / "tpm-ca-certificates.pem"
    other = CertificateAuthority("IFX root", seed=8)
    collection.write_text(f"##\n## Date: x\n##\n{pem(ROOT, 'NTC')}\n{pem(other, 'IFX')}")
    assert run("import", collection, "--dir", tmp_path / "two", "--yes").exit_code == 0
    assert {h.entry.vendor for h in load_directory(tmp_path / "two").held} == {"NTC", "IFX"}
    collection.write_text(pem(ROOT, "NTC") + pem(other))
    assert "certificate 2: whose is it" in run("import", collection, "--dir", tmp_path / "t", "--yes").stderr


@pytest.mark.threat("T63")
def test_what_leads_nowhere_is_left_out(tmp_path: Path, certs: Path) -> None:
    """With the reason; and where nothing is left, the answer is no."""
    (certs / "lost.der").write_bytes(LOST.certificate)
    done = run("import", certs, "--vendor", "NTC", "--dir", tmp_path / "own", "--yes")
    assert done.exit_code == 0
    assert "left out: no issuer is known: Common Name: nobody" in done.stderr
    assert "NTC lost" in done.stderr
    assert len(load_directory(tmp_path / "own").held) == 2
    alone = run("import", certs / "lost.der", "--vendor", "NTC", "--dir", tmp_path / "own", "--yes")
    assert alone.exit_code == 1
    # As an anchor it needs nobody.
    role = run(
        "import",
        certs / "lost.der",
        "--vendor",
        "NTC",
        "--role",
        "anchor",
        "--dir",
        tmp_path / "own",
        "--yes",
    )
    assert role.exit_code == 0
    assert len(load_directory(tmp_path / "own").anchors) == 2
    # And it stays one, where a later import does not say.
    run("import", certs, "--vendor", "NTC", "--dir", tmp_path / "own", "--yes")
    assert len(load_directory(tmp_path / "own").anchors) == 2


def test_sha1_is_allowed_by_name(tmp_path: Path, certs: Path) -> None:
    """Only where it was asked for, and only for what is imported."""
    old = CertificateAuthority("NTC old", seed=9, parent=ROOT, options=CAOptions(sha1=True))
    (certs / "old.der").write_bytes(old.certificate)
    refused = run("import", certs, "--vendor", "NTC", "--dir", tmp_path / "own", "--yes")
    assert "SHA-1" in refused.stderr
    run("import", certs / "old.der", "--vendor", "NTC", "--allow-sha1", "--dir", tmp_path / "own", "--yes")
    assert len(read_directory(tmp_path / "own").manifest.sha1_allowed) == 1
    assert run("verify", ek_file(tmp_path, old), "--dir", tmp_path / "own").exit_code == 0


def test_a_distrusted_shipped_anchor_vouches_for_nobody(tmp_path: Path) -> None:
    """Taking it in as distrusted is enough; a later import does not bring it back."""
    entry, der = next((e, d) for e, d in read_shipped().certificates if e.vendor == "ATML")
    (tmp_path / "a.der").write_bytes(der)
    where = ("--vendor", "ATML", "--dir", tmp_path / "own", "--yes")
    assert run("import", tmp_path / "a.der", "--distrusted", "test", *where).exit_code == 0
    listed = json.loads(run("list", "--vendor", "ATML", "--dir", tmp_path / "own", "-o", "json").stdout)
    assert [c["status"] for c in listed["certificates"]] == ["distrusted"]
    assert entry.sha256 in {c["sha256"] for c in listed["certificates"]}


def test_a_seed_folder_is_not_rewritten(tmp_path: Path, certs: Path) -> None:
    """Files that somebody put there by name stay theirs."""
    seed = tmp_path / "seed"
    (seed / "NTC").mkdir(parents=True)
    (seed / "NTC" / "root.der").write_bytes(ROOT.certificate)
    done = run("import", certs, "--vendor", "NTC", "--dir", seed, "--yes")
    assert done.exit_code == 2
    assert "another folder" in done.stderr
    assert [p.name for p in (seed / "NTC").iterdir()] == ["root.der"]
    # Their bundle can be imported elsewhere.
    assert run("import", seed, "--dir", tmp_path / "own", "--yes").exit_code == 0


def test_an_import_for_programs(tmp_path: Path, certs: Path, own: Path) -> None:
    """JSON says what was added, known and left out; a bundle in our layout keeps its entries."""
    (certs / "lost.der").write_bytes(LOST.certificate)
    document = json.loads(
        run("import", certs, "--vendor", "NTC", "--dir", tmp_path / "b", "--yes", "-o", "json").stdout
    )
    assert [len(document[name]) for name in ("added", "known", "left_out")] == [2, 0, 1]
    rows = list(
        csv.DictReader(io.StringIO(run("import", own, "--dir", tmp_path / "c", "--yes", "-o", "csv").stdout))
    )
    assert {row["vendor"] for row in rows} == {"NTC"}


def test_files_that_hold_no_certificates_are_named(tmp_path: Path) -> None:
    """A leaf, junk, a huge file."""
    leaf = ek_file(tmp_path)
    assert (
        "not the certificate of a CA"
        in run("import", leaf, "--vendor", "NTC", "--dir", tmp_path / "o").stderr
    )
    (tmp_path / "junk.pem").write_bytes(b"junk")
    assert (
        "junk.pem" in run("import", tmp_path / "junk.pem", "--vendor", "NTC", "--dir", tmp_path / "o").stderr
    )
    (tmp_path / "huge.pem").write_bytes(bytes((8 << 20) + 1))
    assert (
        "longer than"
        in run("import", tmp_path / "huge.pem", "--vendor", "NTC", "--dir", tmp_path / "o").stderr
    )


# ---------------------------------------------------------------- diff, update, sign


def test_differences_are_told(own: Path, tmp_path: Path) -> None:
    """Added, removed, changed; exit code 1 where there are any."""
    assert run("diff", own, own).exit_code == 0
    assert "Nothing differs." in run("diff", own, own).stderr
    done = run("diff", "shipped", own, "-o", "json")
    assert done.exit_code == 1
    words = [c["change"] for c in json.loads(done.stdout)["changes"]]
    assert (words.count("added"), words.count("removed")) == (2, 25)
    contents = read_directory(own)
    promoted = tmp_path / "promoted"
    file = tmp_path / "issuer.der"
    file.write_bytes(ISSUER.certificate)
    run("import", own, "--dir", promoted, "--yes")
    run("import", file, "--vendor", "NTC", "--role", "anchor", "--allow-sha1", "--dir", promoted, "--yes")
    changed = run("diff", own, promoted)
    assert "role: intermediate → anchor, SHA-1 allowed" in changed.stdout
    assert "SHA-1 no longer allowed" in run("diff", promoted, own).stdout
    assert contents.manifest.version == 1


SEED = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
VKEY = "x.example+00000000+AAAA"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A private key of Ed25519."""
    file = tmp_path / "key.pem"
    file.write_bytes(SEED.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    file.chmod(0o600)
    return file


@pytest.mark.threat("T62")
def test_an_edition_replaces_the_folder(own: Path, tmp_path: Path, certs: Path) -> None:
    """It is shown and asked for; an older one is refused; the same changes nothing."""
    new = tmp_path / "new"
    run("import", own, "--dir", new, "--yes")
    (certs / "other.der").write_bytes(CertificateAuthority("NTC other", seed=6).certificate)
    run("import", certs, "--vendor", "NTC", "--dir", new, "--yes")
    assert read_directory(new).manifest.version == 2
    assert run("update", new, "--dir", own).exit_code == 2
    assert read_directory(own).manifest.version == 1
    done = run("update", new, "--dir", own, "--yes")
    assert done.exit_code == 0
    assert "added" in done.stdout
    assert read_directory(own).document == read_directory(new).document
    assert "as it was" in run("update", new, "--dir", own).stderr
    older = tmp_path / "older"
    run("import", certs, "--vendor", "NTC", "--dir", older, "--yes")
    refused = run("update", older, "--dir", own, "--yes")
    assert refused.exit_code == 2
    assert "is older than 2" in refused.stderr
    assert run("update", older, "--dir", own, "--yes", "--allow-older", "-o", "json").exit_code == 0
    assert read_directory(own).manifest.version == 1
    (tmp_path / "seed" / "NTC").mkdir(parents=True)
    assert "has no manifest" in run("update", tmp_path / "seed", "--dir", own, "--yes").stderr


def test_only_a_signed_edition_is_taken_where_a_key_is_given(
    own: Path, tmp_path: Path, key_file: Path
) -> None:
    """Signed, verified, taken with its signature; a changed or unsigned one is not."""
    name = "itl.example/tpm-bundle"
    unsigned = tmp_path / "unsigned"
    run("import", own, "--dir", unsigned, "--yes")
    signed = run("sign", own, "--key", key_file, "--name", name)
    assert signed.exit_code == 0
    (tmp_path / "vkeys").write_text(signed.stdout)
    keys = ("--vkeys-file", tmp_path / "vkeys")
    assert f"signed by      {name}" in run("verify", own, *keys).stdout
    assert "no key was given" in run("verify", own).stdout
    (tmp_path / "t").mkdir()
    assert run("update", own, "--dir", tmp_path / "t", "--yes", *keys).exit_code == 0
    assert run("verify", tmp_path / "t", "--vkey", signed.stdout.strip()).exit_code == 0
    assert run("update", unsigned, "--dir", tmp_path / "u", "--yes", *keys).exit_code == 2
    assert not (tmp_path / "u").exists()
    assert "is missing" in run("verify", unsigned, *keys).stdout
    (tmp_path / "empty").write_text("\n")
    assert "has no key" in run("verify", own, "--vkeys-file", tmp_path / "empty").stderr


def test_what_cannot_be_signed_is_told(own: Path, tmp_path: Path, key_file: Path) -> None:
    """A folder without a manifest, a name that no key may have."""
    (tmp_path / "seed" / "NTC").mkdir(parents=True)
    assert "no manifest" in run("sign", tmp_path / "seed", "--key", key_file, "--name", "x").stderr
    assert run("sign", own, "--key", key_file, "--name", "a b").exit_code == 2


def test_an_edition_that_cannot_be_used_is_not_taken(own: Path, tmp_path: Path) -> None:
    """It is read as the service would before anything is replaced."""
    bad = tmp_path / "bad"
    contents = read_directory(own)
    ders = {entry.sha256: der for entry, der in contents.certificates}
    write_directory(bad, replace(contents.manifest, version=9), ders)
    next(bad.rglob("*.der")).write_bytes(b"x")
    assert run("update", bad, "--dir", own, "--yes").exit_code == 2
    assert read_directory(own).manifest.version == 1


def test_nothing_here_lets_a_certificate_write_to_the_terminal(tmp_path: Path) -> None:
    """Subjects are a stranger's words: import, list, verify and diff show them without control characters."""
    evil = CertificateAuthority(
        "x", seed=7, options=CAOptions(attributes=[("2.5.4.3", "a\x1b]0;owned\x07\x1b[2J\u202eb")])
    )
    (tmp_path / "evil.der").write_bytes(evil.certificate)
    own = tmp_path / "own"
    outputs = [run("import", tmp_path / "evil.der", "--vendor", "NTC", "--dir", own, "--yes")]
    outputs += [run("list", "--dir", own), run("list", "--dir", own, "-o", "wide"), run("verify", own)]
    outputs += [run("diff", "shipped", own), run("verify", ek_file(tmp_path, evil), "--dir", own)]
    for done in outputs:
        assert not [c for c in done.output if (ord(c) < 32 and c not in "\r\n") or c == "\u202e"], done.output
