"""The parts of the agent: settings, files, rhythm, hardware facts, commands, entry points."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_agent.commands import run_command
from attestation_agent.exits import Exit, ServiceKeysChanged, UsageError
from attestation_agent.files import write_atomically
from attestation_agent.hardware import read_hardware
from attestation_agent.main import main, register
from attestation_agent.rhythm import Rhythm
from attestation_agent.settings import OPTIONS, load
from attestation_agent.state import KnownAs, State

URL = {"ITL_REG_URL": "https://attest.example"}

# Settings


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default() -> None:
    """In this order, for every option alike."""
    assert load({}, URL).tpm == "device:/dev/tpmrm0"
    assert load({}, {**URL, "ITL_TPM": "unix:/a"}).tpm == "unix:/a"
    assert load({"tpm": "tcp:b:1"}, {**URL, "ITL_TPM": "unix:/a"}).tpm == "tcp:b:1"
    assert load({}, {**URL, "ITL_TPM": ""}).tpm == "device:/dev/tpmrm0"


def test_an_unknown_variable_stops_the_start() -> None:
    """A typo must not switch a control off; the text says what was meant."""
    with pytest.raises(UsageError, match="did you mean ITL_CA_FILE"):
        load({}, {**URL, "ITL_CA_FIEL": "/x"})
    for far in ("ITL_FOO", "ITL_DEBUG", "ITL_WORKERS", "ITL_TPM_DEVICE"):
        with pytest.raises(UsageError, match=f"^unknown variable {far}$"):
            load({}, {**URL, far: "1"})
    load({}, {**URL, "ITL_API_URL": "the command line's", "ITL_WEB_X": "the dashboard's", "PATH": "/bin"})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ITL_AK", "dsa"),
        ("ITL_ROLE", "king"),
        ("ITL_CLUSTER_ID", "Not A Cluster"),
        ("ITL_APPLY_COMMAND", "unclosed 'quote"),
        ("ITL_APPLY_COMMAND", "  "),
        ("ITL_COMMAND_TIMEOUT_SECONDS", "soon"),
        ("ITL_COMMAND_TIMEOUT_SECONDS", "nan"),
        ("ITL_ATTEMPTS", "0"),
        ("ITL_LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_value_stops_the_start_and_names_its_source(variable: str, text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(UsageError, match=variable):
        load({}, {**URL, variable: text})


def test_the_address_of_the_service_is_needed() -> None:
    """There is no default: a default would be somebody's service."""
    with pytest.raises(UsageError, match="ITL_REG_URL"):
        load({}, {})


def test_commands_are_split_like_a_shell_would_but_run_by_none() -> None:
    """Quotes group; nothing is expanded."""
    assert load({}, {**URL, "ITL_APPLY_COMMAND": "a 'b c' $HOME;rm"}).apply_command == (
        "a",
        "b c",
        "$HOME;rm",
    )


def test_every_option_has_a_variable_of_its_own_and_a_help() -> None:
    """No two share one."""
    assert len({o.variable for o in OPTIONS}) == len(OPTIONS)
    assert all(o.help and o.variable.startswith("ITL_") for o in OPTIONS)


def test_what_the_shell_of_an_operator_holds_is_passed_over() -> None:
    """The variables of the command line are no mistake; one that nobody knows is."""
    beside = ("ITL_API_URL", "ITL_OIDC_ISSUER", "ITL_OIDC_CLIENT_ID", "ITL_PROFILE", "ITL_ADMIN_TOKEN_FILE")
    assert load({}, dict.fromkeys(beside, "x") | {"ITL_REG_URL": "https://x"}).server_url == "https://x"
    with pytest.raises(UsageError, match=r"unknown variable ITL_OICD_ISSUER"):
        load({}, {"ITL_REG_URL": "https://x", "ITL_OICD_ISSUER": "x"})


