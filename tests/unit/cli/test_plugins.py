"""Plug-ins by entry point, really installed: found late, never trusted to be whole, never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """
import click

@click.group()
def group() -> None:
    "Webhooks."

@group.command("list")
def list_() -> None:
    "List them."
    click.echo("one gadget")

@group.command()
def crash() -> None:
    "Break in the middle of what it does, as programs do at which nobody looked for long enough: then it is told."
    raise ValueError("inner \\x1b[2J trouble")

@group.command()
def panic() -> None:
    "Break as compiled code does."
    raise BaseException("inner trouble")

@group.command()
def leave() -> None:
    "End with a code of its own."
    raise SystemExit(7)

@group.command()
def refuse() -> None:
    "Refuse as we do."
    from attestation.errors import RequestInvalid
    raise RequestInvalid("not so")
"""

Install = Callable[..., None]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory on the path of Python, as one where distributions are installed."""
    found = tmp_path / "site"
    found.mkdir()
    return found


def install(site: Path, name: str, module: str, code: str | None, **points: str) -> None:
    """Lay out a distribution as an installer does: a module, and a dist-info with its entry points."""
    if code is not None:
        (site / f"{module}.py").write_text(code)
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {value}" for point, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[attestation_cli_plugins]", *lines]) + "\n")


def attestation(
    site: Path, *args: str, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own, with *site* on its path."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
    path = os.pathsep.join([str(site), *filter(None, [known.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", "from attestation_cli.main import main; main()", *args],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
        env={**known, "PYTHONPATH": path, "HOME": str(site), **environment},
    )


def test_a_plugin_adds_a_command(site: Path) -> None:
    """It is listed with its origin, helps, and runs."""
    install(site, "itl-gadgets", "itl_gadgets", GOOD, gadget="itl_gadgets:group")
    listed = attestation(site, "--help")
    assert "Commands of plug-ins" in listed.stdout
    assert "From itl-gadgets." in listed.stdout
    assert "one gadget" in attestation(site, "gadget", "list").stdout
    helped = attestation(site, "gadget", "--help").stdout
    assert "List them." in helped
    # Whole up to where it explains, as of our own groups: click would break it off.
    assert "at which nobody looked for long enough." in " ".join(helped.split())
    assert listed.stderr == ""


def test_a_plugin_is_not_imported_before_it_is_used(site: Path) -> None:
    """Neither by --help nor by other commands."""
    loud = "import sys; print('loaded', file=sys.stderr)\n" + GOOD
    install(site, "itl-gadgets", "itl_gadgets", loud, gadget="itl_gadgets:group")
    for args in (["--help"], ["machine", "--help"], ["config", "path"]):
        assert "loaded" not in attestation(site, *args).stderr
    assert "loaded" in attestation(site, "gadget", "list").stderr


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("raise RuntimeError('half \\x1b[31mbuilt')", "broken:group"),
        ("import sys; sys.exit(9)", "broken:group"),
        ("raise BaseException('a panic of what was compiled')", "broken:group"),
        ("this is not Python", "broken:group"),
        ("group = 'no command'", "broken:group"),
        ("", "broken:group"),
        (None, "absent_module:group"),
    ],
)
def test_a_broken_plugin_breaks_nothing(site: Path, code: str | None, value: str) -> None:
    """It is named once on stderr, without a trace, when it is asked for; everything else works."""
    install(site, "itl-broken", "broken", code, broken=value)
    install(site, "itl-gadgets", "itl_gadgets", GOOD, gadget="itl_gadgets:group")
    asked = attestation(site, "broken", "list")
    assert asked.returncode == 2
    assert asked.stderr.count("note: plug-in broken is left out") == 1
    assert "Traceback" not in asked.stderr
    assert "\x1b" not in asked.stderr
    assert "No such command 'broken'" in asked.stderr
    for args in (["--help"], ["gadget", "list"], ["machine", "--help"], ["config", "path"]):
        assert attestation(site, *args).returncode == 0


@pytest.mark.threat("T58")
def test_a_plugin_cannot_take_the_place_of_a_built_in_command(site: Path) -> None:
    """`machine` stays ours; whoever wants it is named."""
    install(site, "itl-thief", "thief", GOOD, machine="thief:group", auth="thief:group")
    done = attestation(site, "machine", "--help")
    assert "List, judge and explain machines" in done.stdout
    assert "gadget" not in done.stdout.lower()
    listed = attestation(site, "--help")
    assert "plug-in machine is left out: itl-thief may not replace" in listed.stderr
    assert "itl-thief" not in listed.stdout


def test_two_plugins_of_one_name(site: Path) -> None:
    """The second is left out, and both are named."""
    install(site, "itl-one", "one", GOOD, gadget="one:group")
    install(site, "itl-two", "two", GOOD, gadget="two:group")
    done = attestation(site, "gadget", "list")
    assert done.returncode == 0
    assert "itl-one" in done.stderr
    assert "itl-two" in done.stderr


def test_metadata_that_cannot_be_read_breaks_nothing(site: Path) -> None:
    """A damaged distribution of anybody is not our end."""
    install(site, "itl-gadgets", "itl_gadgets", GOOD, gadget="itl_gadgets:group")
    (site / "damaged-1.0.dist-info").mkdir()
    (site / "damaged-1.0.dist-info" / "entry_points.txt").write_bytes(
        b"[attestation_cli_plugins\nx = \xff\n=\n"
    )
    for args in (["--help"], ["config", "path"], ["machine", "--help"]):
        assert attestation(site, *args).returncode == 0


def test_an_error_inside_a_plugin_is_told_as_the_plugin_s(site: Path) -> None:
    """What happened and whose it is, no trace; an error of ours keeps its meaning."""
    install(site, "itl-gadgets", "itl_gadgets", GOOD, gadget="itl_gadgets:group")
    crashed = attestation(site, "gadget", "crash")
    assert crashed.returncode == 6
    assert "the plug-in gadget (itl-gadgets) failed: ValueError: inner" in crashed.stderr
    assert "Traceback" not in crashed.stderr
    assert "\x1b[2J" not in crashed.stderr
    panicked = attestation(site, "gadget", "panic")
    assert panicked.returncode == 6
    assert "the plug-in gadget (itl-gadgets) failed: BaseException: inner trouble" in panicked.stderr
    assert "Traceback" not in panicked.stderr
    assert attestation(site, "gadget", "leave").returncode == 7
    assert attestation(site, "gadget", "refuse").returncode == 2
    usage = attestation(site, "gadget", "list", "--no-such-option")
    assert usage.returncode == 2
    assert "No such option" in usage.stderr


def test_who_reads_a_plugin_may_have_enough(site: Path) -> None:
    """`attestation run list | head -1` ends as with a command of ours, and tells nothing."""
    install(site, "itl-gadgets", "itl_gadgets", GOOD, gadget="itl_gadgets:group")
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = attestation(site, "gadget", "list", stdout=writes)
        ours = attestation(site, "config", "path", stdout=writes)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (ours.returncode, "")


def test_a_plugin_completes(site: Path) -> None:
    """Its commands are offered by the shell as ours are."""
    install(site, "itl-gadgets", "itl_gadgets", GOOD, gadget="itl_gadgets:group")
    offered = attestation(
        site,
        COMP_WORDS="attestation gadget ",
        COMP_CWORD="2",
        _ATTESTATION_COMPLETE="bash_complete",
    )
    assert {"plain,list", "plain,crash", "plain,refuse"} <= set(offered.stdout.split())
