"""Fuzz with atheris: `python -m tests.fuzz [TARGET…] [--seconds N] [--corpus DIR]`.

One process per target, one after the other, all of them where none is named. Seeds come from the vectors, the
corpus grows under `.run/fuzz/<target>` unless told otherwise; a crash leaves its input there as `crash-<sha1>`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

DEFAULT_SECONDS = 60
INSTRUMENTED = (
    *("attestation", "attestation_agent", "attestation_extensions", "attestation_operator"),
    *("attestation_service", "attestation_testing"),
)
"""Whatever has a target: in a package that is not named the fuzzer sees no branch, and only guesses."""
ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run the targets named, or all; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="fuzz", description="fuzz the parsers with atheris")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=DEFAULT_SECONDS, help="per target")
    parser.add_argument("--corpus", type=Path, default=ROOT / ".run" / "fuzz")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.inside:
        return fuzz_here(chosen.targets[0], seconds=chosen.seconds, corpus=chosen.corpus)
    from tests.fuzz.targets import TARGETS

    if chosen.list:
        print("\n".join(TARGETS))
        return 0
    unknown = [name for name in chosen.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]}; there are: {', '.join(TARGETS)}")
    failed = [
        name
        for name in chosen.targets or TARGETS
        if not run(name, seconds=chosen.seconds, corpus=chosen.corpus / name)
    ]
    if failed:
        print(f"FAILED: {', '.join(failed)}; the inputs are in {chosen.corpus}/<target>/crash-*")
    return 1 if failed else 0


def run(name: str, *, seconds: int, corpus: Path) -> bool:
    """Fuzz one target in a process of its own, print executions and their rate; return False on a finding."""
    corpus.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.run", "--inside", name]
    command += ["--seconds", str(seconds), "--corpus", str(corpus)]
    with (corpus / "log.txt").open("wb") as log:
        ended = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    text = (corpus / "log.txt").read_text(errors="replace")
    done = re.search(r"^Done (\d+) runs in (\d+) second", text, re.MULTILINE)
    if ended.returncode or done is None:
        print(f"{name}: FAILED, exit {ended.returncode}")
        print("\n".join(text.splitlines()[-40:]), flush=True)
        return False
    executions, took = int(done[1]), max(1, int(done[2]))
    print(f"{name}: {executions} executions in {took} s, {executions // took} exec/s", flush=True)
    return True


def fuzz_here(name: str, *, seconds: int, corpus: Path) -> int:
    """Fuzz *name* in this process; does not return."""
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        targets = importlib.import_module("tests.fuzz.targets")
    target = targets.TARGETS[name]
    inputs = corpus / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (inputs / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={target.max_bytes}",
        f"-artifact_prefix={corpus}/",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        "-close_fd_mask=0",
    ]
    atheris.Setup([sys.argv[0], str(inputs), *options], target.check)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
