"""Explore the model of the node protocol: `python -m tools.model.check [--large] [--write]`.

Needs spin and a C compiler (Debian: `spin`, `gcc`). The protocol must hold in every state within the bounds; with
one control taken away, each must fail, and the shortest way there is told in words. `--write` puts these words into
docs/protocol/model.md, which a test compares.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = HERE.parents[1] / "docs" / "protocol" / "model.md"
BOUNDS: Final = {"ROUNDS": 3, "CHALLENGES": 2, "TOKENS": 2, "ACTS": 2, "RESTARTS": 1}
LARGE: Final = BOUNDS | {"ROUNDS": 4}
SMALL: Final = BOUNDS | {"ROUNDS": 2, "CHALLENGES": 1, "TOKENS": 1, "ACTS": 1, "RESTARTS": 0}
MEMORY_MB: Final = 8000
SECONDS: Final = 600


@dataclass(frozen=True, slots=True)
class Reverted:
    """A control that is taken away.

    Args:
        title: What is missing, for the page.
        define: The macro that takes it away.
        bounds: Where its failure is looked for; the smallest that show it.
        orders_only: Look at what A obeys only, not at what must happen in the end.
    """

    title: str
    define: str
    bounds: dict[str, int]
    orders_only: bool = False


REVERTED: Final = (
    Reverted(
        "Orders name only the `machine_id`",
        "REVERT_A1",
        SMALL | {"ROUNDS": 2},
        orders_only=True,
    ),
    Reverted("The machine's own nonce is not compared", "REVERT_A2", SMALL | {"ROUNDS": 3}, orders_only=True),
    Reverted("A status that nobody signed changes the mode", "REVERT_A3", SMALL),
    Reverted("`cluster_id` is obeyed", "REVERT_A4", SMALL),
    Reverted("A second EK of a chip is another machine", "REVERT_A5", SMALL),
    Reverted("EKs of one chip are linked only to machines that ended", "LINKS_ONLY_TO_ENDED", SMALL),
    Reverted("What was fetched counts as delivered", "FETCH_IS_DELIVERY", SMALL),
)
MACHINES: Final = {"1": "A", "2": "B", "3": "E", "4": "C"}
ORDERS: Final = {"1": "apply-config", "2": "lock", "3": "unlock", "4": "wipe"}
STATUSES: Final = ("none", "pending", "registered", "attested", "locked", "revoked")


@dataclass(frozen=True, slots=True)
class Explored:
    """What spin found: how many states, and the steps to the first failure, or none."""

    states: int
    steps: tuple[str, ...]


class NotExplored(RuntimeError):
    """The search did not reach an end; nothing is known."""


def missing() -> str | None:
    """Say what is needed and not there; None where everything is."""
    absent = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else None


def version() -> str:
    """Return the version of spin, such as `6.5.2`."""
    said = subprocess.run(["spin", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Version (\S+)", said)
    return found[1] if found else said.strip()


def explore(bounds: dict[str, int], *defines: str, shortest: bool = False) -> Explored:
    """Explore every state within *bounds*, with *defines* of the model.

    Args:
        bounds: Macro to number.
        defines: Macros that take controls away.
        shortest: Look breadth first, so that the first failure has the fewest steps.

    Raises:
        NotExplored: Memory or time did not suffice.
    """
    macros = [f"-D{name}={value}" for name, value in bounds.items()] + [f"-D{name}" for name in defines]
    with tempfile.TemporaryDirectory() as place:

        def run(*command: str) -> str:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=SECONDS)
            if done.returncode != 0:
                raise NotExplored(f"{command[0]}: {done.stdout[-500:]}{done.stderr[-500:]}")
            return done.stdout

        shutil.copy(HERE / "node_protocol.pml", place)
        run("spin", "-a", *macros, "node_protocol.pml")
        search = ["-DBFS"] if shortest else []
        run(
            "gcc",
            "-w",
            # A failure is found within moments; to optimise takes longer than the search.
            "-O0" if shortest else "-O2",
            "-DSAFETY",
            "-DCOLLAPSE",
            f"-DMEMLIM={MEMORY_MB}",
            *search,
            "-o",
            "pan",
            "pan.c",
        )
        said = run("./pan", "-m100000")
        states, errors = re.search(r"(\d+) states, stored", said), re.search(r"errors: (\d+)", said)
        if states is None or errors is None or re.search(r"max search depth|out of memory|limit", said):
            raise NotExplored(said[-500:])
        if errors[1] == "0":
            return Explored(int(states[1]), ())
        trace = run("spin", "-t", "-T", "-B", *macros, "node_protocol.pml")
    steps = [line.strip() for line in trace.splitlines()]
    return Explored(int(states[1]), tuple(in_words(s) for s in steps if s and not s.startswith("spin")))


def in_words(step: str) -> str:
    """Return a step of a trace with names in place of the model's numbers."""
    step = re.sub(r"machine (\d)", lambda m: f"machine {MACHINES[m[1]]}", step)
    step = re.sub(r"(orders|order) (\d)", lambda m: f"{m[1]} {ORDERS[m[2]]}", step)
    step = re.sub(r"acknowledgement of (\d)", lambda m: f"acknowledgement of {ORDERS[m[1]]}", step)
    step = re.sub(r"status (\d)", lambda m: f"status {STATUSES[int(m[1])]}", step)
    return re.sub(r" \(token 0\)", "", step)