# Entry points


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required"),
        (["bogus"], "invalid choice"),
        (["run"], "ITL_REG_URL"),
        (["run", "--server-url", "https://x", "--ak", "dsa"], "--ak"),
        (["run", "--server-url", "https://x", "--bogus"], "--bogus"),
        (["quote", "--nonce", "xyz"], "hex"),
        (["quote", "--nonce", "ab" * 65], "64 bytes"),
        (["quote", "--pcrs", "md5:0"], "--pcrs"),
        (["quote", "--pcrs", "sha256:99"], "--pcrs"),
        (["quote", "--pcrs", "sha256"], "--pcrs"),
    ],
)
def test_a_usage_error_ends_with_64(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line that says what is wrong."""
    try:
        code = main(arguments)
    except SystemExit as e:
        code = int(str(e.code))
    assert code == Exit.USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["identify"], ["quote"]])
def test_an_absent_tpm_ends_with_20(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And names the place that was tried."""
    assert main([*command, "--tpm", f"unix:{tmp_path}/none"]) == Exit.TPM_UNAVAILABLE
    assert str(tmp_path) in capsys.readouterr().err


def test_register_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`itl-tpm-register` takes the options of `attestation-agent run`."""
    options = [
        "--server-url",
        "https://x",
        "--state-dir",
        str(tmp_path / "s"),
        "--tpm",
        f"unix:{tmp_path}/none",
    ]
    assert register([*options, "--once"]) == Exit.TPM_UNAVAILABLE
    first = json.loads(capsys.readouterr().err.splitlines()[0])
    assert (first["event"], first["level"]) == ("agent.starts", "info")


@pytest.mark.parametrize(
    ("url", "warned"),
    [("http://attest.example", True), ("HTTP://attest.example", True), ("http://127.0.0.1:9", False)],
)
def test_plain_http_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, *, warned: bool
) -> None:
    """Whoever is on the way chooses which keys are pinned; this computer itself is no network."""
    register(
        ["--server-url", url, "--state-dir", str(tmp_path / "s"), "--tpm", f"unix:{tmp_path}/none", "--once"]
    )
    assert ("server.not_encrypted" in capsys.readouterr().err) is warned


# Files and state


def test_a_file_is_whole_private_and_replaced_not_followed(tmp_path: Path) -> None:
    """A link at its place is replaced; what it pointed to is untouched."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "deep" / "config"
    write_atomically(path, b"one")
    path.unlink()
    path.symlink_to(victim)
    write_atomically(path, b"two")
    assert (path.read_bytes(), victim.read_text()) == (b"two", "precious")
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["config"]


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk does not damage what was there."""
    path = tmp_path / "config"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["config"]


def test_the_state_directory_is_private(tmp_path: Path) -> None:
    """Mode 0700, and files 0600."""
    state = State(tmp_path / "a" / "state")
    known = KnownAs(machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d", ek_fingerprint="ab" * 48)
    assert state.activated_at() is None
    state.remember(known, at=datetime(2026, 11, 21, tzinfo=UTC))
    assert state.activated_at() == "2026-11-21T00:00:00.000000Z"
    assert stat.S_IMODE(state.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((state.directory / "machine.json").stat().st_mode) == 0o600


def test_what_is_newest_only_rises(tmp_path: Path) -> None:
    """A service whose clock went back delivers over the network all the same; no file between comes back by that."""
    state = State(tmp_path)
    assert state.newest_config() == 0
    state.add_newest_config(20)
    state.add_newest_config(10)
    assert state.newest_config() == 20


def test_two_agents_do_not_share_a_state_directory(tmp_path: Path) -> None:
    """They would spend each other's challenges."""
    state = State(tmp_path)
    with state.alone(), pytest.raises(UsageError, match="another agent"), State(tmp_path).alone():
        pass
    with state.alone():
        pass


def test_a_state_directory_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    """Told at the start, not at the first write."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        State(tmp_path / "file" / "state")


@given(st.binary(max_size=200))
def test_damaged_files_are_as_if_absent_or_refused(data: bytes) -> None:
    """No content of the state makes the agent fail in another way."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        state = State(Path(directory))
        for name in ("machine.json", "service-keys.json", "status", "pending-config.json", "wipe.json"):
            (Path(directory) / name).write_bytes(data)
        assert state.known_as() is None
        assert state.pending_config() is None
        assert state.wipe_order() is None
        state.status()
        with pytest.raises(ServiceKeysChanged):
            state.service_keys()


@pytest.mark.parametrize("jwks", [{}, {"keys": None}, {"keys": [1]}, {"keys": []}, {"keys": "x"}])
def test_a_key_set_without_keys_is_never_pinned(tmp_path: Path, jwks: dict[str, Any]) -> None:
    """Otherwise nothing could ever verify, or anything might."""
    with pytest.raises(ServiceKeysChanged):
        State(tmp_path).pin(jwks)
    assert not (tmp_path / "service-keys.json").exists()


# Rhythm


@given(st.integers(1, 10_000), st.none() | st.integers(1, 10**9))
def test_pauses_are_bounded_and_never_short_of_retry_after(failures: int, retry_after: int | None) -> None:
    """At least a second, at most an hour and a quarter, not before the service said."""
    pause = Rhythm().after_failure(failures, retry_after)
    assert 1.0 <= pause <= 4500.0
    assert retry_after is None or pause >= min(retry_after, 3600)


@given(st.integers(-(10**9), 10**9))
def test_the_pace_is_kept_early_rather_than_late(asked: int) -> None:
    """Between 0.8 and 1.0 of what was asked, within bounds."""
    pause = Rhythm().after_answer(asked)
    bounded = min(max(asked, 1), 3600)
    assert 0.8 * bounded <= pause <= bounded


def test_a_thousand_agents_do_not_move_in_step() -> None:
    """Told the same second, they come back spread over a quarter of the time."""
    rhythm = Rhythm()
    pauses = sorted(rhythm.after_failure(3, 40) for _ in range(1000))
    assert pauses[-1] - pauses[0] > 8
    busiest = max(sum(1 for p in pauses if start <= p < start + 1) for start in range(40, 50))
    assert busiest < 200


# Hardware


def sysfs(tmp_path: Path, **dmi: str) -> Path:
    folder = tmp_path / "class/dmi/id"
    folder.mkdir(parents=True)
    for name, text in dmi.items():
        (folder / name).write_text(text)
    return tmp_path


def interface(
    root: Path, name: str, address: str, *, physical: bool = True, state: str = "up", kind: str = "1"
) -> None:
    folder = root / "class/net" / name
    folder.mkdir(parents=True)
    (folder / "address").write_text(f"{address}\n")
    (folder / "operstate").write_text(state)
    (folder / "type").write_text(kind)
    if physical:
        (folder / "device").mkdir()


def test_hardware_facts_are_read_and_cleaned(tmp_path: Path) -> None:
    """One line each, no control characters, at most 128 characters."""
    root = sysfs(
        tmp_path,
        product_uuid="4C4C4544-0042-3510-8054-B4C04F564433\n",
        product_serial="SN\x1b[2J1 \n",
        product_name="P" * 300,
    )
    interface(root, "lo", "00:00:00:00:00:00", kind="772")
    interface(root, "docker0", "02:42:00:00:00:01", physical=False)
    interface(root, "eth0", "AA:BB:CC:00:00:01", state="down")
    interface(root, "eth1", "AA:BB:CC:00:00:02")
    assert read_hardware(root) == {
        "hw_uuid": "4c4c4544-0042-3510-8054-b4c04f564433",
        "hw_mac": "aa:bb:cc:00:00:02",
        "hw_serial": "SN[2J1",
        "hw_product": "P" * 128,
    }


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """A container without /sys attests all the same; the chassis stands in for the product."""
    assert set(read_hardware(tmp_path / "none").values()) == {"unknown"}
    assert read_hardware(sysfs(tmp_path, chassis_serial="CH1", product_serial=" \n"))["hw_serial"] == "CH1"


# Commands


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_ends_with_its_status() -> None:
    """Success is status 0 and nothing else."""
    assert run_command(python("pass"), timeout_seconds=30).ok
    failed = run_command(python("raise SystemExit(3)"), timeout_seconds=30)
    assert (failed.ok, failed.text) == (False, "exit status 3")
    killed = run_command(python("import os; os.kill(os.getpid(), 9)"), timeout_seconds=30)
    assert (killed.ok, killed.text) == (False, "killed by signal 9")
    absent = run_command(["/nonexistent"], timeout_seconds=30)
    assert (absent.ok, absent.text) == (False, "cannot be started: No such file or directory")


def test_no_shell_reads_a_command(tmp_path: Path) -> None:
    """A path with a semicolon is a path."""
    marker = tmp_path / "marker"
    run_command(["true", f"; touch {marker}"], timeout_seconds=30)
    assert not marker.exists()


def test_a_command_that_does_not_end_is_ended() -> None:
    """After its time, or when the agent stops; politely, then not."""
    stubborn = python("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_DFL); time.sleep(60)")
    began = time.monotonic()
    assert run_command(stubborn, timeout_seconds=0.5).text == "no end within 0.5 s"
    assert (
        run_command(stubborn, timeout_seconds=60, stopping=lambda: True).text
        == "ended because the agent stops"
    )
    assert time.monotonic() - began < 60  # which each of them sleeps


def test_what_a_command_prints_does_not_reach_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    """It goes to stderr, beside the log; a command may print the configuration, and that is its own affair."""
    run_command(python("print('hello')"), timeout_seconds=30)
    assert capfd.readouterr() == ("", "hello\n")
