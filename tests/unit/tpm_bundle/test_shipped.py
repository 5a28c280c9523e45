"""The certificates that are shipped, those of the vectors, and the zoo: who vouches for whom."""

from __future__ import annotations

import functools
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from attestation.endorsements.bundle import Manifest, Role, Status, TrustBundle, entry_of, format_manifest
from attestation.endorsements.path import Path as FoundPath
from attestation.endorsements.path import PathFailure
from attestation.endorsements.vendors import SIMULATOR
from attestation.evidence import ek_certificate
from attestation.tpm_bundle import bundle_of, load_directory, load_shipped, read_shipped
from attestation_testing.ek_zoo import Zoo, ZooEntry
from tests.vectors import SHARED
from tools import tpm_bundle as tool

VENDOR_CA = SHARED / "vendor-ca"
AT = datetime(2026, 11, 21, tzinfo=UTC)

needs_vendor_ca = pytest.mark.skipif(
    not (VENDOR_CA / "manifest.json").exists(),
    reason="the manufacturers' certificates are not beside the project (../shared/vectors/vendor-ca)",
)


def test_what_is_shipped_holds_together() -> None:
    """Every intermediate leads to an anchor, nothing is expired or a simulator's, all of it has reasons."""
    bundle = load_shipped()
    assert len(bundle.anchors) == 24
    assert len(bundle.held) == 25
    for held in bundle.held:
        assert held.entry.vendor != SIMULATOR
        assert held.entry.status is Status.ACTIVE
        assert held.certificate.not_before <= AT <= held.certificate.not_after
        assert "Debian" in held.entry.evidence
        assert held.entry.subject == held.certificate.subject
        assert held.entry.licence
    for held in bundle.intermediates:
        assert isinstance(bundle.chain(held.entry.sha256, at=AT), FoundPath)


def test_loading_costs_little() -> None:
    """Keys are made when a path first needs them, so a start reads bytes only; and it reads them once."""
    bundle = bundle_of(read_shipped())
    assert not [held for held in bundle.held if held.certificate._loaded]
    assert load_shipped() is load_shipped()


def test_the_manifest_is_as_the_tool_writes_it() -> None:
    """The manifest is one canonical text of the certificates; editing it by hand would show."""
    contents = read_shipped()
    assert contents.document == format_manifest(contents.manifest)
    for entry, der in contents.certificates:
        again = entry_of(
            der,
            role=entry.role,
            vendor=entry.vendor,
            retrieved=entry.retrieved,
            evidence=entry.evidence,
            sources=entry.sources,
            licence=entry.licence,
            template=entry.template,
        )
        assert again == entry


def test_notice_names_every_file() -> None:
    """NOTICE, in the project and in the wheel, is what the tool writes: hash, subject, where found, on what terms."""
    text = tool.notice(read_shipped().manifest.entries)
    for path in tool.NOTICES:
        assert path.read_text(encoding="utf-8") == text, path
    for entry in read_shipped().manifest.entries:
        assert entry.sha256 in text
    assert "Copyright: Gonzalo" in text
    assert "License: Apache-2.0" in text


def test_the_docs_tell_what_is_shipped() -> None:
    """docs/operate/trust-bundle.md has a row for each manufacturer with the number of its anchors."""
    page = (tool.ROOT / "docs/operate/trust-bundle.md").read_text(encoding="utf-8")
    bundle = load_shipped()
    for vendor in {h.entry.vendor for h in bundle.held}:
        count = sum(h.entry.vendor == vendor for h in bundle.anchors)
        assert f"| {vendor} | " in page
        row = next(line for line in page.splitlines() if line.startswith(f"| {vendor} | "))
        assert row.split("|")[3].strip().split(":")[0] == str(count), row


def test_the_tool_adds_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate is added once: file, entry, next version and NOTICE; what is there already keeps its entry."""
    package = tmp_path / "tpm_bundle"
    shutil.copytree(tool.PACKAGE, package, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    notices = (tmp_path / "NOTICE", package / "NOTICE")
    monkeypatch.setattr(tool, "PACKAGE", package)
    monkeypatch.setattr(tool, "NOTICES", notices)
    ca = Zoo().vendors["NSG"].held[0]
    (tmp_path / "NSG").mkdir()
    (tmp_path / "new.pem").write_bytes(ca.der)
    (tmp_path / "folder" / "NSG").mkdir(parents=True)
    (tmp_path / "folder" / "NSG" / "same.der").write_bytes(ca.der)
    words = [
        "add",
        str(tmp_path / "new.pem"),
        "--vendor",
        "NSG",
        "--evidence",
        "made by a test",
        "--role",
        "anchor",
    ]
    before = tool.read().manifest.version
    tool.main(words)
    after = tool.read()
    assert after.manifest.version == before + 1
    assert [e.evidence for e, _ in after.certificates if e.vendor == "NSG"] == ["made by a test"]
    assert notices[0].read_text() == notices[1].read_text()
    tool.main(words)
    tool.main(["add", str(tmp_path / "folder"), "--evidence", "again"])
    tool.main(["notice"])
    tool.main(["check"])
    assert tool.read().manifest == after.manifest
    (package / after.certificates[0][0].path).unlink()
    with pytest.raises(SystemExit):
        tool.main(["check"])


# ---------------------------------------------------------------- the vectors, in place


@pytest.fixture(scope="module")
def vectors() -> list[dict[str, Any]]:
    """The manifest of the manufacturers' certificates beside the project."""
    found: list[dict[str, Any]] = json.loads((VENDOR_CA / "manifest.json").read_bytes())
    return found


