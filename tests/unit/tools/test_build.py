"""`./dev build`: the same bytes twice, and in them what somebody needs who has nothing else of us."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from trove_classifiers import classifiers

from tests.fixtures import judges
from tools import build, locks, sbom
from tools.wheel_hook import COMPLETIONS

ROOT = build.ROOT
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
SPDX = "Apache-2.0"


def _build(root: Path, folder: Path, umask: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    line = f'umask {umask}; exec "$@"'
    words = ["sh", "-c", line, "sh", sys.executable, str(root / "tools/build.py"), str(folder)]
    return subprocess.Popen(words, env=os.environ | environment, stdout=subprocess.DEVNULL, cwd=folder.parent)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two builds of the same files: here, and elsewhere by somebody whose computer differs in all else."""
    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    copy = there / "another place"
    kept = shutil.ignore_patterns("__pycache__", "*.egg-info", "dist", "build")
    for name in ("tools", "src", "docs"):  # another order than that of the alphabet
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=kept)
    for name in ("requirements.lock", "pyproject.toml", "NOTICE", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    for path in copy.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
            path.chmod(0o700 if path.is_dir() else 0o600)
    other = {
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C",
        "COLUMNS": "40",
        "SOURCE_DATE_EPOCH": "1",
        "ITL_X": "1",
    }
    running = [_build(ROOT, here / "dist", "022", {}), _build(copy, there / "dist", "077", other)]
    assert [each.wait(timeout=300) for each in running] == [0, 0]
    return here / "dist", there / "dist"


def _wheel(folder: Path, member: str) -> zipfile.ZipFile:
    (path,) = folder.glob(f"itl_attestation_{member}-*.whl")
    return zipfile.ZipFile(path)


def _about(wheel: zipfile.ZipFile) -> Message:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    return BytesParser().parsebytes(wheel.read(name))


@pytest.mark.threat("T33")
def test_two_builds_are_of_the_same_bytes(built: tuple[Path, Path]) -> None:
    """Another folder, umask, time zone, locale, width, order and age of files change nothing; nor does a variable."""
    here, there = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in built)
    assert {name for name in here if here[name] != there.get(name)} == set()
    assert here.keys() == there.keys()
    assert len(here) == len(build.MEMBERS) + len(locks.INSTALLABLES) + 1
    sums = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=built[0], check=False, capture_output=True
    )
    assert sums.returncode == 0, sums.stderr
    assert len(sums.stdout.splitlines()) == len(here) - 1


def test_every_member_is_built() -> None:
    """They are listed by name; a new one must be added there."""
    assert set(build.MEMBERS) == {path.parent.name for path in ROOT.glob("src/*/pyproject.toml")}


@pytest.mark.parametrize("member", build.MEMBERS)
def test_a_wheel_carries_its_licence_and_who_made_it(member: str, built: tuple[Path, Path]) -> None:
    """Whoever has only the wheel may know what they may do with it, whom to name, and what it is for."""
    wheel = _wheel(built[0], member)
    names, about = wheel.namelist(), _about(wheel)
    texts = {Path(n).name: wheel.read(n) for n in names if ".dist-info/licenses/" in n}
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_bytes()
    # What the certificates of the manufacturers demand goes where they go.
    carries = any("tpm_bundle/anchors/" in name for name in names)
    assert carries == (member == "sdk")
    # What others demand of their files that the dashboard has goes with it.
    notice = {"sdk": ROOT / "NOTICE", "web": ROOT / "src/web/NOTICE"}.get(member)
    assert texts.get("NOTICE") == (notice and notice.read_bytes())
    assert about["Author"] == "the ITL attestation contributors"
    assert about["License-Expression"] == SPDX
    assert about["Requires-Python"] == ">=3.11"
    assert about["Summary"]
    # What its README, which is all of us that an index shows, refers to is in it.
    page = str(about.get_payload())
    assert page == (ROOT / "src" / member / "README.md").read_text(encoding="utf-8")
    for place in re.findall(r"share/doc/[\w./-]*\w", page):
        assert any(f".data/data/{place}" in name for name in names), place
    said = about.get_all("Classifier") or []
    assert {"Typing :: Typed", "Topic :: Security"} <= set(said) <= set(classifiers)


def test_a_program_brings_its_manual_and_its_completion(built: tuple[Path, Path]) -> None:
    """Where `man` and the shells look, below the prefix; no place of the build is in them."""
    for member, programs in {
        "service": ["attestation-service"],
        "agent": ["attestation-agent", "itl-tpm-register"],
        "cli": ["attestation"],
        "operator": ["attestation-operator"],
        "web": ["attestation-web"],
    }.items():
        wheel = _wheel(built[0], member)
        shared = {
            n.partition(".data/data/")[2]: wheel.read(n).decode()
            for n in wheel.namelist()
            if ".data/data/share/" in n and not n.endswith(".png")
        }
        for program in programs:
            page = shared[f"share/man/man1/{program}.1"]
            assert page.startswith(f".TH {program.upper().replace('-', chr(92) + '-')} 1 ")
            assert "site-packages" not in page
            for place in COMPLETIONS.values():
                assert program in shared[place.format(program)]
            # Others find it as it is; the command line asks its own program.
            assert ("complete -o default" in shared[COMPLETIONS["bash"].format(program)]) == (member != "cli")
        for place, text in shared.items():
            assert str(ROOT) not in text, place
            assert not re.search(r"(?<!\w)/(tmp|root|home/\w+/\.venv)/", text) or place.endswith(".md"), place
    cli = {n.partition(".data/data/")[2] for n in _wheel(built[0], "cli").namelist()}
    assert "share/man/man1/attestation-machine-approve.1" in cli


