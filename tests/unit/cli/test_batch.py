"""Several machines approved at once: side by side, asked once, and one answer each."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import RequestInvalid
from attestation_cli.batch import read_chosen
from tests.unit.cli.stub import Stub, machine, problem
from tests.unit.cli.test_cli import run

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
B = "c2b1a0e9-51d7-4f0c-8c39-0d2f3a7be541"
C = "aa3742ec-8e0b-4b7e-9a51-6f4f4c1f02d7"
ROLE = ("--role", "worker-app")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def three(**changes: Any) -> Stub:
    """Return a service where three machines wait."""
    return Stub(
        machines=[machine(each, hw_serial=f"S{each[:4]}", version=7) for each in (A, B, C)], **changes
    )


def bodies(service: Stub) -> list[tuple[str, Any]]:
    """Return which machines were asked for, and how."""
    return [(path.split("/")[2], body) for _, path, body in service.acts]


def test_several_are_seen_side_by_side_and_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprint, who vouches, hardware; a no changes nothing, a yes approves each at the version that was seen."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)
    service = three()
    done = run(service, "machine", "approve", "7f3a", "c2b1", "aa37", *ROLE, answer="n\n")
    assert done.exit_code == 1
    assert service.acts == []
    for each in (A, B, C):
        assert machine(each)["ek_fingerprint"][:16] in done.stdout
        assert f"S{each[:4]}" in done.stdout
    assert done.stdout.count("tofu") == 3
    asked = f"Approve these 3 machines as worker-app: {A[:8]}, {B[:8]}, {C[:8]}?"
    assert done.stderr.count(asked) == 1
    done = run(service, "machine", "approve", "7f3a", "c2b1", "aa37", *ROLE, answer="y\n")
    assert done.exit_code == 0, done.output
    assert [(each, body["role"], body["expected_version"]) for each, body in bodies(service)] == [
        (each, "worker-app", 7) for each in (A, B, C)
    ]
    assert done.stdout.count("approved") == 3


def test_a_program_says_yes_or_nothing_is_done() -> None:
    """Nobody can be asked where stdin is no terminal."""
    service = three()
    assert run(service, "machine", "approve", "7f3a", "c2b1", *ROLE).exit_code == 2
    assert service.acts == []


@pytest.mark.parametrize("form", ["json", "yaml", "csv"])
def test_nobody_is_asked_about_machines_that_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """What is for programs shows none of them before it is over."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)
    service = three()
    done = run(service, "machine", "approve", "7f3a", "c2b1", *ROLE, "-o", form, answer="y\n")
    assert done.exit_code == 2
    assert service.acts == []


def test_one_that_is_refused_leaves_the_others_and_is_told() -> None:
    """Each by itself; exit code 1, and the reason beside the machine, also for programs."""
    service = three()
    why = "the machine is at version 8, not 7"

    def changed(request: httpx.Request) -> httpx.Response | None:
        return problem(409, "machine-changed", why) if f"{B}/approve" in str(request.url) else None

    service.before = changed
    done = run(service, "machine", "approve", "7f3a", "c2b1", "aa37", *ROLE, "--yes", "-o", "json")
    assert done.exit_code == 1
    assert [(r["machine_id"], r["result"]) for r in json.loads(done.stdout)] == [
        (A, "approved"),
        (B, "failed"),
        (C, "approved"),
    ]
    assert why in json.loads(done.stdout)[1]["detail"]
    table = run(service, "machine", "approve", "7f3a", "c2b1", "aa37", *ROLE, "--yes")
    assert (table.exit_code, why in table.stdout) == (1, True)


def test_under_dual_control_each_is_a_proposal() -> None:
    """With what the others run for it; that is no failure."""
    service = three(voters=("anna",))
    done = run(service, "machine", "approve", "7f3a", "c2b1", "--role", "controlplane", "--yes")
    assert done.exit_code == 0
    assert done.stdout.count("1 of 2: attestation approval approve abababababababab") == 2
    assert done.stdout.count("proposed") == 2


