"""One browser and one world for the tests of a module in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.e2e.web.visitor import Visitor
from tests.e2e.web.world import World, world
from tests.fixtures import browser as programs

Visit = Callable[..., Visitor]


@pytest.fixture(scope="module", name="world")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The fleet and its people; not made where there is no browser."""
    try:
        programs.program()
    except programs.NotThere as e:
        pytest.skip(str(e))
    with world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture(scope="module", name="browser")
def _browser(world: World) -> Iterator[Browser]:
    """A browser. It is gone with the module: its driver runs the event loop of this thread."""
    with programs.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    try:
        return programs.axe()
    except programs.NotThere as e:
        pytest.skip(str(e))


@pytest.fixture
def visit(browser: Browser, world: World) -> Iterator[Visit]:
    """A function that sits somebody down before a new browser; no page of theirs broke a rule of its own policy."""
    seated: list[Visitor] = []

    def make(name: str, **more: Any) -> Visitor:
        seated.append(Visitor(browser, world, name, **more))
        return seated[-1]

    yield make
    said = [line for each in seated for line in each.console]
    for each in seated:
        each.context.close()
    assert said == []
