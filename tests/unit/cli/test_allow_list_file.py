"""Vendors' tables: an EK in any form has the fingerprint that it has here, and nothing is taken unsaid (W6)."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import RequestInvalid
from attestation_cli.allow_list_file import Reading, parse_mapping, read_table
from attestation_cli.ek_text import fingerprint_of
from attestation_testing.certificates import make_ek_certificate
from tests.fixtures.vendor import ISSUER, MADE
from tests.unit.cli.stub import NOW, Stub
from tests.unit.cli.test_cli import run
from tests.unit.service.node import SoftwareNode

NODE = SoftwareNode()


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


CERTIFICATE = make_ek_certificate(NODE.ek, ISSUER, at=MADE)
SPKI = NODE.ek.spki_der()


def pem(label: str, der: bytes) -> str:
    """Return PEM."""
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN {label}-----\n{body}-----END {label}-----\n"


FORMS = {
    "fingerprint": NODE.ek_fingerprint,
    "with-colons": ":".join(NODE.ek_fingerprint[i : i + 2] for i in range(0, 96, 2)).upper(),
    "named": f"sha384:{NODE.ek_fingerprint}",
    "certificate": pem("CERTIFICATE", CERTIFICATE),
    "certificate-in-a-cell": pem("CERTIFICATE", CERTIFICATE).replace("\n", "\\n"),
    "certificate-base64": base64.b64encode(CERTIFICATE).decode(),
    "key": pem("PUBLIC KEY", SPKI),
    "key-base64": base64.b64encode(SPKI).decode(),
    "tpm2b-public": base64.b64encode(NODE.ek.tpm2b()).decode(),
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_an_ek_has_one_fingerprint(text: str) -> None:
    """Whatever a vendor writes: a machine will be compared with it."""
    assert fingerprint_of(text) == NODE.ek_fingerprint


OTHER = ed25519.Ed25519PrivateKey.generate().public_key()


@pytest.mark.parametrize(
    "text",
    [
        hashlib.sha256(SPKI).hexdigest(),
        "ab" * 20,
        "SN-4711",
        base64.b64encode(OTHER.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode(),
        base64.b64encode(CERTIFICATE[:-9]).decode(),
        "A" * 20_000,
    ],
    ids=["sha-256", "sha-1", "serial", "ed25519", "cut-off", "too-long"],
)
def test_what_is_no_ek_is_refused(text: str) -> None:
    """Also a digest of which no other can be computed: a guess would admit nobody, or somebody else."""
    with pytest.raises(RequestInvalid, match="the EK"):
        fingerprint_of(text)


def table(*rows: dict[str, str], delimiter: str = ";") -> str:
    """Return a vendor's table."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


ROW = {"Order": "4711", "Serial": "B5JT9Y1", "Model": "R760", "EK": FORMS["certificate"]}
MAPS = ("ek_fingerprint=EK", "serial=serial", "product=Model")


def imported(stub: Stub, file: Path, *options: str) -> Result:
    """Run `allow-list import` with a table of a vendor."""
    maps = [word for each in MAPS for word in ("--map", each)]
    return run(stub, "allow-list", "import", str(file), *maps, "--role", "worker-app", *options)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_vendors_table_is_imported_by_what_is_said_of_its_columns(tmp_path: Path, delimiter: str) -> None:
    """In our members, whatever separates its columns; and what nobody mapped is told."""
    file = tmp_path / "vendor.csv"
    file.write_text(table(ROW, delimiter=delimiter))
    stub = Stub()
    done = imported(stub, file)
    assert done.exit_code == 0, done.output
    assert stub.acts[0][2] == {
        "entries": [
            {
                "ek_fingerprint": NODE.ek_fingerprint,
                "role": "worker-app",
                "note": "product R760; serial B5JT9Y1",
            }
        ]
    }
    assert "Left out, because nothing maps to it: Order" in done.stderr


def test_a_mapping_is_kept_in_a_file(tmp_path: Path) -> None:
    """One for each vendor; what is said beside it goes before."""
    (tmp_path / "vendor.map").write_text("# Vendor, 2026\nek_fingerprint=EK\nserial=Order\n")
    (tmp_path / "vendor.csv").write_text(table(ROW))
    stub = Stub()
    done = run(
        stub,
        *("allow-list", "import", str(tmp_path / "vendor.csv"), "--map-file", str(tmp_path / "vendor.map")),
        *("--map", "serial=Serial", "--role", "generic", "--cluster-id", "prod"),
    )
    assert done.exit_code == 0, done.output
    assert stub.acts[0][2]["entries"][0] | {"ek_fingerprint": ""} == {
        "ek_fingerprint": "",
        "role": "generic",
        "cluster_id": "prod",
        "note": "serial B5JT9Y1",
    }


