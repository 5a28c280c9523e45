"""Write a picture of each page of the dashboard, from the world of its browser tests.

    .venv/bin/python -m tools.screenshots FOLDER [PATH…]

Each page is there at 1440, 1024 and 390 pixels, dark and light, at its whole height: `FOLDER/machines-1440-dark.png`.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.web.visitor import Visitor
from tests.e2e.web.world import World, world
from tests.fixtures.browser import chromium

WIDTHS: Final = (1440, 1024, 390)
THEMES: Final = ("dark", "light")
HEIGHT: Final = 900


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


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("path", nargs="*", help="only these pages")
    parser.add_argument("--width", type=int, action="append", help="instead of 1440, 1024 and 390")
    parser.add_argument("--theme", choices=THEMES, action="append", help="instead of both")
    given = parser.parse_args()
    photograph(given.folder, given.path, given.width or WIDTHS, given.theme or THEMES)


if __name__ == "__main__":
    main()
