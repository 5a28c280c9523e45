"""`attestation policy`: files, trials, votes, what is told and what is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cbor2
import httpx
import pytest
from cbor2 import CBORTag
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from attestation.client.policy_text import read_policy
from attestation.reference import parse_policy
from attestation.reference.corim import CLASS_OID, PROFILE
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import HASH, Stub, assignment, failing, machine, policy, trial

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
FILE = str(Path(__file__).with_name("a_policy.yaml"))


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def run(service: Stub, *args: str, answer: str | None = None) -> Result:
    """Type a command."""
    session = Session(carrier=service.carrier)
    return CliRunner().invoke(cli, list(args), obj=session, input=answer, catch_exceptions=False)


def answering(path: str, *bodies: dict[str, Any]) -> Stub:
    """Return a service that answers *path* with *bodies*, one after the other."""
    left = list(bodies)

    def before(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(200, json=left.pop(0)) if request.url.path.endswith(path) else None

    return Stub(machines=[machine(A, hostname="w-1")], before=before)


def test_create_reads_yaml_and_json(tmp_path: Path) -> None:
    """The service gets the same document; what is no policy file is never sent."""
    as_json = tmp_path / "p.json"
    as_json.write_text(json.dumps(read_policy(Path(FILE).read_text(), FILE)))
    stub = Stub()
    for path in (FILE, str(as_json)):
        assert run(stub, "policy", "create", path).exit_code == 0
    assert run(stub, "policy", "create", "-", answer=Path(FILE).read_text()).exit_code == 0
    (_, _, one), (_, _, two), (_, _, three) = stub.acts
    assert one == two == three
    assert one["pcrs"]["11"]["any_of"][0] == "1" * 64
    for bad in ("a: 1\na: 2", "[1]", "\xff"):
        path = str(tmp_path / "bad.yaml")
        Path(path).write_bytes(bad.encode("latin-1"))
        done = run(stub, "policy", "create", path)
        assert (done.exit_code, len(stub.acts)) == (2, 3)
        assert "bad.yaml" in done.stderr


def test_validate_asks_nobody(tmp_path: Path) -> None:
    """The verdict is made here; a fault is named with the file."""
    stub = Stub()
    done = run(stub, "policy", "validate", FILE)
    assert done.exit_code == 0
    assert "workers@3" in done.stdout
    assert "7, 11" in done.stdout
    assert "report" in done.stdout
    assert json.loads(run(stub, "policy", "validate", FILE, "-o", "json").stdout)["valid"] is True
    path = tmp_path / "p.yaml"
    path.write_text(Path(FILE).read_text().replace("bank: sha256", "bank: sha1"))
    done = run(stub, "policy", "validate", str(path))
    assert done.exit_code == 2
    assert "p.yaml: bank is not" in done.stderr
    assert stub.requests == []


def test_a_policy_is_made_of_a_corim(tmp_path: Path) -> None:
    """Printed, ready to be created; what is left out is named; a file that is none is refused by its name."""
    value = {0: 641, 1: {2: [[7, b"\xaa" * 48]]}}
    environment = {0: {0: CBORTag(111, CLASS_OID)}}
    chip = {0: 3328, 1: {4: CBORTag(560, bytes(64))}}
    comid = CBORTag(506, cbor2.dumps({1: {0: "a"}, 4: {0: [[environment, [value, chip]]]}}))
    path = tmp_path / "guest.corim.cbor"
    path.write_bytes(cbor2.dumps(CBORTag(501, {0: "an id", 1: [comid], 3: CBORTag(32, PROFILE)})))
    stub = Stub()
    done = run(stub, "policy", "import-corim", str(path), "--name", "guests", "-o", "json")
    assert json.loads(done.stdout) == {
        "format": "itl-policy/2",
        "name": "guests",
        "version": 1,
        "description": "from CoRIM an id",
        "sev_snp": {"measurement": ["aa" * 48]},
    }
    assert "CHIP_ID" in done.stderr
    shown = run(stub, "policy", "import-corim", str(path), "--name", "guests", "--version", "7")
    assert "version: 7" in shown.stdout
    assert (
        "guests@1" in run(stub, "policy", "import-corim", str(path), "--name", "guests", "-o", "csv").stdout
    )
    path.write_bytes(b"\x00")
    done = run(stub, "policy", "import-corim", str(path), "--name", "guests")
    assert done.exit_code == 2
    assert "guest.corim.cbor: CoRIM: not tagged 501" in done.stderr
    assert stub.requests == []


@pytest.mark.parametrize("command", ["activate", "assign"])
def test_an_activation_that_waits_says_what_the_next_one_calls(command: str) -> None:
    """Under dual control: a vote, and the command for exactly the same."""
    stub = Stub(voters=("anna",))
    done = run(stub, "policy", command, "workers@1", "--role", "controlplane")
    assert done.exit_code == 0
    assert "role controlplane: 1 of 2 approvals" in done.stdout
    assert "attestation approval approve abababababababab" in done.stdout
    assert "approval withdraw 17" in done.stdout
    as_json = json.loads(run(stub, "policy", command, "workers@1", "--fleet", "-o", "json").stdout)
    assert as_json["next_command"] == f"attestation approval approve {as_json['proposal_digest']}"


def test_the_end_of_an_assignment_waits_likewise() -> None:
    """Measuring less needs as many."""
    stub = Stub(voters=("anna",))
    done = run(stub, "policy", "unassign", "--role", "controlplane", "--yes")
    assert "attestation approval approve abababababababab" in done.stdout


def test_a_rollback_tells_what_will_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks with both versions, and the next one is told to call that version by name."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)
    stub = Stub()
    done = run(stub, "policy", "rollback", "--role", "worker-app", answer="y\n")
    assert "role worker-app: workers@1 again, instead of workers@2?" in done.stderr
    assert stub.acts == [("POST", "/policies/assignments/role/worker-app/rollback", None)]
    assert "workers@1" in done.stdout
    stub = Stub(voters=("anna",))
    done = run(stub, "policy", "rollback", "--role", "worker-app", "--yes")
    assert "attestation approval approve abababababababab" in done.stdout


def test_a_rollback_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing applied before, it is the end of the assignment, and called so."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)
    stub = Stub()
    stub.history = stub.history[:1]
    stub.voters = ("anna",)
    done = run(stub, "policy", "rollback", "--role", "worker-app", answer="y\n")
    assert "no policy of its own, instead of workers@2?" in done.stderr
    assert "attestation approval approve abababababababab" in done.stdout
    stub.voters = ()
    stub.before = lambda request: httpx.Response(204) if request.method == "POST" else None
    done = run(stub, "policy", "rollback", "--role", "worker-app", "--yes")
    assert "role worker-app: no policy of its own any more" in done.stdout
    stub.history = []
    done = run(stub, "policy", "rollback", "--role", "worker-app", "--yes")
    assert done.exit_code == 3
    assert "nothing was ever assigned" in done.stderr


def test_show_finds_the_newest() -> None:
    """By version, or by name alone; its document is ready to be changed and stored."""
    listed = {"policies": [policy(), policy() | {"version": 12}], "assignments": []}
    stub = answering("/policies", listed, listed, listed)
    assert "workers@12" in run(stub, "policy", "show", "workers").stdout
    document = read_policy(run(stub, "policy", "show", "workers", "-o", "yaml").stdout, "f")
    assert document == policy()["document"]
    assert "workers@1" in run(Stub(), "policy", "show", "workers@1").stdout
    done = run(stub, "policy", "show", "others")
    assert (done.exit_code, "no policy is called others" in done.stderr) == (3, True)
    assert run(stub, "policy", "show", "../x").exit_code == 2


def test_a_trial_adds_up_its_pages() -> None:
    """Every page is asked for; the sum decides, and the exit code says it."""
    pages = [
        trial(next_cursor="eA", machines=20),
        trial(machines=20, failing=[failing(None, newly=True)]),
    ]
    stub = answering("/policies/test", *pages)
    done = run(stub, "policy", "test", "workers@2", "--role", "worker-app")
    assert done.exit_code == 1
    assert "20" in done.stdout
    assert "4, 2 of them newly" in done.stdout
    first, second = (json.loads(r.content) for r in stub.requests if r.url.path.endswith("/test"))
    assert (first["policy"], first["scope"], first["subject"]) == ("workers@2", "role", "worker-app")
    assert (first.get("cursor"), second["cursor"]) == (None, "eA")
    # Those who newly fail come first; who has no name is called by id.
    assert done.stdout.index("w-7") < done.stdout.index("w-old")
    assert A[:8] in done.stdout


def test_a_trial_that_nobody_newly_fails_is_a_yes() -> None:
    """Exit code 0, also where machines fail that failed before."""
    stub = answering("/policies/test", trial(failing=[failing("w-old", newly=False)]))
    assert run(stub, "policy", "test", "workers@2").exit_code == 0
    stub = answering("/policies/test", trial(failing=[], checks={}, failed=0))
    done = run(stub, "policy", "test", "workers@2")
    assert "compares nothing" in done.stderr


def test_a_trial_of_a_file() -> None:
    """The document travels; a name of a version does not mean a file."""
    stub = answering("/policies/test", trial())
    assert run(stub, "policy", "test", FILE, "--machine", "w-1").exit_code == 1
    sent = json.loads(stub.requests[-1].content)
    assert ("policy" in sent, sent["document"]["name"]) == (False, "workers")
    assert (sent["scope"], sent["subject"]) == ("machine", A)
    done = run(stub, "policy", "test", "nothing.yaml")
    assert done.exit_code == 2
    assert "NAME@VERSION" in done.stderr
    assert run(stub, "policy", "test", FILE, "--fleet", "--role", "linux").exit_code == 2


def test_many_failures_are_not_a_flood() -> None:
    """Twenty are shown, the rest is counted; a program gets all."""
    many = [failing(f"w-{n}", newly=True) for n in range(50)]
    done = run(answering("/policies/test", trial(failing=many)), "policy", "test", "workers@2")
    assert "and 30 more" in done.stderr
    assert done.stdout.count("w-") == 20
    done = run(answering("/policies/test", trial(failing=many)), "policy", "test", "workers@2", "-o", "json")
    told = json.loads(done.stdout)
    assert (len(told["failing"]), told["newly_failing"]) == (50, 50)


def test_pages_in_a_circle_end() -> None:
    """A service that sends us round is told off."""
    stub = answering("/policies/test", trial(next_cursor="eA"), trial(next_cursor="eA"))
    done = run(stub, "policy", "test", "workers@2")
    assert done.exit_code == 6
    assert "circle" in done.stderr


def test_what_is_learned_is_shown_and_written(tmp_path: Path) -> None:
    """Groups and outliers to read, YAML with comments that is a policy."""
    path = tmp_path / "p.yaml"
    stub = Stub(machines=[machine(A, hostname="w-1")])
    done = run(
        stub, "policy", "learn", "--machine", "w-1", "--name", "workers", "--version", "4", "-f", str(path)
    )
    assert done.exit_code == 0
    assert "4: w-1, w-2, w-3, w-4" in done.stdout
    assert "pcr7 differs from 4 others" in done.stdout
    assert "note: PCR 1 differs" in done.stderr
    assert str(path) in done.stderr
    text = path.read_text()
    assert f"    # 4: w-1, w-2, w-3 and 1 more\n    - {HASH}\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "# left out: w-5: pcr7 differs from 4 others" in text
    assert parse_policy(read_policy(text, "p.yaml")).ref == "learned@1"
    _, _, sent = stub.acts[0]
    assert (sent["machines"], sent["name"], sent["version"]) == ([A], "workers", 4)


@pytest.mark.threat("T72")
def test_comments_of_a_proposal_cannot_become_members() -> None:
    """What machines are called stays behind its `#`."""
    hostile = {"machine": "w\nmode: report", "reason": "x\r\npcrs: {}"}

    def before(request: httpx.Request) -> httpx.Response | None:
        from tests.unit.cli.stub import learned

        group = {"subject": "pcr7", "value": HASH, "machines": ["a\nb: c"]}
        told = learned() | {"outliers": [hostile], "notes": ["n\nm: 1"], "groups": [group]}
        return httpx.Response(200, json=told)

    done = run(Stub(before=before), "policy", "learn", "--fleet", "-o", "table")
    text = done.stdout[done.stdout.index("# Proposed") :]
    from tests.unit.cli.stub import learned

    assert read_policy(text, "f") == learned()["document"]


def test_diff_says_what_changes(tmp_path: Path) -> None:
    """In words and with signs; two files need no service."""
    other = tmp_path / "other.yaml"
    other.write_text(Path(FILE).read_text().replace("mode: report\n", "").replace("7777", "8888"))
    stub = Stub()
    done = run(stub, "policy", "diff", FILE, str(other))
    assert done.exit_code == 0
    assert "mode" in done.stdout
    assert "  - " + "7" * 64 in done.stdout
    assert "  + " + "8" * 64 in done.stdout
    same = run(stub, "policy", "diff", FILE, FILE)
    assert "the same" in same.stdout
    assert stub.requests == []
    done = run(stub, "policy", "diff", "workers@1", FILE)
    assert "PCR 11: new" in done.stdout
    assert "  + " + "1" * 64 in done.stdout
    shipped = policy() | {"name": "identity-only", "document": {"name": "identity-only"}}
    done = run(answering("/policies/identity-only/1", shipped), "policy", "diff", "identity-only@1", FILE)
    assert "PCR 7: new" in done.stdout
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: x")
    done = run(stub, "policy", "diff", FILE, str(broken))
    assert (done.exit_code, "broken.yaml" in done.stderr) == (2, True)


def test_effective_names_the_policy_of_each_rule() -> None:
    """PCRs in the order of their numbers; long lists are shortened, and whole where that is asked for."""
    stub = Stub(machines=[machine(A, hostname="w-1")])
    done = run(stub, "policy", "effective", "w-1")
    lines = done.stdout.splitlines()
    assert "fleet@1 (fleet), workers@2 (role worker-app)" in done.stdout
    rules = [line.split()[0] for line in lines if line.startswith(("pcrs.", "secure_boot."))]
    assert rules == ["pcrs.1", "pcrs.4", "pcrs.7", "pcrs.11", "secure_boot.required"]
    assert "ignored: serial numbers" in done.stdout
    assert "or 1 more" in done.stdout
    assert "01" * 32 in run(stub, "policy", "effective", "w-1", "-o", "wide").stdout


def test_history_is_of_everything_or_of_a_place() -> None:
    """What applied, what ended, who asked."""
    stub = Stub()
    stub.history.insert(0, stub.history[0] | {"policy": None})
    done = run(stub, "policy", "history")
    assert "none of its own" in done.stdout
    assert "scope" not in stub.requests[-1].url.params
    run(stub, "policy", "history", "--role", "worker-app", "--limit", "2")
    assert dict(stub.requests[-1].url.params)["subject"] == "worker-app"
    stub.history = []
    assert "Nothing was ever assigned" in run(stub, "policy", "history", "--fleet").stderr


def test_versions_are_completed() -> None:
    """Newest first, with where each applies; nothing that a shell could take for its own."""
    hostile = policy() | {"name": "x$(reboot)"}
    listed = {
        "policies": [policy(), policy() | {"version": 2}, hostile],
        "assignments": [assignment("fleet", "*"), assignment("role", "linux")],
    }

    def offered(words: list[str], incomplete: str) -> list[tuple[str, str | None]]:
        service = answering("/policies", listed)
        completer = ShellComplete(cli, {"obj": Session(carrier=service.carrier)}, "attestation", "_X")
        return [(item.value, item.help) for item in completer.get_completions(words, incomplete)]

    both = [("workers@2", "applies nowhere"), ("workers@1", "fleet, role linux")]
    for command in ("activate", "show", "test", "diff"):
        assert offered(["policy", command], "w") == both
    assert offered(["policy", "diff", "workers@1"], "workers@1") == both[1:]
    assert offered(["policy", "activate"], "x") == []