def test_a_file_says_what_each_gets_and_which_it_is(tmp_path: Path) -> None:
    """Names, addresses, and the fingerprints by which EKs may be admitted by name."""
    service = three()
    file = tmp_path / "rack4.csv"
    ek = {each: machine(each)["ek_fingerprint"] for each in (A, B)}
    file.write_text(
        f"machine,hostname,ip,fingerprint\n7f3a,w-1,10.0.0.21/24,{ek[A][:16]}\nc2b1,w-2,,{ek[B]}\n"
    )
    done = run(service, "machine", "approve", "--from", str(file), *ROLE, "--accept-ek", "--yes")
    assert done.exit_code == 0, done.output
    assert [(b["hostname"], b.get("assigned_ip"), b["accept_ek"]) for _, b in bodies(service)] == [
        ("w-1", "10.0.0.21/24", True),
        ("w-2", None, True),
    ]
    assert done.stdout.count(" compared") == 2


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["7f3a", "c2b1", "--accept-ek"], None),
        (["--accept-ek"], f"machine,fingerprint\n7f3a,{A[:8]}\nc2b1,\n"),
        (["7f3a", "c2b1", "--hostname", "w-1"], None),
        (["7f3a", "c2b1", "--fingerprint", "0" * 16], None),
        (["7f3a", A], None),
        ([], None),
        ([], "machine\n"),
        ([], f"machine,fingerprint\n7f3a,{'0' * 16}\nc2b1,\n"),
        ([], "machine,hostname\n7f3a,w-1\nc2b1,not a name\n"),
        ([], "machine,hostnam\n7f3a,w-1\n"),
        ([], "hostname\nw-1\n"),
        ([], "machine,machine\na,b\n"),
        ([], "machine,hostname\n7f3a\n"),
        ([], "machine,hostname\n,w-1\n"),
        ([], "machine\n7f3a\nffff\n"),
        ([], 'machine\n"7f3a\n'),
    ],
)
def test_what_is_wrong_with_one_is_done_to_none(
    tmp_path: Path, arguments: list[str], rows: str | None
) -> None:
    """Everything is looked at before anything is asked for."""
    service = three()
    if rows is not None:
        (tmp_path / "f.csv").write_text(rows)
        arguments = [*arguments, "--from", str(tmp_path / "f.csv")]
    assert run(service, "machine", "approve", *arguments, *ROLE, "--yes").exit_code not in (0, 1)
    assert service.acts == []


@given(st.text(max_size=200))
def test_a_file_fails_in_one_way_only(text: str) -> None:
    """Whatever is in it: machines, or what is wrong with it."""
    for each in (text, f"machine,hostname\n{text}"):
        try:
            found = read_chosen(each)
        except RequestInvalid:
            continue
        assert all(one.machine for one in found)


def test_a_lost_answer_is_unknown_and_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not `failed`: code 7, what was not asked for is said, and the printed command goes on where it ended."""
    monkeypatch.setattr("attestation.client.acts.FIRST_PAUSE_SECONDS", 0.0)
    keys: list[str] = []

    def losing(request: httpx.Request) -> None:
        if request.method == "POST" and B in request.url.path:
            raise httpx.ReadTimeout("no")
        if request.method == "POST":
            keys.append(request.headers["idempotency-key"])

    done = run(three(before=losing), "machine", "approve", A, B, C, *ROLE, "--yes")
    assert done.exit_code == 7
    assert [line.split()[0:2] for line in done.stdout.splitlines()[-3:]] == [
        ["7f3ad3ac", "approved"],
        ["c2b1a0e9", "unknown"],
        ["aa3742ec", "not"],
    ]
    (line,) = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("attestation ")]

    def did_the_first_two(request: httpx.Request) -> httpx.Response | None:
        if request.method == "POST" and C not in request.url.path:
            return problem(422, "idempotency-key-reused", detail="another request, carried out at 04:00")
        if request.method == "POST":
            keys.append(request.headers["idempotency-key"])
        return None

    admitted = three(before=did_the_first_two)
    for each in admitted.machines[:2]:
        each["status"] = "registered"
    done = run(admitted, *shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("done before") == 2
    assert [key.strip('"').rpartition(".")[2] for key in keys] == ["1", "3"]
    assert len({key.partition(".")[0] for key in keys}) == 1
    # The key of another machine's turn, because the list was changed since: nobody takes it for one that is admitted.
    done = run(three(before=did_the_first_two), *shlex.split(line)[1:])
    assert (done.exit_code, done.stdout.count("done before"), done.stdout.count("failed")) == (1, 0, 2)
    # Without --again such a refusal is one.
    done = run(three(before=did_the_first_two), "machine", "approve", A, B, C, *ROLE, "--yes")
    assert (done.exit_code, done.stdout.count("failed")) == (1, 2)
