"""docs/protocol/audit-log.md: its figures are true, and its program, which knows nothing of us, agrees with ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attestation.audit import canonical_bytes, leaf_hash_of
from attestation.audit.export import MAX_CHECKPOINTS, MAX_HEADER_BYTES, MAX_LINE_BYTES
from attestation.audit.merkle import consistency_proof, inclusion_proof
from attestation.audit.note import MAX_NOTE_BYTES, MAX_SIGNATURES
from tests.docs.pages import text
from tests.unit.audit.log_kit import (
    LOG_KEYS,
    LOG_VKEYS,
    MemoryTree,
    checkpoint,
    entries,
    export,
    signed,
)

PAGE = text("docs/protocol/audit-log.md")
PROGRAM = re.search(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
LOG = entries(300)
LINES = export(LOG, (3, 200))


def test_the_figures_are_true() -> None:
    """Bytes, hashes, roots, proof, key and signature of the example."""
    log = LOG[:3]
    tree = MemoryTree.over([leaf_hash_of(entry) for entry in log])
    for expected in (
        canonical_bytes(log[0]).decode(),
        f"entry_hash  {log[0].entry_hash}",
        f"leaf 0       {leaf_hash_of(log[0]).hex()}",
        f"root of 2    {checkpoint(log, 2).root.hex()}",
        f"root of 3    {checkpoint(log, 3).root.hex()}",
        "".join(f"    {found.hex()}\n" for found in inclusion_proof(tree, 0, 3)),
        str(LOG_VKEYS[0]),
        signed(checkpoint(log), LOG_KEYS[:1]),
    ):
        assert expected in PAGE
    assert consistency_proof(tree, 2, 3) == inclusion_proof(tree, 0, 3)[1:]


def test_the_limits_are_true() -> None:
    """Those of the code."""
    for expected in (
        f"At most {MAX_NOTE_BYTES >> 10} KiB and {MAX_SIGNATURES} signatures",
        f"none longer than {MAX_LINE_BYTES:,} bytes but the first, which has at most {MAX_HEADER_BYTES >> 20} MiB",
        f"at most {MAX_CHECKPOINTS} signed checkpoints",
    ):
        assert expected in PAGE


def run(directory: Path, lines: list[bytes], *more: str) -> subprocess.CompletedProcess[str]:
    """Run the program of the page on an export of *lines*."""
    assert PROGRAM is not None
    (directory / "verify.py").write_text(PROGRAM[1], encoding="utf-8")
    (directory / "a.jsonl").write_bytes(b"".join(lines))
    return subprocess.run(
        [sys.executable, "-I", "verify.py", "a.jsonl", *map(str, LOG_VKEYS), *more],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_program_believes_an_export(tmp_path: Path) -> None:
    """Written from the page alone, it comes to the same root; with an older checkpoint too."""
    (tmp_path / "kept").write_text(signed(checkpoint(LOG, 150)), encoding="utf-8")
    for more, heads in (((), 3), (("--", "kept"), 4)):
        done = run(tmp_path, LINES, *more)
        assert done.stdout == f"300 entries, {heads} checkpoints, root {checkpoint(LOG).root.hex()}\n", (
            done.stderr
        )


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([*LINES[:5], LINES[5].replace(b"alice", b"mallo"), *LINES[6:]], "entry 5 was changed"),
        ([*LINES[:5], *LINES[6:]], "entry 5 is missing"),
        ([LINES[0], *export(entries(300, "forged"))[1:]], "the log was rewritten before entry 4"),
        (LINES[:-1], "the end is missing: the log ends with entry 299"),
        ([export(LOG, keys=LOG_KEYS[:1])[0], *LINES[1:]], "not signed by"),
    ],
    ids=["changed", "removed", "rewritten", "truncated", "one signature"],
)
def test_the_program_finds_what_is_wrong(tmp_path: Path, lines: list[bytes], why: str) -> None:
    """And says what."""
    done = run(tmp_path, lines)
    assert (done.returncode, why in done.stderr) == (1, True), done


def test_the_program_knows_an_older_log(tmp_path: Path) -> None:
    """A log rewritten by the thief of its keys does not begin with the checkpoint that was kept."""
    (tmp_path / "kept").write_text(signed(checkpoint(LOG, 150)), encoding="utf-8")
    forged = export(entries(300, "forged"))
    assert run(tmp_path, forged).returncode == 0
    assert "rewritten before entry 151" in run(tmp_path, forged, "--", "kept").stderr