def test_a_dry_run_tells_of_every_entry_and_imports_none(tmp_path: Path) -> None:
    """New, replaced, twice, wrong: each with its place, and exit code 1."""
    second = SoftwareNode()
    listed = {"role": "controlplane", "created_at": NOW, "created_by": "SYSTEM"}
    stub = Stub(allow_list=[{"ek_fingerprint": second.ek_fingerprint, **listed}])
    rows = [
        ROW,
        ROW | {"EK": base64.b64encode(second.ek.spki_der()).decode()},
        ROW | {"EK": NODE.ek_fingerprint},
        ROW | {"EK": "ab" * 32},
        ROW | {"EK": ""},
    ]
    file = tmp_path / "vendor.csv"
    file.write_text(table(*(each | {"EK": each["EK"].replace("\n", "\\n")} for each in rows)))
    done = imported(stub, file, "--dry-run", "-o", "json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["left_out"] == ["Order"]
    assert [(each["where"], each["result"]) for each in found["entries"]] == [
        ("line 2", "new"),
        ("line 3", "replaced"),
        ("line 4", "duplicate"),
        ("line 5", "fault"),
        ("line 6", "fault"),
    ]
    assert "role controlplane becomes worker-app" in found["entries"][1]["what"]
    assert found["entries"][2]["what"] == "the same EK as in line 2"
    assert stub.acts == []
    shown = imported(stub, file, "--dry-run")
    assert "no other digest can be computed" in " ".join(shown.stdout.split())
    # Without the rehearsal the first fault ends it, and nothing is sent.
    refused = imported(stub, file)
    assert (refused.exit_code, "line 4: the same EK as in line 2" in refused.stderr) == (2, True)
    assert stub.acts == []


def test_a_good_dry_run_ends_with_0(tmp_path: Path) -> None:
    """Of our own form too."""
    file = tmp_path / "own.csv"
    file.write_text(f"ek_fingerprint,role\n{NODE.ek_fingerprint},generic\n")
    stub = Stub()
    assert run(stub, "allow-list", "import", str(file), "--dry-run").exit_code == 0
    assert stub.acts == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["ek_fingerprint=Key"], "the heading Key is not there"),
        (["serial=Serial"], "which column has the EK"),
        (["ek_fingerprint=EK", "ek_fingerprint=Serial"], "twice"),
        (["ek=EK"], "MEMBER=HEADING"),
        (["ek_fingerprint"], "MEMBER=HEADING"),
    ],
)
def test_a_mapping_that_fits_no_column_is_refused(said: list[str], why: str) -> None:
    """A slip of the pen must not become an entry without a name, or another column's."""
    with pytest.raises(RequestInvalid, match=why):
        read_table(table(ROW), Reading(columns=parse_mapping(said), role="generic"))


def lines(**changed: str) -> Any:
    """Return the one line of a table with a digest beside the EK."""
    reading = Reading(columns={"ek_fingerprint": "EK", "ek_sha256": "Digest"}, role="generic")
    [line] = read_table(table({"EK": FORMS["certificate"], "Digest": "", **changed}), reading).lines
    return line


def test_a_sha_256_beside_an_ek_is_compared() -> None:
    """Of the certificate or of the key; another one is somebody else's row."""
    for der in (CERTIFICATE, SPKI):
        assert lines(Digest=hashlib.sha256(der).hexdigest()).fault is None
    assert "neither" in lines(Digest="ab" * 32).fault
    assert "no SHA-256" in lines(Digest="ab" * 8).fault
    assert "leave the column out" in lines(EK=NODE.ek_fingerprint, Digest="ab" * 32).fault


def test_a_heading_that_stands_twice_is_none() -> None:
    """Which of them was meant, nobody knows."""
    text = "EK;EK;Serial\na;b;c\n"
    with pytest.raises(RequestInvalid, match="stands twice"):
        read_table(text, Reading(columns={"ek_fingerprint": "ek"}))
