"""Verifying an export on an auditor's computer: whom to believe is asked, and what is not proven is said."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from attestation.audit import AuditEvent, chain
from attestation.audit.note import KeyType
from attestation.client.csv_line import FORMULA
from attestation.wire import b64encode
from attestation_cli.audit_rows import CSV
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.fixtures.over_httpx import OverHTTPX
from tests.unit.audit.log_kit import (
    LOG_KEYS,
    LOG_VKEYS,
    ORIGIN,
    WITNESS_VKEYS,
    WITNESSES,
    Key,
    MemoryTree,
    bundle,
    checkpoint,
    entries,
    export,
    format_entry,
    signed,
)

LOG = entries(12)
LINES = export(LOG, (3, 7))
KEYS = [word for key in LOG_VKEYS for word in ("--vkey", str(key))]
SEEN = [word for key in WITNESS_VKEYS for word in ("--witness", str(key))]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a good export, keys, and a checkpoint that was kept at 5."""
    (tmp_path / "a.jsonl").write_bytes(b"".join(LINES))
    (tmp_path / "log.vkeys").write_text("# the log\n\n" + "".join(f" {key}\n" for key in LOG_VKEYS))
    (tmp_path / "anna.vkeys").write_text("".join(f"{key}\n" for key in WITNESS_VKEYS))
    (tmp_path / "five").write_text(signed(checkpoint(LOG, 5)), encoding="utf-8")
    return tmp_path


