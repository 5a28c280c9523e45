"""What a measurement says: a value, its floor, their ratio, the bar, and whether it holds."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = (
    "# Measurements\n\nWritten by `./dev bench`; one run, everything on one machine. "
    "Ratios are what counts, absolute times drift.\n\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure.

    Args:
        name: What was measured.
        value: The figure.
        unit: Its unit.
        floor: What the same work costs without us; None where there is no such thing.
        ratio: value / floor.
        bar: The demand, in words.
        ok: Whether it is met.
        note: What a reader must know to believe the figure.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    ratio: float | None = None
    bar: str
    ok: bool
    note: str = ""


def best_seconds(work: Callable[[], object], *, repeat: int = 15, number: int = 400) -> float:
    """Return the smallest mean time of one call over *repeat* rounds of *number* calls, without the collector."""
    work()
    best = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeat):
            start = time.perf_counter()
            for _ in range(number):
                work()
            best = min(best, (time.perf_counter() - start) / number)
    finally:
        gc.enable()
    return best


def table(measurements: Sequence[Measurement]) -> str:
    """Return *measurements* as a Markdown table."""
    lines = ["| what | value | floor | ratio | bar | holds |", "|---|---|---|---|---|---|"]
    for m in measurements:
        floor = f"{m.floor:,.3g} {m.unit}" if m.floor is not None else "–"
        ratio = f"{m.ratio:.2f}" if m.ratio is not None else "–"
        lines.append(
            f"| {m.name} | {m.value:,.4g} {m.unit} | {floor} | {ratio} | {m.bar} | {'yes' if m.ok else '**no**'} |"
        )
    return "\n".join(lines)


def write_results(measurements: Sequence[Measurement], section: str = "") -> None:
    """Write into RESULTS.md the table, the notes and the kind of machine: *section*, or what has no heading."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    head, *others = text.split("\n## ")
    sections = {"": head} | {each.partition("\n")[0]: f"## {each}" for each in others}
    notes = "\n".join(f"- **{m.name}**: {m.note}" for m in measurements if m.note)
    sections[section] = (
        (f"## {section}\n\n" if section else _HEAD)
        + f"Measured on {time.strftime('%Y-%m-%d', time.gmtime())}: {_cores()} cores ({_cpu()}), "
        f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}.\n\n"
        f"{table(measurements)}\n\n{notes}\n"
    )
    RESULTS.write_text("\n".join(each.rstrip("\n") + "\n" for each in sections.values()), encoding="utf-8")


def as_json(measurements: Sequence[Measurement]) -> dict[str, dict[str, object]]:
    """Return name -> value, unit, floor, ratio, bar, ok."""
    return {m.name: {k: v for k, v in asdict(m).items() if k != "name"} for m in measurements}


def _cores() -> int:
    import os

    return os.cpu_count() or 0


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
