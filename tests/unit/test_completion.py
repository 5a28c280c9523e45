"""Completions of the programs that read their words with argparse: what may come is offered, where it may come."""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import subprocess
from pathlib import Path

import pytest

from attestation import completion
from attestation_service.commands.parser import parser as of_the_service

HOSTILE = 'it\'s $(touch /tmp/no) `touch no` \\ "quoted": %(prog)s'


@pytest.fixture(scope="module")
def sample() -> argparse.ArgumentParser:
    """Commands in two levels, options with and without values, and words that mean something to a shell."""
    made = argparse.ArgumentParser(prog="a-sample")
    made.add_argument("--port", type=int, help=HOSTILE)
    made.add_argument("-o", "--output", choices=("text", "json"), help="form")
    made.add_argument("--hidden", help=argparse.SUPPRESS)
    made.add_argument("--completion", action=completion.Print, help="print it")
    commands = made.add_subparsers()
    commands.add_parser("run", help="serve").add_argument("--fast", action="store_true", help="soon")
    below = commands.add_parser("db", help="the database").add_subparsers()
    below.add_parser("check", help=HOSTILE).add_argument("--whole", action="store_true")
    return made


LINES = {
    "": {"run", "db", "--port", "--output", "-o", "--completion", "--help", "-h"},
    "r": {"run"},
    "--output ": {"text", "json"},
    "-o j": {"json"},
    "db ": {"check", "--help", "-h"},
    "db check --w": {"--whole"},
    "--output json run --": {"--fast", "--help"},
}
"""What is offered after some words, the last of them perhaps begun."""


def test_bash_offers_what_may_come(sample: argparse.ArgumentParser, tmp_path: Path) -> None:
    """As its own shell says; a value of ours has no words, so files come in its place."""
    bash = shutil.which("bash")
    assert bash is not None
    script = [completion.bash(sample)]
    for line in [*LINES, "--port "]:
        words = ["a-sample", *line.split(" ")]
        array = " ".join(f"'{word}'" for word in words)
        script.append(
            f'COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _a_sample; echo "${{COMPREPLY[*]}}"'
        )
    done = subprocess.run(
        [bash, "--norc", "-euc", "\n".join(script)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    *offered, files = done.stdout.split("\n")[:-1]
    assert [set(each.split()) for each in offered] == list(LINES.values())
    assert files == ""
    assert list(tmp_path.iterdir()) == []


def test_fish_offers_what_may_come(sample: argparse.ArgumentParser, tmp_path: Path) -> None:
    """As fish itself completes the line, with what each word is for."""
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("no fish: apt-get install fish")
    (tmp_path / "a-sample.fish").write_text(completion.fish(sample), encoding="utf-8")
    for line, words in LINES.items():
        # Of options fish offers the long ones after -- and the others after -.
        asked = f"source a-sample.fish; complete -C {f'a-sample {line}'!r}"
        done = subprocess.run(
            [fish, "--no-config", "-c", asked], capture_output=True, text=True, check=True, cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, timeout=240,
        )  # fmt: skip
        found = {each.partition("\t")[0] for each in done.stdout.splitlines()}
        assert found >= {word for word in words if not word.startswith("-") or "-" in line.split(" ")[-1]}, (
            line
        )
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_is_accepted_by_its_shell(
    shell: str, sample: argparse.ArgumentParser, tmp_path: Path
) -> None:
    """Whatever stands in a help text is a text; where the shell is installed, it finds no fault."""
    for parser in (sample, of_the_service()):
        script = completion.SHELLS[shell](parser)
        assert "--hidden" not in script
        assert parser.prog in script
        if found := shutil.which(shell):
            subprocess.run([found, "-n"], input=script, text=True, check=True, timeout=240, cwd=tmp_path)


def test_an_option_prints_it(sample: argparse.ArgumentParser) -> None:
    """And ends the program."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), pytest.raises(SystemExit) as ended:
        sample.parse_args(["--completion", "zsh"])
    assert ended.value.code in (0, None)
    assert told.getvalue() == completion.zsh(sample)
    assert told.getvalue().startswith("#compdef a-sample\n")


def test_all_words_of_the_service_are_offered() -> None:
    """Each command, and each option of each."""
    script = completion.bash(of_the_service())
    for place in completion.places(of_the_service()):
        assert all(word in script for word in place.words)
    assert "db upgrade" in script
