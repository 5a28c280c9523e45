"""Write pictures of the dashboard, from the world of its browser tests.

    .venv/bin/python -m tools.screenshots FOLDER [PATH…]
    .venv/bin/python -m tools.screenshots docs/operate/dashboard --docs

Each page is there at 1440, 1024 and 390 pixels, dark and light, at its whole height: `FOLDER/machines-1440-dark.png`.
With `--docs` the few that stand in the documentation are written, as a window shows them, with fewer colours.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from tests.e2e.web.visitor import Visitor
from tests.e2e.web.world import World, world
from tests.fixtures.browser import chromium

WIDTHS: Final = (1440, 1024, 390)
THEMES: Final = ("dark", "light")
HEIGHT: Final = 900
QUERY: Final = "Machines\n| summarize machines = count() by trust\n| render barchart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A picture of the documentation.

    Args:
        name: Of its file.
        path: Of the page; `{w-5}` is the id of a machine.
        theme: `dark` or `light`.
        who: Who looks at it.
        width: Of the window.
    """

    name: str
    path: str
    theme: str = "dark"
    who: str = "alice"
    width: int = 1440


DOCS: Final = (
    Shown(name="overview", path="/"),
    Shown(name="inbox", path="/inbox", theme="light"),
    Shown(name="approval", path="/approvals/{proposal}"),
    Shown(name="machines", path="/machines", theme="light"),
    Shown(name="machine", path="/machines/{w-5}"),
    Shown(name="telephone", path="/machines/{w-5}", width=390),
    Shown(name="query", path=f"/query?{urlencode({'q': QUERY})}", theme="light"),
    Shown(name="audit", path="/audit", who="carol"),
)


def name_of(path: str, made: World) -> str:
    """Return what the file of a page is called: ids of machines are told by their names."""
    for name, machine in made.machines.items():
        path = path.replace(machine.machine_id, name)
    path = path.replace(made.proposal, "proposal")
    return re.sub(r"[^\w.-]+", "-", path).strip("-") or "overview"


def photograph(folder: Path, paths: Sequence[str], widths: Sequence[int], themes: Sequence[str]) -> None:
    """Make the world, walk through it, and write the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, world(Path(place)) as made, chromium() as browser:
        for theme in themes:
            seen: set[str] = set()
            # Alice decides; what an auditor sees beside that is Carol's.
            for name in ("alice", "carol"):
                person = Visitor(browser, made, name, theme=theme)
                pages = paths or [*person.areas(), *(made.beyond() if name == "alice" else ())]
                for path in [each for each in pages if each not in seen]:
                    seen.add(path)
                    for width in widths:
                        person.page.set_viewport_size({"width": width, "height": HEIGHT})
                        person.opens(path)
                        file = folder / f"{name_of(path, made)}-{width}-{theme}.png"
                        person.page.screenshot(path=file, full_page=True)
                for line in person.console:
                    print(line)
                person.context.close()


def illustrate(folder: Path) -> None:
    """Write the pictures of the documentation.

    Raises:
        SystemExit: No pngquant, without which they would be too large.
    """
    pngquant = shutil.which("pngquant")
    if pngquant is None:
        sys.exit("pngquant is missing: sudo apt-get install pngquant")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, world(Path(place)) as made, chromium() as browser:
        known = {name: machine.machine_id for name, machine in made.machines.items()}
        for shown in DOCS:
            person = Visitor(
                browser, made, shown.who, theme=shown.theme, viewport={"width": shown.width, "height": HEIGHT}
            )
            person.opens("/account")
            # By a link of ours: a query that comes from elsewhere waits until somebody has read it.
            with person.page.expect_navigation():
                person.page.evaluate(
                    "to => { location.href = to }", shown.path.format(**known, proposal=made.proposal)
                )
            file = folder / f"{shown.name}.png"
            person.page.screenshot(path=file)
            person.context.close()
            subprocess.run(
                [pngquant, "--force", "--strip", "--speed=1", "--output", file, "64", "--", file], check=True
            )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("path", nargs="*", help="only these pages")
    parser.add_argument("--width", type=int, action="append", help="instead of 1440, 1024 and 390")
    parser.add_argument("--theme", choices=THEMES, action="append", help="instead of both")
    parser.add_argument("--docs", action="store_true", help="those of the documentation")
    given = parser.parse_args()
    if given.docs:
        illustrate(given.folder)
        return
    photograph(given.folder, given.path, given.width or WIDTHS, given.theme or THEMES)


if __name__ == "__main__":
    main()
