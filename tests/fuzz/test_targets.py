"""The fuzz targets hold on their seeds and near them, without a fuzzer."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from tests.fuzz import targets
from tests.fuzz.run import INSTRUMENTED
from tests.fuzz.targets import TARGETS

MUTATIONS = 1000


def mutated(data: bytes, source: random.Random) -> bytes:
    """Return *data* with up to four small changes: flipped, removed, repeated, overwritten or inserted bytes."""
    out = bytearray(data)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(out) + 1)
        change = source.randrange(5)
        if change == 0 and at < len(out):
            out[at] ^= 1 << source.randrange(8)
        elif change == 1:
            del out[at : at + source.randint(1, 8)]
        elif change == 2:
            out[at:at] = out[at : at + source.randint(1, 16)]
        elif change == 3:
            out[at : at + 2] = source.choice((b"\0\0", b"\xff\xff", b"\0\x10", b"\x80\x01"))
        else:
            out[at:at] = source.randbytes(source.randint(1, 4))
    return bytes(out)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_their_neighbours(name: str) -> None:
    """No seed and none of a thousand inputs near one raises anything but the documented error."""
    target = TARGETS[name]
    seeds = target.seeds()
    assert seeds
    source = random.Random(name)
    for seed in (b"", *seeds):
        target.check(seed)
    for _ in range(MUTATIONS):
        target.check(mutated(source.choice(seeds), source))


def test_the_fuzzer_sees_the_branches_of_what_it_tries() -> None:
    """Each package of ours that a target calls is instrumented: elsewhere no input is ever new, and none is kept."""
    tree = ast.parse(Path(targets.__file__).read_text())
    called = {
        node.module.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    assert {name for name in called if name.startswith("attestation")} == set(INSTRUMENTED)
