"""Write pictures of the dashboard, from the world of its browser tests.

    .venv/bin/python -m tools.screenshots FOLDER [NAME…]
    .venv/bin/python -m tools.screenshots docs/operate/dashboard --docs

Each page of the tour (`tests/e2e/web/tour.py`) and of the navigation is there at 1440, 1024 and 390 pixels, dark and
light, at its whole height: `FOLDER/machines-1440-dark.png`; then, when the service was taken away, what is said of
that. `--print` writes them as a printer has them. With `--docs` the few that stand in the documentation are written,
as a window shows them, with fewer colours.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser

from tests.e2e.web.tour import BARS, Stop, asked, stops
from tests.e2e.web.visitor import Visitor
from tests.e2e.web.world import World, world
from tests.fixtures.browser import chromium

WIDTHS: Final = (1440, 1024, 390)
THEMES: Final = ("dark", "light")
HEIGHT: Final = 900
LATER: Final = (Stop(name="away", path="/", ok=False), Stop(name="away-machines", path="/machines", ok=False))
"""What is looked at when the service is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A picture of the documentation.

    Args:
        name: Of its file.
        path: Of the page; `{w-5}` is the id of a machine.
        theme: `dark` or `light`.
        who: Who looks at it.
        width: Of the window.
        then: What is done there before.
    """

    name: str
    path: str
    theme: str = "dark"
    who: str = "alice"
    width: int = 1440
    then: Callable[[Visitor], None] = field(default=lambda _: None)


DOCS: Final = (
    Shown(name="overview", path="/"),
    Shown(name="inbox", path="/inbox", theme="light"),
    Shown(name="approval", path="/approvals/{proposal}"),
    Shown(name="machines", path="/machines", theme="light"),
    Shown(name="machine", path="/machines/{w-5}"),
    Shown(name="telephone", path="/machines/{w-5}", width=390),
    Shown(name="query", path="/query", theme="light", then=asked(BARS)),
    Shown(name="audit", path="/audit", who="carol"),
)


def named(path: str) -> str:
    """Return what the picture of a page of the navigation is called."""
    return re.sub(r"[^\w.-]+", "-", path).strip("-") or "overview"


class Photographer:
    """Walks through the world with a window of each width, and writes what is seen.

    Args:
        folder: Where to.
        browser: Of all visitors.
        made: The world.
        widths: Of the window.
        only: Names of pages; none: all.
        paper: Write what a printer would.
    """

    def __init__(
        self,
        folder: Path,
        browser: Browser,
        made: World,
        widths: Sequence[int],
        *,
        only: Sequence[str],
        paper: bool,
    ) -> None:
        self._folder, self._browser, self._made = folder, browser, made
        self._widths, self._only, self._paper = widths, only, paper
        self._visitors: dict[tuple[str, str], Visitor] = {}

    def walk(self, places: Sequence[Stop], theme: str) -> None:
        """Take each of *places*."""
        for stop in [each for each in places if not self._only or each.name in self._only]:
            visitor = self._visitor(stop.who, theme)
            for width in self._widths:
                visitor.page.set_viewport_size({"width": width, "height": HEIGHT})
                stop.visit(visitor)
                if self._paper:
                    visitor.page.pdf(path=self._folder / f"{stop.name}.pdf", format="A4")
                else:
                    visitor.page.screenshot(
                        path=self._folder / f"{stop.name}-{width}-{theme}.png", full_page=True
                    )

    def everywhere(self, theme: str) -> Sequence[Stop]:
        """Return every page: alice decides; what an auditor sees beside that is carol's."""
        found: dict[str, Stop] = {}
        for who in ("alice", "carol"):
            for path in self._visitor(who, theme).areas():
                found.setdefault(path, Stop(name=named(path), path=path, who=who))
        return [*found.values(), *stops(self._made)]

    def leave(self) -> None:
        """Close the windows, and tell what their consoles said."""
        for visitor in self._visitors.values():
            print(*visitor.console, sep="\n", end="\n" if visitor.console else "")
            visitor.context.close()

    def _visitor(self, who: str, theme: str) -> Visitor:
        if (who, theme) not in self._visitors:
            self._visitors[who, theme] = Visitor(self._browser, self._made, who, theme=theme)
        return self._visitors[who, theme]


def photograph(
    folder: Path, widths: Sequence[int], themes: Sequence[str], only: Sequence[str], *, paper: bool
) -> None:
    """Make the world, walk through it, take the service away, and walk on."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, world(Path(place)) as made, chromium() as browser:
        taken = Photographer(folder, browser, made, widths, only=only, paper=paper)
        for theme in themes:
            taken.walk(taken.everywhere(theme), theme)
        made.service.kill()
        for theme in themes:
            taken.walk(LATER, theme)
        taken.leave()


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
            person.opens(shown.path.format(**known, proposal=made.proposal))
            shown.then(person)
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
    parser.add_argument("name", nargs="*", help="only these pages")
    parser.add_argument("--width", type=int, action="append", help="instead of 1440, 1024 and 390")
    parser.add_argument("--theme", choices=THEMES, action="append", help="instead of both")
    parser.add_argument("--docs", action="store_true", help="those of the documentation")
    parser.add_argument("--print", dest="paper", action="store_true", help="as a printer has them: PDF")
    given = parser.parse_args()
    if given.docs:
        illustrate(given.folder)
        return
    widths, themes = given.width or WIDTHS, given.theme or THEMES
    if given.paper:
        widths, themes = widths[:1], ("light",)
    photograph(given.folder, widths, themes, given.name, paper=given.paper)


if __name__ == "__main__":
    main()
