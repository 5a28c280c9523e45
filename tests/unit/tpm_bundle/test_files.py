"""Reading bundles: in either form every file is held against its pin, and what is wrong is named."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation import tpm_bundle
from attestation.endorsements.bundle import Manifest, Role, TrustBundle, entry_of
from attestation.errors import BundleInvalid
from attestation.tpm_bundle import bundle_of, load, load_directory, load_shipped, read_directory
from attestation.tpm_bundle.pem import certificates
from attestation.tpm_bundle.writing import write_directory
from attestation_testing.certificates import CertificateAuthority

ROOT = CertificateAuthority("NTC root", seed=1)
ISSUER = CertificateAuthority("NTC issuer", seed=2, parent=ROOT)
AT = datetime(2026, 11, 21, tzinfo=UTC)
SHIPPED = Path(tpm_bundle.__file__).parent


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


def sha(der: bytes) -> str:
    return hashlib.sha256(der).hexdigest()


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """A bundle of a root and an issuer, in the layout."""
    ders = [ROOT.certificate, ISSUER.certificate]
    entries = [
        entry_of(der, role=None, vendor="NTC", retrieved=date(2026, 11, 21), evidence="made") for der in ders
    ]
    target = tmp_path / "bundle"
    write_directory(
        target, Manifest(version=1, created=AT, entries=tuple(entries)), {sha(der): der for der in ders}
    )
    return target


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    """The same in the seed form."""
    root = tmp_path / "seed"
    (root / "NTC").mkdir(parents=True)
    (root / "NTC" / "root.pem").write_bytes(pem(ROOT.certificate))
    (root / "NTC" / "issuer.cer").write_bytes(ISSUER.certificate)
    return root


def hashes(bundle: TrustBundle) -> tuple[list[str], list[str]]:
    return [h.entry.sha256 for h in bundle.anchors], [h.entry.sha256 for h in bundle.intermediates]


def test_both_forms_say_the_same(layout: Path, seed: Path) -> None:
    """A self-issued certificate is an anchor, another an intermediate; a manifest says so itself."""
    wanted = ([sha(ROOT.certificate)], [sha(ISSUER.certificate)])
    assert hashes(load_directory(layout)) == hashes(load_directory(seed)) == wanted
    assert (
        load_directory(layout).sha256 == hashlib.sha256((layout / "manifest.json").read_bytes()).hexdigest()
    )


def test_the_digest_of_the_seed_form_names_what_decides(seed: Path) -> None:
    """Names of files and their dates decide nothing: two replicas with the same certificates agree."""
    before = load_directory(seed).sha256
    (seed / "NTC" / "root.pem").rename(seed / "NTC" / "other.crt")
    os.utime(seed / "NTC" / "issuer.cer", (1, 1))
    assert load_directory(seed).sha256 == before
    (seed / "NTC").rename(seed / "STM")
    assert load_directory(seed).sha256 != before


def test_a_role_may_be_a_folder(seed: Path) -> None:
    """`anchors/NTC/` makes an anchor of one that is not self-issued."""
    (seed / "anchors").mkdir()
    (seed / "NTC").rename(seed / "anchors" / "ntc")
    bundle = load_directory(seed)
    assert len(bundle.anchors) == 2
    assert {h.entry.vendor for h in bundle.held} == {"NTC"}


def test_what_lies_beside_is_passed_over(seed: Path) -> None:
    """Hidden files, as Kubernetes puts them into mounted folders, and remarks for people."""
    for name in (".hidden", "README.md", "NOTICE", "LICENSE.txt", "NTC/.swp", "NTC/readme"):
        (seed / name).write_text("x")
    (seed / "..data").mkdir()
    assert len(load_directory(seed).held) == 2


def test_links_to_files_and_folders_are_read(seed: Path, tmp_path: Path) -> None:
    """A mounted ConfigMap is made of links."""
    real = tmp_path / "real"
    shutil.move(seed, real)
    seed.mkdir()
    (seed / "NTC").symlink_to(real / "NTC")
    assert len(load_directory(seed).held) == 2


# ---------------------------------------------------------------- what is wrong in the seed form


def _loose(root: Path) -> None:
    (root / "root.pem").write_bytes(pem(ROOT.certificate))


def _unknown_vendor(root: Path) -> None:
    (root / "NTC").rename(root / "ACME")


def _other_suffix(root: Path) -> None:
    (root / "NTC" / "root.pem").rename(root / "NTC" / "root.txt")


def _deeper(root: Path) -> None:
    (root / "NTC" / "old.pem").mkdir()


def _two_in_one(root: Path) -> None:
    (root / "NTC" / "root.pem").write_bytes(pem(ROOT.certificate) + pem(ISSUER.certificate))


def _twice(root: Path) -> None:
    (root / "NTC" / "again.der").write_bytes(ROOT.certificate)


def _junk(root: Path) -> None:
    (root / "NTC" / "root.pem").write_bytes(b"junk")


def _no_ca(root: Path) -> None:
    (root / "NTC" / "root.pem").write_bytes(CertificateAuthority("x", seed=3, ca=False).certificate)


def _long(root: Path) -> None:
    (root / "NTC" / "root.pem").write_bytes(pem(ROOT.certificate) + b" " * 40_000)


@pytest.mark.threat("T62")
@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (_loose, r"root\.pem: a certificate stands in a folder named by its manufacturer"),
        (_unknown_vendor, r"ACME/issuer\.cer: 'ACME' is not in the TCG vendor registry"),
        (_other_suffix, r"NTC/root\.txt: not a file"),
        (_deeper, r"NTC/old\.pem: not a file"),
        (_two_in_one, r"NTC/root\.pem: holds 2 certificates"),
        (_twice, r"NTC/root\.pem: the same certificate as another file"),
        (_junk, r"NTC/root\.pem: neither a DER certificate nor PEM"),
        (_no_ca, r"NTC/root\.pem: not the certificate of a CA"),
        (_long, r"NTC/root\.pem: longer than"),
    ],
)
def test_a_file_out_of_place_is_named(seed: Path, damage: Callable[[Path], None], match: str) -> None:
    """Nothing is passed over in silence: who thinks to have added an anchor has, or is told."""
    damage(seed)
    with pytest.raises(BundleInvalid, match=match):
        load_directory(seed)


# ---------------------------------------------------------------- what is wrong in the layout

ANCHOR = f"anchors/NTC/{sha(ROOT.certificate)[:16]}.der"
INTERMEDIATE = f"intermediates/NTC/{sha(ISSUER.certificate)[:16]}.der"


def _changed(root: Path) -> None:
    data = bytearray((root / ANCHOR).read_bytes())
    data[100] ^= 1
    (root / ANCHOR).write_bytes(data)


def _missing(root: Path) -> None:
    (root / INTERMEDIATE).unlink()


def _extra(root: Path) -> None:
    (root / "anchors/NTC/more.der").write_bytes(CertificateAuthority("x", seed=4).certificate)


def _swapped(root: Path) -> None:
    first, second = (root / ANCHOR).read_bytes(), (root / INTERMEDIATE).read_bytes()
    (root / ANCHOR).write_bytes(second)
    (root / INTERMEDIATE).write_bytes(first)


def _moved(root: Path) -> None:
    (root / "anchors" / "STM").mkdir()
    (root / ANCHOR).rename(root / "anchors" / "STM" / Path(ANCHOR).name)


def _edited(root: Path) -> None:
    path = root / "manifest.json"
    path.write_text(path.read_text().replace('"intermediate"', '"root"'))


def _grown(root: Path) -> None:
    (root / ANCHOR).write_bytes(ROOT.certificate + bytes(9000))


def _spki(root: Path) -> None:
    document = json.loads((root / "manifest.json").read_bytes())
    document["entries"][0]["spki_sha256"] = "00" * 32
    (root / "manifest.json").write_text(json.dumps(document))


@pytest.mark.threat("T62")
@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (_changed, rf"{ANCHOR}: its SHA-256 is"),
        (_missing, rf"{INTERMEDIATE}: is missing"),
        (_extra, r"anchors/NTC/more\.der: the manifest does not name it"),
        (_swapped, r"its SHA-256 is"),
        (_moved, rf"{ANCHOR}: is missing"),
        (_edited, r"manifest\.json: entry \d: role"),
        (_grown, rf"{ANCHOR}: longer than"),
        (_spki, r"its key is not the one"),
    ],
)
def test_a_file_that_differs_is_named(layout: Path, damage: Callable[[Path], None], match: str) -> None:
    """Changed, missing, added, exchanged: the file and the rule are told, and nothing is loaded."""
    damage(layout)
    with pytest.raises(BundleInvalid, match=match):
        load_directory(layout)


@pytest.mark.threat("T62")
@given(st.integers(min_value=0), st.integers(0, 7))
def test_no_flipped_bit_is_loaded(where: int, bit: int) -> None:
    """Any bit of any pinned file changed is refused by its pin, before anything parses it."""
    file = sorted(SHIPPED.rglob("*.der"))[where % 25]
    data = bytearray(file.read_bytes())
    data[where % len(data)] ^= 1 << bit
    held = load_shipped().get(sha(file.read_bytes()))
    assert held is not None
    with pytest.raises(BundleInvalid, match="not the certificate that its entry pins"):
        TrustBundle([(held.entry, bytes(data))], "00" * 32)


# ---------------------------------------------------------------- archives


def test_an_archive_is_read_like_a_folder(layout: Path, tmp_path: Path) -> None:
    """A zip of the layout, at its root or in a folder of it, as a wheel has it."""
    for prefix in ("", "attestation/tpm_bundle/"):
        archive = tmp_path / "bundle.zip"
        with zipfile.ZipFile(archive, "w") as made:
            for file in layout.rglob("*"):
                if file.is_file():
                    made.write(file, prefix + str(file.relative_to(layout)))
        assert load_directory(archive).sha256 == load_directory(layout).sha256


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    """Nothing there, a file of something else, an archive with none or two bundles, one cut in the middle."""
    with pytest.raises(BundleInvalid, match="missing"):
        load_directory(tmp_path / "missing")
    text = tmp_path / "text"
    text.write_text("x")
    with pytest.raises(BundleInvalid, match="neither a folder nor a zip archive"):
        load_directory(text)
    archive = tmp_path / "two.zip"
    for names in ((), ("a/manifest.json", "b/manifest.json")):
        with zipfile.ZipFile(archive, "w") as made:
            for name in names:
                made.writestr(name, "{}")
        with pytest.raises(BundleInvalid, match=f"holds {len(names)} files"):
            load_directory(archive)
    data = archive.read_bytes()
    archive.write_bytes(b"x" * 10 + data[60:])
    with pytest.raises(BundleInvalid):
        load_directory(archive)


def test_a_folder_that_may_not_be_read_is_told(seed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system ends as one of ours, with the folder."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BundleInvalid, match="Permission denied"):
        load_directory(seed)


def test_a_fifo_does_not_hold_up_the_start(seed: Path) -> None:
    """Only files are opened."""
    os.mkfifo(seed / "NTC" / "pipe.pem")
    with pytest.raises(BundleInvalid, match="not a file"):
        load_directory(seed)


# ---------------------------------------------------------------- over what is shipped


def test_a_folder_of_one_s_own_is_read_over_what_is_shipped(layout: Path) -> None:
    """`ITL_TPM_CA_BUNDLE_DIR` adds; without it the shipped bundle is used as it is."""
    assert load(None) is load_shipped()
    over = load(layout)
    assert len(over.anchors) == len(load_shipped().anchors) + 1
    assert over.sha256 not in (load_shipped().sha256, load_directory(layout).sha256)


def test_an_empty_folder_changes_nothing(tmp_path: Path) -> None:
    """A folder that is not filled yet is no fault."""
    assert load(tmp_path).sha256 == load_shipped().sha256


# ---------------------------------------------------------------- writing


def test_a_folder_is_replaced_whole(layout: Path) -> None:
    """Nothing of the former one stays, and no working copies are left beside it."""
    contents = read_directory(layout)
    only = contents.certificates[:1]
    write_directory(
        layout,
        Manifest(version=2, created=AT, entries=tuple(e for e, _ in only)),
        {entry.sha256: der for entry, der in only},
    )
    assert len(read_directory(layout).certificates) == 1
    assert [path.name for path in layout.parent.iterdir()] == [layout.name]
    assert layout.stat().st_mode & 0o777 == 0o755


@pytest.mark.threat("T62")
def test_what_cannot_be_read_again_replaces_nothing(layout: Path) -> None:
    """A manifest that does not fit its files is found before the former folder is touched."""
    before = (layout / "manifest.json").read_bytes()
    entry, der = read_directory(layout).certificates[0]
    with pytest.raises(BundleInvalid, match="its SHA-256 is"):
        write_directory(
            layout, Manifest(version=2, created=AT, entries=(entry,)), {entry.sha256: der + b"\0"}
        )
    assert (layout / "manifest.json").read_bytes() == before
    assert [path.name for path in layout.parent.iterdir()] == [layout.name]


def test_where_nothing_may_be_written_it_is_told(tmp_path: Path) -> None:
    """A place that is a file, or below one."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleInvalid, match="file"):
        write_directory(tmp_path / "file" / "bundle", Manifest(version=1, created=AT, entries=()), {})