@pytest.fixture(scope="module")
def overlay(vectors: list[dict[str, Any]]) -> TrustBundle:
    """All of them over what is shipped."""
    return load_shipped().with_overlay(
        (
            entry_of(
                der,
                role=Role(one["role"]),
                vendor=one["vendor"],
                retrieved=AT.date(),
                evidence="vectors",
                sources=(one["source_url"],),
            ),
            der,
        )
        for one in vectors
        for der in [(VENDOR_CA / one["file"]).read_bytes()]
    )


@needs_vendor_ca
def test_every_published_certificate_loads_and_chains(
    overlay: TrustBundle, vectors: list[dict[str, Any]]
) -> None:
    """26 anchors, and each of the 143 intermediates leads to the anchor that it should, at the depth that it should."""
    expected = json.loads((VENDOR_CA / "expected.json").read_bytes())["chains"]
    by_file = {one["file"]: one for one in vectors}
    anchors = {one["sha256"] for one in vectors if one["role"] == "anchor"}
    intermediates = [one for one in vectors if one["role"] == "intermediate"]
    assert (len(anchors), len(intermediates)) == (26, 143)
    assert anchors <= {h.entry.sha256 for h in overlay.anchors}
    for one in intermediates:
        found = overlay.chain(one["sha256"], at=AT)
        assert isinstance(found, FoundPath), (one["file"], found)
        wanted = expected[one["file"]]
        held = overlay.get(by_file[wanted["anchor"]]["sha256"])
        assert held is not None
        # AMD published the same keys twice: either certificate of the anchor's key will do.
        assert found.anchor.spki_sha256 == held.certificate.spki_sha256, one["file"]
        assert len(found.certificates) - 1 == wanted["depth"], one["file"]
        spki = overlay.get(one["sha256"])
        assert spki is not None
        assert spki.entry.spki_sha256 == one["spki_sha256"]


@needs_vendor_ca
def test_what_is_shipped_agrees_with_the_vectors(vectors: list[dict[str, Any]]) -> None:
    """Where both know a certificate or its key, they agree on its role and its manufacturer."""
    by_hash = {one["sha256"]: one for one in vectors}
    by_key = {one["spki_sha256"]: one for one in vectors}
    same, same_key = 0, 0
    for held in load_shipped().held:
        other = by_hash.get(held.entry.sha256) or by_key.get(held.entry.spki_sha256)
        same += held.entry.sha256 in by_hash
        same_key += held.entry.spki_sha256 in by_key
        if other is not None:
            assert (other["role"], other["vendor"]) == (held.entry.role, held.entry.vendor)
    assert (same, same_key) == (10, 12)


@needs_vendor_ca
def test_the_vectors_are_read_in_place_in_the_seed_form(
    tmp_path: Path, vectors: list[dict[str, Any]]
) -> None:
    """A folder of the operator with links to them is an overlay; three anchors need their role said."""
    for one in vectors:
        place = tmp_path / ("anchors" if one["role"] == "anchor" else "intermediates") / one["vendor"]
        place.mkdir(parents=True, exist_ok=True)
        (place / Path(one["file"]).name).symlink_to(VENDOR_CA / one["file"])
    bundle = load_directory(tmp_path)
    assert (len(bundle.anchors), len(bundle.intermediates)) == (26, 143)


@needs_vendor_ca
def test_without_the_anchors_nothing_chains(vectors: list[dict[str, Any]]) -> None:
    """Intermediates vouch for one another only under an anchor."""
    entries = [
        (entry_of(der, role=Role.INTERMEDIATE, vendor=one["vendor"], retrieved=AT.date(), evidence="x"), der)
        for one in vectors
        for der in [(VENDOR_CA / one["file"]).read_bytes()]
    ]
    bundle = TrustBundle(entries, "00" * 32)
    assert all(isinstance(bundle.chain(h.entry.sha256, at=AT), PathFailure) for h in bundle.held)


# ---------------------------------------------------------------- the zoo

zoo = functools.cache(Zoo)
"""Its certificates, made where the first test needs them."""


def zoo_bundle(sha1_allowed: tuple[str, ...] = ()) -> TrustBundle:
    """Return the CAs that a verifier of the zoo holds."""
    entries = [
        (entry_of(ca.der, role=Role(ca.role), vendor=ca.vendor, retrieved=AT.date(), evidence="zoo"), ca.der)
        for ca in zoo().held
    ]
    return TrustBundle(entries, "00" * 32, sha1_allowed=sha1_allowed)


def test_the_zoo_s_certificates_are_judged_as_they_should_be() -> None:
    """What must be accepted chains to an anchor of its vendor; what a path or a vendor must refuse is refused here."""
    bundle = zoo_bundle()

    def judge(entry: ZooEntry) -> bool:
        parsed = ek_certificate.parse(entry.certificate)
        held = zoo_bundle(entry.sha1_allowed) if entry.sha1_allowed else bundle
        verdict = held.verify(parsed.der, entry.chain, at=AT)
        assert not verdict.ok or verdict.vendor == entry.vendor, entry.name
        return verdict.ok

    # The path does not depend on the size of an EK; `tests/unit/endorsements` walks all of them.
    for entry in zoo().entries(templates={"L-1", "L-2"}):
        if entry.accepted:
            assert judge(entry), entry.name
        elif entry.refused_by in ("path", "vendor"):
            assert not judge(entry), entry.name


def test_a_manifest_of_the_zoo_is_written_and_read() -> None:
    """Certificates of every shape make entries that keep the rules of the format."""
    entries = tuple(
        entry_of(ca.der, role=Role(ca.role), vendor=ca.vendor, retrieved=AT.date(), evidence="zoo")
        for ca in zoo().held
    )
    assert format_manifest(Manifest(version=1, created=AT, entries=entries))
