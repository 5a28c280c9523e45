"""Files of others are the bytes of their packages, with their licences, and none lies there unnamed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import attestation_web

VENDOR = Path(attestation_web.__file__).parent / "static/vendor"
ROWS = [
    line.split("  ")
    for line in (VENDOR / "FILES").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.threat("T278")
def test_each_file_is_the_one_that_is_named() -> None:
    """By its SHA-256; a licence for each package is among them."""
    assert {name for _, name, *_ in ROWS} | {"FILES"} == {path.name for path in VENDOR.iterdir()}
    for digest, name, *_ in ROWS:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    packages = {package for _, _, package, *_ in ROWS}
    licensed = {package for _, _, package, file, _ in ROWS if file == "LICENSE"}
    assert packages == licensed == {"htmx.org@2.0.11", "idiomorph@0.8.0", "uplot@1.6.32"}
    assert {licence for *_, licence in ROWS} == {"0BSD", "MIT"}


def test_no_file_of_others_is_fetched_from_elsewhere() -> None:
    """Every address of a script or a style is ours."""
    for template in (Path(attestation_web.__file__).parent / "templates").rglob("*.html"):
        text = template.read_text(encoding="utf-8")
        assert "//" not in text.replace("https://", "//").partition("<script src=")[2].partition(">")[0]
        assert "cdn" not in text.lower(), template
