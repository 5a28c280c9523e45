"""Settings of the kiosk: where they come from, which one counts, and what is no setting."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from attestation_agent.exits import UsageError
from attestation_agent.kiosk import gpt, main, media
from attestation_agent.kiosk.settings import STATE_DIR, load
from attestation_agent.kiosk.sources import parse_cmdline, parse_conf
from tests.unit.agent.kiosk.bench import ESP_BYTES, MIB, Bench, make_fat, table

STICK = uuid.UUID("11111111-2222-4333-8444-555555555555")


def test_kernel_arguments_are_read_as_the_kernel_reads_them() -> None:
    """Quotes keep spaces; others' arguments are others'; the same twice is once."""
    line = b'quiet itl.reg_url=https://a.example itl.role="worker app" root="itl.no=1 x" itl.reg_url=https://a.example\n'
    assert parse_cmdline(line) == {"ITL_REG_URL": "https://a.example", "ITL_ROLE": "worker app"}
    assert parse_cmdline(b"") == {}
    assert parse_cmdline(b'itl.role=""') == {"ITL_ROLE": ""}


@pytest.mark.threat("T332")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"itl.reg_ulr=x", "unknown kernel argument 'itl.reg_ulr'"),
        (b"itl.auto_confirm", "unknown kernel argument"),
        (b"itl.registration_token=s3cret", "every program of the machine can read it"),
        (b"itl.role=a itl.role=b", "said twice"),
        (b"itl.role=a\x07", "not printable"),
        (b"itl.role=" + b"a" * 5000, "too long"),
        (b"a" * 70_000, "more than 65536"),
    ],
)
def test_a_kernel_argument_that_is_none_stops_the_start(line: bytes, words: str) -> None:
    """A typo must not switch a control off; a secret is refused by name and never repeated."""
    with pytest.raises(UsageError, match=words) as caught:
        parse_cmdline(line)
    assert "s3cret" not in str(caught.value)


def test_a_file_of_settings_is_read() -> None:
    """Remarks, blanks, quotes, line ends of other systems."""
    text = (
        b"# remark\r\n\n ITL_REG_URL = x\n".replace(b" = ", b"=") + b"ITL_ROLE=\"a b\"\nITL_CLUSTER_ID='c'\n"
    )
    assert parse_conf(text, "f") == {"ITL_REG_URL": "x", "ITL_ROLE": "a b", "ITL_CLUSTER_ID": "c"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"ITL_ROLE a", "f:1: not ITL_"),
        (b"\nPATH=/bin", "f:2: not ITL_"),
        (b"ITL_ROLE=a\nITL_ROLE=b", "f:2: ITL_ROLE is said twice"),
        (b"ITL_ROLE=\xff", "not UTF-8"),
        (b"#" * 70_000, "more than"),
    ],
)
def test_a_line_that_is_no_setting_is_named(data: bytes, words: str) -> None:
    """By file and number."""
    with pytest.raises(UsageError, match=words):
        parse_conf(data, "f")


def test_settings_are_those_of_agent_and_kiosk() -> None:
    """What the kiosk remembers is in memory; an unknown variable stops it."""
    chosen = load({"ITL_ROLE": "worker-infra", "ITL_OFFLINE": "yes"})
    assert (chosen.kiosk.offline, chosen.agent.desired_role, chosen.agent.state_dir) == (
        "yes",
        "worker-infra",
        STATE_DIR,
    )
    assert not chosen.kiosk.auto_confirm
    for variables in ({"ITL_AUTO_CONFIRMED": "yes"}, {"ITL_AUTO_CONFIRM": "maybe"}, {"ITL_OFFLINE": "1"}):
        with pytest.raises(UsageError):
            load(variables)


@pytest.mark.threat("T332")
def test_the_nearest_source_counts(tmp_path: Path) -> None:
    """Environment, kernel argument, file of the system, file and files of the medium that was booted."""
    bench = Bench(tmp_path / "machine")
    stick = bench.disk("sda")
    stick.write_bytes(table((gpt.ESP, STICK, MIB, ESP_BYTES)) + bytes(ESP_BYTES))
    fat = make_fat(stick, MIB)
    fat.write("EFI/itl/itl-reg.conf", b"ITL_ROLE=m\nITL_CLUSTER_ID=m\nITL_REG_URL=m\nITL_IMAGE_URL=m\n")
    fat.write("EFI/itl/registration.token", b"the token\n")
    # A disk of before, with everything that could tempt us.
    other = make_fat(bench.disk("sdb"), 0, label="ITL_BUNDLE")
    other.write("EFI/itl/image.keys", b"evil")
    other.write("itl/image.keys", b"evil")
    conf = tmp_path / "conf"
    conf.write_text("ITL_ROLE=c\nITL_CLUSTER_ID=c\nITL_REG_URL=c\n")
    bench.put("proc/cmdline", "itl.role=worker-app itl.cluster_id=k\n")
    environ = {**bench.variables, "ITL_ROLE": "worker-infra", "PATH": "/bin"}
    near, _ = main.found(environ, conf)
    assert "ITL_IMAGE_URL" not in near
    bench.booted(STICK)
    found, machine = main.found(environ, conf)
    assert [found[f"ITL_{name}"] for name in ("ROLE", "CLUSTER_ID", "REG_URL", "IMAGE_URL")] == [
        "worker-infra",
        "k",
        "c",
        "m",
    ]
    assert machine.boot_disk == "sda"
    token = Path(found["ITL_REGISTRATION_TOKEN_FILE"])
    assert token.read_text() == "the token\n"
    assert token.stat().st_mode & 0o777 == 0o600
    assert "ITL_IMAGE_KEYS" not in found


def test_a_directory_can_stand_for_the_medium(tmp_path: Path) -> None:
    """One that somebody mounted; its files are those of EFI/itl."""
    bench = Bench(tmp_path / "machine")
    for name in media.FILES:
        bench.put(f"medium/{name}", "x")
    found, _ = main.found(
        {**bench.variables, "ITL_MEDIUM_DIR": str(bench.root / "medium")}, tmp_path / "none"
    )
    assert set(media.FILES.values()) <= found.keys()
    bench.put("medium/ca.pem", "x" * 70_000)
    with pytest.raises(UsageError, match=r"ca\.pem has more than"):
        main.found({**bench.variables, "ITL_MEDIUM_DIR": str(bench.root / "medium")}, tmp_path / "none")