class Service(httpx.BaseTransport):
    """Answers what it was given, in order of paths."""

    def __init__(self, answers: dict[str, httpx.Response] | None = None) -> None:
        self.answers = answers or {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer, or fail: nobody may be asked."""
        return self.answers[request.url.path.removeprefix("/api/v1/audit/")]


def run(*args: str | Path, service: Service | None = None) -> Result:
    session = Session(carrier=OverHTTPX(service or Service()))
    return CliRunner().invoke(cli, [str(arg) for arg in args], obj=session, catch_exceptions=False)


def verify(*args: str | Path) -> tuple[int, dict[str, object]]:
    """Verify, and return exit code and what a program reads."""
    done = run("-o", "json", "audit", "verify", *args)
    return done.exit_code, json.loads(done.stdout)


# ---------------------------------------------------------------- verify


def test_a_good_export_needs_nobody(here: Path) -> None:
    """Keys as options or in files; older checkpoints and witnesses."""
    for keys in (KEYS, ["--vkeys-file", here / "log.vkeys"]):
        code, found = verify(here / "a.jsonl", *keys)
        assert (code, found["valid"], found["pinned"], found["witnessed"]) == (0, True, True, 0)
    code, found = verify(here / "a.jsonl", *KEYS, *SEEN, "--quorum", "2", "--checkpoint", here / "five")
    assert code == 0
    assert found == {
        "valid": True,
        "pinned": True,
        "origin": ORIGIN,
        "entries": 12,
        "root_hash": LOG[-1].entry_hash,
        "tree_root": b64encode(checkpoint(LOG).root),
        "checkpoints": [3, 7, 12],
        "earlier": [5],
        "witnessed": 12,
        "signers": [ORIGIN, ORIGIN, *(key.name for key in WITNESS_VKEYS)],
        "first_invalid_id": None,
        "code": None,
        "error": None,
        "file": None,
    }


@pytest.mark.threat("T47")
def test_whom_to_believe_is_asked(here: Path) -> None:
    """Without a key nothing is verified, unless somebody says so; and then it is said what that proves."""
    done = run("audit", "verify", here / "a.jsonl")
    assert (done.exit_code, "no key to verify with" in done.stderr, done.stdout) == (2, True, "")
    done = run("audit", "verify", here / "a.jsonl", "--unpinned")
    assert done.exit_code == 0
    assert "who made it" in done.stdout
    assert verify(here / "a.jsonl", "--unpinned")[1]["pinned"] is False
    pinned = run("audit", "verify", here / "a.jsonl", *KEYS)
    assert "who made it" not in pinned.stdout
    assert "keep a checkpoint" in pinned.stdout
    assert run("audit", "verify", here / "a.jsonl", *KEYS, "--unpinned").exit_code == 2


def test_options_that_cannot_be(here: Path) -> None:
    """Refused before anything is read, and nothing is left out in silence."""
    file = here / "a.jsonl"
    other = Key("other.example", KeyType.ED25519).public
    (here / "empty").write_text("")
    (here / "binary").write_bytes(b"\xff")
    (here / "long").write_text("#" * (1 << 21))
    for args in (
        [*KEYS],
        ["--unpinned"],
        ["--checkpoint", here / "five"],
        ["--quorum", "1"],
        [file, "--vkey", "x"],
        [file, *KEYS, "--vkey", other],
        [file, "--vkeys-file", here / "empty"],
        [file, "--vkeys-file", here / "binary"],
        [file, "--vkeys-file", here / "long"],
        [file, *SEEN],
        [file, *SEEN, "--unpinned"],
        [file, *KEYS, "--quorum", "1"],
        [file, *KEYS, *SEEN, "--quorum", "3"],
        [file, *KEYS, "--checkpoint", file],
        [here / "absent", *KEYS],
    ):
        done = run("audit", "verify", *args)
        assert (done.exit_code, done.stdout) == (2, ""), args


def test_every_witness_must_have_cosigned_unless_a_quorum_is_named(here: Path) -> None:
    """A witness that is named and forgotten would be a check that is skipped."""
    (here / "one").write_bytes(b"".join(export(LOG, keys=(*LOG_KEYS, WITNESSES[0]))))
    code, found = verify(here / "one", *KEYS, "--witnesses-file", here / "anna.vkeys")
    assert (code, found["code"]) == (1, "note-rejected")
    code, found = verify(here / "one", *KEYS, "--witnesses-file", here / "anna.vkeys", "--quorum", "1")
    assert (code, found["witnessed"]) == (0, 12)


@pytest.mark.parametrize(
    ("lines", "code", "entry"),
    [
        ([*LINES[:5], LINES[5].replace(b"alice", b"mallo"), *LINES[6:]], "log-broken", 5),
        ([*LINES[:5], *LINES[6:]], "log-broken", 5),
        (LINES[:-2], "log-broken", 11),
        ([LINES[0].replace(b"v1", b"v9"), *LINES[1:]], "malformed-note", None),
        ([b"not an export\n"], "malformed-note", None),
        ([], "malformed-note", None),
    ],
    ids=["changed", "removed", "truncated", "other format", "no export", "empty"],
)
def test_what_is_wrong_is_named(here: Path, lines: list[bytes], code: str, entry: int | None) -> None:
    """With the entry, in words, and exit code 1."""
    (here / "bad").write_bytes(b"".join(lines))
    exit_code, found = verify(here / "bad", *KEYS)
    assert (exit_code, found["valid"], found["code"], found["first_invalid_id"]) == (1, False, code, entry)
    done = run("audit", "verify", here / "bad", *KEYS)
    assert "INVALID" in done.stdout
    assert str(found["error"])[:40] in done.stdout


def test_a_rewritten_log_is_found_by_the_checkpoint_that_was_kept(here: Path) -> None:
    """Also where the thief of the keys signed it anew."""
    (here / "forged").write_bytes(b"".join(export(entries(12, "forged"), (3, 7))))
    assert verify(here / "forged", *KEYS)[0] == 0
    code, found = verify(here / "forged", *KEYS, "--checkpoint", here / "five")
    assert (code, found["first_invalid_id"]) == (1, 4)
    assert "among the entries 4 to 5" in str(found["error"])


# ---------------------------------------------------------------- export


def streamed(*pieces: bytes, error: bool = False) -> Service:
    """Return a service that answers an export in *pieces*, and breaks off where there is an *error*."""

    class Stream(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from pieces
            if error:
                raise httpx.ReadError("cut off")

    return Service({"export": httpx.Response(200, stream=Stream())})


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def test_an_export_is_written_whole(here: Path) -> None:
    """Mode 0600, verified on the way, with the same bytes."""
    done = run("audit", "export", "-f", here / "b.jsonl", *KEYS, service=streamed(*LINES))
    assert done.exit_code == 0
    assert (here / "b.jsonl").read_bytes() == b"".join(LINES)
    assert (here / "b.jsonl").stat().st_mode & 0o777 == 0o600
    assert "VALID" in done.stdout


def test_an_export_that_breaks_off_leaves_nothing(here: Path) -> None:
    """Neither the file nor a part of it; and an older one stays."""
    before = sorted(path.name for path in here.iterdir())
    for options in ([here / "b.jsonl"], [here / "a.jsonl", "--force"]):
        done = run("audit", "export", "-f", *options, service=streamed(*LINES[:5], error=True))
        assert done.exit_code == 6
        assert sorted(path.name for path in here.iterdir()) == before
    assert (here / "a.jsonl").read_bytes() == b"".join(LINES)


def test_a_log_that_does_not_verify_is_kept_as_evidence(here: Path) -> None:
    """The file is there, whole; the command ends with 1 and names the entry."""
    bad = [*LINES[:5], LINES[5].replace(b"alice", b"mallo"), *LINES[6:]]
    done = run("-o", "json", "audit", "export", "-f", here / "b.jsonl", *KEYS, service=streamed(*bad))
    assert (done.exit_code, json.loads(done.stdout)["first_invalid_id"]) == (1, 5)
    assert (here / "b.jsonl").read_bytes() == b"".join(bad)
    done = run("audit", "export", "-f", here / "c.jsonl", *KEYS, service=streamed(*LINES[:-1]))
    assert done.exit_code == 1


def test_an_older_export_is_not_replaced(here: Path) -> None:
    """Unless that is asked for: it is evidence too. What cannot be written is said."""
    done = run("audit", "export", "-f", here / "a.jsonl", *KEYS, service=streamed(b"x"))
    assert (done.exit_code, "exists" in done.stderr) == (5, True)
    assert run("audit", "export", "-f", here / "a.jsonl", "--force", service=streamed(*LINES)).exit_code == 0
    assert run("audit", "export", "-f", here / "no" / "b", *KEYS, service=streamed(*LINES)).exit_code == 2


def test_only_a_file_is_replaced(here: Path) -> None:
    """Not a device, a pipe or a link, as /dev/stdout is one: root would take them from everybody."""
    os.mkfifo(here / "pipe")
    (here / "link").symlink_to(here / "pipe")
    (here / "gone").symlink_to(here / "nothing")
    for name in ("pipe", "link", "gone"):
        done = run("audit", "export", "-f", here / name, "--force", *KEYS, service=streamed(*LINES))
        assert (done.exit_code, "no regular file" in done.stderr.replace("\n", " ")) == (2, True), name
    assert (here / "pipe").is_fifo()
    assert (here / "link").is_symlink()


# ---------------------------------------------------------------- checkpoint, proof, keys


def head(size: int, mark: str = "step") -> httpx.Response:
    return httpx.Response(200, text=signed(checkpoint(entries(12, mark), size)))


def consistency(old: int, new: int, hashes: list[bytes]) -> httpx.Response:
    body = {"old_size": old, "new_size": new, "old_root": "A" * 44, "new_root": "A" * 44}
    return httpx.Response(200, json={**body, "hashes": [b64encode(h) for h in hashes]})


def proofs(mark: str = "step") -> MemoryTree:
    from attestation.audit import leaf_hash_of

    return MemoryTree.over([leaf_hash_of(entry) for entry in entries(12, mark)])


def test_a_checkpoint_is_kept_and_compared(here: Path) -> None:
    """Printed as it is, kept under a new name only, and proven to begin with an older one."""
    from attestation.audit.merkle import consistency_proof

    note = head(12).text
    assert run("audit", "checkpoint", service=Service({"checkpoint": head(12)})).stdout.count("\n") == 6
    answers = {"checkpoint": httpx.Response(200, text=note)}
    done = run("audit", "checkpoint", "-f", here / "new", *KEYS, service=Service(answers))
    assert (done.exit_code, (here / "new").read_text(encoding="utf-8")) == (0, note)
    assert run("audit", "checkpoint", "-f", here / "new", *KEYS, service=Service(answers)).exit_code == 5
    answers["proof/consistency"] = consistency(5, 12, consistency_proof(proofs(), 5, 12))
    since = ("--since", here / "five")
    done = run("audit", "checkpoint", *KEYS, *since, service=Service(answers))
    assert (done.exit_code, "5 entries, all of them still there" in done.stdout) == (0, True)
    assert run("audit", "checkpoint", *since, service=Service(answers)).exit_code == 2


@pytest.mark.threat("T49")
def test_a_log_that_did_not_only_grow(here: Path) -> None:
    """Rewritten, cut off, or signed by somebody else: exit code 1, whatever proof is sent."""
    from attestation.audit.merkle import consistency_proof

    since = ("--since", here / "five")
    forged = consistency_proof(proofs("forged"), 5, 12)
    for answers in (
        {"checkpoint": head(12, "forged"), "proof/consistency": consistency(5, 12, forged)},
        {"checkpoint": head(12, "forged"), "proof/consistency": consistency(5, 12, [])},
        {"checkpoint": head(5, "forged")},
        {"checkpoint": head(4)},
        {"checkpoint": httpx.Response(200, text=signed(checkpoint(LOG), WITNESSES))},
        {"checkpoint": httpx.Response(200, text="x")},
    ):
        done = run("audit", "checkpoint", *KEYS, *since, service=Service(answers))
        assert done.exit_code == 1, done.output


def included(entry_id: int, data: list[bytes] | None = None) -> Service:
    """Return a service that proves *entry_id*, with the bundle *data*."""
    from attestation.audit.merkle import inclusion_proof
    from attestation.audit.tiles import format_bundle

    hashes = inclusion_proof(proofs(), entry_id - 1, 12)
    body = {"index": entry_id - 1, "size": 12, "leaf_hash": "A" * 44, "root": "A" * 44}
    return Service(
        {
            "checkpoint": head(12),
            "tile/entries/000.p/12": httpx.Response(200, content=format_bundle(data or bundle(LOG))),
            "proof/inclusion": httpx.Response(200, json={**body, "hashes": [b64encode(h) for h in hashes]}),
        }
    )


@pytest.mark.threat("T49")
def test_an_entry_is_shown_only_if_it_is_proven() -> None:
    """The leaf is computed from what is shown; another entry, or another log, is refused."""
    done = run("audit", "proof", "4", *KEYS, service=included(4))
    assert (done.exit_code, "step 3" in done.stdout) == (0, True)
    assert "not verified" in run("audit", "proof", "4", service=included(4)).stdout
    other = bundle(LOG)
    other[3] = other[3].replace(b"alice", b"mallo")
    assert run("audit", "proof", "4", *KEYS, service=included(4, other)).exit_code == 1
    assert run("audit", "proof", "5", *KEYS, service=included(4)).exit_code == 1
    assert run("audit", "proof", "13", *KEYS, service=included(4)).exit_code == 2


@pytest.mark.threat("T49")
def test_a_proof_that_was_handed_on_needs_nobody(here: Path) -> None:
    """It verifies from the file alone, under the keys that were given, and under no others."""
    handed_on = run("-o", "json", "audit", "proof", "4", *KEYS, service=included(4)).stdout
    file = here / "4.proof.json"
    file.write_text(handed_on, encoding="ascii")
    done = run("audit", "proof", "--file", file, *KEYS)
    assert (done.exit_code, "step 3" in done.stdout) == (0, True), done.output
    assert run("audit", "proof", "--file", file).exit_code == 2
    assert run("audit", "proof", "4", "--file", file, *KEYS).exit_code == 2
    assert run("audit", "proof", *KEYS).exit_code == 2
    assert run("audit", "proof", "--file", here, *KEYS).exit_code == 2
    other = json.loads(handed_on) | {"id": 5}
    file.write_text(json.dumps(other), encoding="ascii")
    assert run("audit", "proof", "--file", file, *KEYS).exit_code == 1


def test_keys_are_printed_for_a_file(here: Path) -> None:
    """One vkey a line, retired ones too; a hostile one moves no cursor."""
    body = {"origin": ORIGIN, "vkeys": [str(LOG_VKEYS[0])], "retired": ["old\x1b[2J"], "witnesses": []}
    service = Service({"keys": httpx.Response(200, json=body)})
    assert run("audit", "keys", service=service).stdout.splitlines()[0] == str(LOG_VKEYS[0])
    service = Service({"keys": httpx.Response(200, json=body)})
    assert "\x1b" not in run("audit", "keys", service=service).stdout


# ---------------------------------------------------------------- CSV


def csv_of(here: Path, lines: list[bytes], *args: str | Path) -> tuple[Result, Path]:
    """Export *lines* as CSV, in pieces that end anywhere."""
    data = b"".join(lines)
    pieces = [data[n : n + 97] for n in range(0, len(data), 97)]
    answer = httpx.Response(200, headers={"Content-Type": "application/jsonl"}, content=iter(pieces))
    file = here / "log.csv"
    return run(
        "audit", "export", "-f", file, "--format", "csv", *args, service=Service({"export": answer})
    ), file


@pytest.mark.threat("T174")
def test_a_csv_has_the_columns_of_the_list_and_says_what_it_is_not(here: Path) -> None:
    """Every entry is a row, whole and exact; it is said that the file proves nothing."""
    done, file = csv_of(here, LINES, *KEYS)
    assert done.exit_code == 0, done.output
    assert "a CSV cannot be verified" in " ".join(done.stderr.split())
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline="")))
    assert [row["id"] for row in rows] == [str(n + 1) for n in range(len(LOG))]
    assert [row["hash"] for row in rows] == [entry.entry_hash for entry in LOG]
    assert [row["detail"] for row in rows] == [entry.detail or "" for entry in LOG]
    assert list(rows[0]) == [
        *("id", "time", "action", "operator", "machine", "change", "detail", "from", "subject", "hash"),
    ]
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.threat("T174")
def test_a_log_that_does_not_verify_becomes_no_csv(here: Path) -> None:
    """Changed in the middle: exit code 1, and nothing that somebody could take for the log."""
    lines = [*LINES]
    lines[5] = lines[5].replace(b'"action":"', b'"action":"x')
    done, file = csv_of(here, lines, *KEYS)
    assert done.exit_code == 1
    assert "INVALID" in done.stdout
    assert not file.exists()
    assert [path.name for path in here.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.threat("T174")
@given(st.text(), st.text(), st.integers(1, 400))
def test_no_row_of_a_csv_calculates(operator: str, detail: str, size: int) -> None:
    """Whatever machines and operators are called, and wherever a piece ends, an entry is one harmless record."""
    events = [AuditEvent(operator_cn=operator, action="approve", detail=detail)]
    entry = chain(events[0], at=datetime(2026, 11, 22, tzinfo=UTC), prev_hash="0" * 64)
    data, made = b'{"format":"header"}\n' + format_entry(1, entry), CSV()
    text = b"".join(made.feed(data[n : n + size]) for n in range(0, len(data), size)).decode()
    (_, found) = csv.reader(io.StringIO(text, newline=""), strict=True)
    assert found[0] == "1"
    assert not [value for value in found if value.startswith(FORMULA)]


@given(st.binary(max_size=200), st.integers(1, 50))
def test_bytes_of_anybody_make_no_row(data: bytes, size: int) -> None:
    """What is no export gives a heading and no error; its verifier says what is wrong."""
    made = CSV()
    text = b"".join(made.feed(data[n : n + size]) for n in range(0, len(data), size)).decode()
    assert text.count("\r\n") <= 1