# ---------------------------------------------------------------- PEM


def test_pem_with_text_around_its_blocks() -> None:
    """Collections of CAs have comments; the order is kept, and every label of certificates is known."""
    trusted = pem(ISSUER.certificate).replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE")
    data = b"# a root\n" + pem(ROOT.certificate) + b"\n# an issuer\r\n" + trusted.replace(b"\n", b"\r\n")
    assert certificates(data, "x") == [ROOT.certificate, ISSUER.certificate]
    assert certificates(ROOT.certificate, "x") == [ROOT.certificate]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        pem(ROOT.certificate)[:-4],
        pem(ROOT.certificate) + b"-----BEGIN CERTIFICATE-----\n",
        pem(ROOT.certificate).replace(b"CERTIFICATE", b"PRIVATE KEY"),
        pem(ROOT.certificate) + b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
    ],
)
def test_no_block_is_passed_over(data: bytes) -> None:
    """A block that cannot be read, or is something else, is told; a private key would be a mistake worth knowing."""
    with pytest.raises(BundleInvalid):
        certificates(data, "x")


@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from([pem(ROOT.certificate), b"\n", b"-----BEGIN "])).map(b"".join)
)
def test_certificates_fail_in_one_way_only(data: bytes) -> None:
    """Whatever stands in a file, a caller sees certificates or BundleInvalid."""
    try:
        found = certificates(data, "x")
    except BundleInvalid:
        return
    assert found


def test_the_role_words_are_folders() -> None:
    """The names of the folders are those of the roles."""
    assert {f"{role}s" for role in Role} == {"anchors", "intermediates"}
    assert bundle_of(read_directory(SHIPPED)).sha256 == load_shipped().sha256