def without(reverted: Reverted) -> Explored:
    """Explore the protocol without one control."""
    defines = (reverted.define, *(("ORDERS_ONLY",) if reverted.orders_only else ()))
    return explore(reverted.bounds, *defines, shortest=True)


def traces() -> str:
    """Return what the page says of each control: its title, and the steps to the failure without it."""
    parts = []
    for reverted in REVERTED:
        found = without(reverted)
        steps = "\n".join(f"{i}. {step}" for i, step in enumerate(found.steps, 1))
        parts.append(f"### {reverted.title}\n\n`-D {reverted.define}`:\n\n{steps}\n")
    return "\n".join(parts)


BEGIN: Final = "<!-- traces: written by `python -m tools.model.check --write` with spin {} -->\n"
END: Final = "<!-- end of traces -->"


def written(page: str) -> tuple[str, str]:
    """Return the version of spin that wrote the traces in *page*, and the traces."""
    found = re.search(re.escape(BEGIN).replace(r"\{\}", r"(\S+)") + "(.*?)" + re.escape(END), page, re.DOTALL)
    if found is None:
        raise ValueError("the page has no place for traces")
    return found[1], found[2].strip()


def main() -> int:
    """Explore, say what was found, and return 1 where it is not as it must be."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--large", action="store_true", help="larger bounds: about a minute and 2 GB more")
    asked.add_argument("--write", action="store_true", help="write the traces into docs/protocol/model.md")
    flags = asked.parse_args()
    if (lacking := missing()) is not None:
        print(f"{lacking}: apt-get install --no-install-recommends spin gcc libc6-dev", file=sys.stderr)
        return 2
    status = 0
    bounds = LARGE if flags.large else BOUNDS
    whole = explore(bounds)
    print(f"the protocol: {whole.states:,} states within {bounds}:", "FAILS" if whole.steps else "holds")
    for step in whole.steps:
        status = 1
        print(f"  {step}")
    for reverted in REVERTED:
        found = without(reverted)
        print(f"\n{reverted.title}: {'fails' if found.steps else 'HOLDS, so the control is not needed?'}")
        for step in found.steps:
            print(f"  {step}")
        status = status or int(not found.steps)
    if flags.write and status == 0:
        page = PAGE.read_text(encoding="utf-8")
        _, old = written(page)
        page = re.sub(r"with spin \S+ -->", f"with spin {version()} -->", page)
        PAGE.write_text(page.replace(old, traces().strip()), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