ALONE = """
import importlib, os, pkgutil, sys
sys.path[:0] = sys.argv[1:]
before = dict(os.environ)
for name in ("attestation", PACKAGE):
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
        if ".migrations." in module.name or module.name.endswith("__main__"):
            continue  # Alembic imports the ones, and who starts a package the others
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as e:
            if e.name.partition(".")[0] not in (OWN_EXTRAS if name == PACKAGE else EXTRAS):
                raise
assert dict(os.environ) == before
"""
EXTRAS = {"alembic", "jsonschema", "pkcs11", "psycopg", "ruamel", "sqlalchemy"}
"""What the SDK needs for those who ask for an extra of it."""
OWN_EXTRAS = {
    "agent": {"h2"},
    "extensions": {"attestation_cli", "click", "grpc"},
    "operator": {"attestation_cli", "click"},
    "service": {"botocore", "google", "opentelemetry"},
}
"""What modules of a member need that only the command line imports, or those who asked for an extra."""


@pytest.mark.parametrize("member", locks.INSTALLABLES)
def test_a_wheel_alone_is_enough(member: str, built: tuple[Path, Path], tmp_path: Path) -> None:
    """With the SDK's and what its lock names, and nothing else, all of it is imported, without an environment."""
    place = tmp_path / "site"
    place.mkdir()
    for each in ("sdk", member):
        with _wheel(built[0], each) as wheel:
            wheel.extractall(place)
    for name in locks.blocks_of((locks.LOCKS / f"{member}.lock").read_text(encoding="utf-8")):
        _link(name, place)
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            (
                f"PACKAGE, EXTRAS = 'attestation_{member}', {EXTRAS}\n"
                f"OWN_EXTRAS = {OWN_EXTRAS.get(member, set())}\n{ALONE}"
            ),
            place,
        ],
        env={},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _link(name: str, place: Path) -> None:
    """Show a distribution of this environment in *place*, where it is installed at all."""
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return  # for another system
    for top in {Path(str(file)).parts[0] for file in files} - {".."}:
        source = Path(str(importlib.metadata.distribution(name).locate_file(top)))
        if not (place / top).exists() and source.exists():
            (place / top).symlink_to(source)


@pytest.fixture(scope="module")
def schema() -> jsonschema_rs.Draft7Validator:
    """The official schema, with the lists of SPDX and of signatures to which it refers."""
    folder = judges.install() / "cyclonedx/schema/_res"

    def named(address: str) -> Any:
        """Return what the schema refers to: it lies beside it, under the last part of its address."""
        return json.loads((folder / address.rpartition("/")[2]).read_bytes())

    return jsonschema_rs.Draft7Validator(
        named("bom-1.6.SNAPSHOT.schema.json"), retriever=named, validate_formats=True
    )


@pytest.mark.parametrize("member", locks.INSTALLABLES)
def test_a_bill_is_valid_and_complete(
    member: str, built: tuple[Path, Path], schema: jsonschema_rs.Draft7Validator
) -> None:
    """By CycloneDX's schema; it names what the locks name, with their hashes; each reference leads somewhere."""
    text = (built[0] / f"itl-attestation-{member}.cdx.json").read_text(encoding="utf-8")
    said = json.loads(text)
    assert [str(error) for error in schema.iter_errors(said)] == []
    assert "://" not in text.replace('"$schema"', "")
    locked = {
        name: set(re.findall(r"sha256:([0-9a-f]{64})", block))
        for path in locks.LOCKS.glob(f"{member}*.lock")
        for name, block in locks.blocks_of(path.read_text(encoding="utf-8")).items()
    }
    (sdk, *others), ours = said["components"], said["metadata"]["component"]
    assert {each["name"]: {h["content"] for h in each["hashes"]} for each in others} == locked
    for each, wheel in ((sdk, "sdk"), (ours, member)):
        (digest,) = each["hashes"]
        assert f"{digest['content']}  itl_attestation_{wheel}-" in (built[0] / "SHA256SUMS").read_text()
    base = locks.blocks_of((locks.LOCKS / f"{member}.lock").read_text(encoding="utf-8"))
    assert {each["name"] for each in others if each["scope"] == "required"} == set(base)
    known = {each["bom-ref"] for each in (ours, *said["components"])}
    assert {each["ref"] for each in said["dependencies"]} == known
    assert {ref for each in said["dependencies"] for ref in each["dependsOn"]} <= known


def test_the_schema_refuses_what_is_wrong(
    built: tuple[Path, Path], schema: jsonschema_rs.Draft7Validator
) -> None:
    """The judge is awake, and so are the lists to which it refers."""
    said = json.loads((built[0] / "itl-attestation-agent.cdx.json").read_bytes())
    said["components"][0]["licenses"] = [{"license": {"id": "No-Such-Licence"}}]
    assert not schema.is_valid(said)


def test_licences_are_those_that_the_distributions_say(schema: jsonschema_rs.Draft7Validator) -> None:
    """Word for word where they speak SPDX; each has a row, no row is of nobody, and SPDX knows each of its words."""
    names = {n for path in locks.LOCKS.iterdir() for n in locks.blocks_of(path.read_text(encoding="utf-8"))}
    assert set(sbom.LICENCES) == names
    for name, licence in sbom.LICENCES.items():
        try:
            about = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system
        if "License-Expression" in about:
            assert about["License-Expression"] == licence, name
            continue
        for classifier in about.get_all("Classifier") or []:
            assert _SPELT.get(classifier.rpartition(" :: ")[2], "") in licence, name
    listed = json.loads((judges.install() / "cyclonedx/schema/_res/spdx.SNAPSHOT.schema.json").read_bytes())[
        "enum"
    ]
    words = {word for licence in sbom.LICENCES.values() for word in re.split(r" (?:OR|AND) ", licence)}
    assert words <= set(listed)


_SPELT = {
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
