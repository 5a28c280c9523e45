"""Several processes on one database: one chain, one redemption, and no acknowledged write is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from attestation.audit import AuditEvent, leaf_hash_of, verify_chain
from attestation.audit.merkle import Frontier, root
from attestation.store import Store, open_store
from tests.contract.store_samples import a_challenge

PRELUDE = """
import asyncio, sys
from attestation.audit import AuditEvent
from attestation.errors import ChallengeUsed
from attestation.store import open_store
from tests.contract.store_samples import *

store = open_store(sys.argv[1])
name = sys.argv[2]
"""

APPEND = (
    PRELUDE
    + """
async def main():
    async def append(number):
        event = AuditEvent(operator_cn=name, action="approve", detail=str(number))
        await store.write(lambda tx: tx.audit.append(event, NOW))
    for start in range(0, 1000, 20):
        await asyncio.gather(*(append(number) for number in range(start, start + 20)))
    await store.aclose()
asyncio.run(main())
"""
)

REDEEM = (
    PRELUDE
    + """
async def main():
    async def redeem(number):
        challenge_id, machine_id = a_challenge(number).challenge_id, a_machine().machine_id
        try:
            await store.write(lambda tx: tx.challenges.redeem(challenge_id, "attest", machine_id, NOW))
            return 1
        except ChallengeUsed:
            return 0
    sys.stdin.readline()
    for number in range(1, 11):
        print(sum(await asyncio.gather(*(redeem(number) for _ in range(50)))), flush=True)
    await store.aclose()
asyncio.run(main())
"""
)

WRITE_FOR_EVER = (
    PRELUDE
    + """
async def main():
    numbers = iter(range(1, 10**9))
    async def write():
        for number in numbers:
            await store.write(lambda tx: tx.challenges.issue(a_challenge(number)))
            sys.stdout.write(f"{number}\\n"); sys.stdout.flush()
    await asyncio.gather(*(write() for _ in range(32)))
asyncio.run(main())
"""
)

APPEND_FOR_EVER = (
    PRELUDE
    + """
async def main():
    numbers = iter(range(1, 10**9))
    async def append():
        for number in numbers:
            event = AuditEvent(operator_cn=name, action="approve", detail=str(number))
            await store.write(lambda tx: tx.audit.append(event, NOW))
            sys.stdout.write(f"{number}\\n"); sys.stdout.flush()
    await asyncio.gather(*(append() for _ in range(32)))
asyncio.run(main())
"""
)


def start(code: str, url: str, name: str) -> subprocess.Popen[str]:
    """Run *code* in a process of its own."""
    root = Path(__file__).resolve().parents[3]
    return subprocess.Popen(
        [sys.executable, "-c", code, url, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


def opened(url: str) -> Store:
    """Open the store."""
    return open_store(url)


@pytest.mark.threat("T26")
def test_two_processes_write_one_chain(store_url: str) -> None:
    """Two processes append a thousand entries each: every one is there, in one valid chain and one tree."""
    writers = [start(APPEND, store_url, name) for name in ("a", "b")]
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    store = opened(store_url)
    entries = store.read_sync(lambda tx: tx.audit.entries(0, 10_000))
    tree_root = store.read_sync(lambda tx: root(tx.audit.tree, 2000))
    store.close()
    frontier = Frontier()
    for _, entry in entries:
        frontier.append(leaf_hash_of(entry))
    assert frontier.root() == tree_root
    assert [row_id for row_id, _ in entries] == list(range(1, 2001))
    verdict = verify_chain(entries)
    assert (verdict.valid, verdict.entries) == (True, 2000)
    told = {(entry.operator_cn, entry.detail) for _, entry in entries}
    assert told == {(name, str(number)) for name in "ab" for number in range(1000)}


@pytest.mark.threat("T13")
def test_of_a_hundred_redemptions_in_two_processes_one_succeeds(store_url: str) -> None:
    """Ten challenges, each redeemed a hundred times at once: ten successes."""
    store = opened(store_url)
    for number in range(1, 11):
        store.write_sync(lambda tx, n=number: tx.challenges.issue(a_challenge(n)))  # type: ignore[misc]
    racers = [start(REDEEM, store_url, name) for name in ("a", "b")]
    successes = [0] * 10
    time.sleep(1)  # both are at the start before either may run
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        out, _ = racer.communicate(timeout=120)
        assert racer.returncode == 0
        successes = [a + int(b) for a, b in zip(successes, out.split(), strict=True)]
    store.close()
    assert successes == [1] * 10


@pytest.mark.threat("T27")
@pytest.mark.parametrize("killed_after", [1, 100, 400])
def test_kill_9_loses_no_acknowledged_write(store_url: str, killed_after: int) -> None:
    """Whatever a process said was stored is stored, though it was killed in the middle."""
    writer = start(WRITE_FOR_EVER, store_url, "a")
    assert writer.stdout is not None
    said = "".join(writer.stdout.readline() for _ in range(killed_after))
    writer.send_signal(signal.SIGKILL)
    said += writer.communicate(timeout=240)[0]
    acknowledged = [int(number) for number in re.findall(r"(\d+)\n", said)]
    assert len(acknowledged) >= killed_after
    store = opened(store_url)
    found = store.read_sync(lambda tx: [tx.challenges.get(a_challenge(n).challenge_id) for n in acknowledged])
    store.write_sync(lambda tx: tx.challenges.issue(a_challenge(10**10)))
    store.close()
    assert None not in found


@pytest.mark.parametrize("killed_after", [1, 250, 700])
def test_kill_9_leaves_chain_and_tree_whole(store_url: str, killed_after: int) -> None:
    """Between which statements ever: every entry has its leaf, every full tile its root, and the next fits."""
    writer = start(APPEND_FOR_EVER, store_url, "a")
    assert writer.stdout is not None
    said = "".join(writer.stdout.readline() for _ in range(killed_after))
    writer.send_signal(signal.SIGKILL)
    said += writer.communicate(timeout=240)[0]
    acknowledged = set(re.findall(r"(\d+)\n", said))
    assert len(acknowledged) >= killed_after
    store = opened(store_url)
    event = AuditEvent(operator_cn="b", action="approve")
    store.write_sync(lambda tx: tx.audit.append(event, datetime.now(UTC)))
    entries = store.read_sync(lambda tx: tx.audit.entries(0, 10**6))
    found = store.read_sync(lambda tx: root(tx.audit.tree, len(entries)))
    beyond = store.read_sync(lambda tx: tx.audit.tree.nodes(0, len(entries), 9))
    store.close()
    assert verify_chain(entries).entries == len(entries) == entries[-1][0]
    assert acknowledged <= {entry.detail for _, entry in entries}
    frontier = Frontier()
    for _, entry in entries:
        frontier.append(leaf_hash_of(entry))
    assert (frontier.root(), beyond) == (found, [])
