"""AttestationSchedules: creates their runs and takes old ones away, as part of the controller of runs.

Watches only change what is known here. One round, each second, looks at the schedules of which something is due or of
which something changed: so nothing is decided twice at the same time, and nothing is listed for a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from attestation.errors import AttestationError, Unavailable
from attestation_operator.actions import Create
from attestation_operator.controller import Around, Round
from attestation_operator.errors import ClusterRefused, ObjectChanged, ObjectExists
from attestation_operator.objects import NODE, RUN, SCHEDULE, Key, Kind, Raw
from attestation_operator.runs.schedule import reconcile, status, unreadable
from attestation_operator.runs.schedule_objects import (
    SCHEDULED_AT,
    Candidate,
    OpenRun,
    Schedule,
    ScheduledRun,
    Unreadable,
    read_candidate,
    read_open,
    read_run,
    read_schedule,
)

ROUND_SECONDS: Final = 1.0
ALL_KEPT: Final = timedelta(minutes=10)
"""How long the schedules and runs that were seen are all that there are."""
NODES_KEPT: Final = timedelta(minutes=1)
"""How long the Nodes that were listed are all that there are."""
AWAY: Final = timedelta(seconds=5)
"""How long nothing is looked at where the API server did not answer."""
AGAIN: Final = timedelta(seconds=30)
"""After so long a schedule is looked at again about which something failed."""
REST: Final = timedelta(minutes=10)
"""So often each schedule is looked at although nothing is due and nothing changed."""

_OF_A_CREATED_RUN: Final = {"uid": "", "resourceVersion": ""}
"""What the API server gave a run that was just created; the watch tells it in a moment."""


@dataclass(slots=True)
class _Known:
    """What is known of one schedule."""

    raw: Raw
    wake_at: datetime | None
    dealt_with: datetime | None = None
    waits_for: frozenset[str] = frozenset()
    waits_since: datetime | None = None


class Schedules:
    """What the controller of runs does about schedules; it hands over what its watches see.

    Args:
        around: What a controller is given.
        unsealed_kept: How long an old run waits for what comes of it.
    """

    name = "schedules"

    def __init__(self, around: Around, *, unsealed_kept: timedelta = timedelta(days=3)) -> None:
        self._around = around
        self._unsealed_kept = unsealed_kept
        self._term: object = None
        self._listed_at: datetime | None = None
        self._schedules: dict[Key, _Known] = {}
        self._runs: dict[Key, ScheduledRun] = {}
        self._open: dict[Key, OpenRun] = {}
        self._of: dict[tuple[str | None, str], dict[str, ScheduledRun]] = {}
        self._nodes: tuple[Candidate, ...] = ()
        self._nodes_at: datetime | None = None
        self._rests_until: datetime | None = None
        self._while_listing: dict[Key, Raw | None] | None = None

    @property
    def watches(self) -> Sequence[Kind]:
        """Schedules, and runs."""
        return (SCHEDULE, RUN)

    @property
    def rounds(self) -> Sequence[Round]:
        """Looking at what is due. What a replica knows from an earlier time of leading counts no more."""
        run = partial(self.look_at_all, object())
        return (Round(name="schedules", seconds=ROUND_SECONDS, run=run),)

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Take note of a schedule or a run."""
        self.note(key, seen if seen is not None else await self._around.cluster.read(key))
        return None

    def note(self, key: Key, raw: Raw | None) -> None:
        """Take note of what *key* is by now; None where it is gone."""
        if self._while_listing is not None:
            self._while_listing[key] = raw
        if key.kind == RUN:
            self._note_open(key, None if raw is None else read_open(raw))
            self._note_run(key, None if raw is None else read_run(raw))
        elif key.kind == SCHEDULE:
            self._note_schedule(key, raw)

    def _note_schedule(self, key: Key, raw: Raw | None) -> None:
        if raw is None:
            self._schedules.pop(key, None)
            return
        known = self._schedules.get(key)
        if known is None or known.raw["metadata"]["uid"] != raw["metadata"]["uid"]:
            self._schedules[key] = _Known(raw=raw, wake_at=self._now())
            return
        if known.raw["metadata"].get("generation") != raw["metadata"].get("generation"):
            known.wake_at = self._now()
        known.raw = raw

    def _note_open(self, key: Key, run: OpenRun | None) -> None:
        before = self._open.pop(key, None)
        if run is not None:
            self._open[key] = run
        elif before is not None:
            for known in self._schedules.values():
                if before.node in known.waits_for:
                    known.wake_at = self._now()

    def _note_run(self, key: Key, run: ScheduledRun | None) -> None:
        before = self._runs.pop(key, None)
        if before is not None:
            self._of.get((key.namespace, before.schedule_uid), {}).pop(key.name, None)
        if run is not None:
            self._runs[key] = run
            self._of.setdefault((key.namespace, run.schedule_uid), {})[key.name] = run
        changed = {each.schedule_uid for each in (before, run) if each is not None}
        if changed and before != run:
            for other, known in self._schedules.items():
                if other.namespace == key.namespace and known.raw["metadata"]["uid"] in changed:
                    known.wake_at = self._now()

    async def look_at_all(self, term: object) -> None:
        """Look at each schedule of which something is due, or changed.

        Args:
            term: The same for one time of leading.

        Raises:
            Unavailable: The API server is away, or another replica leads.
        """
        at = self._now()
        if self._rests_until is not None and at < self._rests_until:
            return
        self._rests_until = at + AWAY
        await self._look_at_all(term, at)
        self._rests_until = None

    async def _look_at_all(self, term: object, at: datetime) -> None:
        if term is not self._term or self._listed_at is None or at >= self._listed_at + ALL_KEPT:
            await self._list()
            self._term, self._listed_at = term, at
            at = self._now()  # it took its time, and what was noted meanwhile is looked at now
        # Who has waited longest comes first: else one that is always due would keep the others from a node for ever.
        for key, known in sorted(self._schedules.items(), key=lambda item: item[1].waits_since or at):
            if known.wake_at is None or known.wake_at > at or self._schedules.get(key) is not known:
                continue
            # Before it is looked at: what changes meanwhile is looked at again.
            known.wake_at = at + AGAIN
            try:
                await self._look(key, known, at)
            except ObjectChanged:
                known.wake_at = at
            except Unavailable:
                known.wake_at = at
                raise
            except AttestationError as e:
                # The others are not kept waiting.
                self._around.log.warning("schedule.failed", name=str(key), code=e.code, reason=str(e))

    async def _look(self, key: Key, known: _Known, at: datetime) -> None:
        if known.raw["metadata"].get("deletionTimestamp"):
            return
        schedule = await self._read(known, at)
        if schedule is None:
            return
        known.dealt_with = schedule.dealt_with
        runs = self._of.setdefault((key.namespace, schedule.target.uid), {})
        nodes = await self._candidates(at)
        # Nothing is awaited from here to the first that is created: what is open is open now.
        looked = reconcile(
            schedule,
            nodes,
            list(runs.values()),
            at,
            others=[run for run in self._open.values() if self._runs_of(run.key) is not runs],
            unsealed_kept=self._unsealed_kept,
        )
        known.waits_for = frozenset(looked.waits_for)
        known.waits_since = (known.waits_since or at) if looked.waits_for else None
        refused: str | None = None
        for each in looked.create:
            try:
                await self._around.executor.apply([each])
            except ObjectExists:
                # Another leader was faster, or we were, before a watch told of it; or somebody who wants it not asked.
                if (other := await self._not_ours(each)) is not None:
                    refused = other
                    continue
            except ClusterRefused as e:
                refused = str(e)
                continue
            self._created(each)
        active = sum(not run.ended for run in runs.values())
        await self._around.executor.apply(status(schedule, looked, at, active=active, refused=refused))
        known.dealt_with = looked.dealt_with
        await self._around.executor.apply(looked.prune)
        if (
            known.wake_at == at + AGAIN
        ):  # else something was noted meanwhile, and it is looked at again at once
            known.wake_at = at + REST if looked.wake_at is None else min(looked.wake_at, at + REST)

    async def _read(self, known: _Known, at: datetime) -> Schedule | None:
        """Return the schedule, None where nothing follows from it: then its status says so."""
        try:
            schedule = read_schedule(known.raw)
        except Unreadable as e:
            await self._around.executor.apply(unreadable(known.raw, str(e), at))
            known.wake_at = None
            return None
        # A watch may be behind what we wrote ourselves.
        if known.dealt_with is not None and (
            schedule.dealt_with is None or schedule.dealt_with < known.dealt_with
        ):
            return replace(schedule, dealt_with=known.dealt_with)
        return schedule

    async def _not_ours(self, action: Create) -> str | None:
        """Return why what is there under the name is not what was to be created, None where it is."""
        raw = await self._around.cluster.read(action.target)
        if raw is None:
            raise ObjectChanged(f"{action.target}: it was there, and is gone")
        owners = (raw["metadata"].get("ownerReferences"), action.raw["metadata"]["ownerReferences"])
        # What the API server adds are defaults.
        asked = {name: raw["spec"].get(name) for name in action.raw["spec"]}
        if owners[0] == owners[1] and asked == action.raw["spec"]:
            self.note(action.target, raw)
            return None
        return f"{action.target}: somebody else created a Run of this name"

    def _runs_of(self, key: Key) -> dict[str, ScheduledRun] | None:
        """Return the runs of the schedule that created a run, None where none did."""
        run = self._runs.get(key)
        return None if run is None else self._of.get((key.namespace, run.schedule_uid))

    def _created(self, action: Create) -> None:
        key = action.target
        if key not in self._runs:
            metadata: dict[str, Any] = {**_OF_A_CREATED_RUN, **action.raw["metadata"]}
            metadata["creationTimestamp"] = metadata["annotations"][SCHEDULED_AT]
            raw = {**action.raw, "metadata": metadata}
            run, is_open = read_run(raw), read_open(raw)
            assert run is not None
            assert is_open is not None
            self._runs[key], self._open[key] = run, is_open
            self._of.setdefault((key.namespace, run.schedule_uid), {})[key.name] = run

    async def _candidates(self, at: datetime) -> tuple[Candidate, ...]:
        if self._nodes_at is None or at >= self._nodes_at + NODES_KEPT:
            self._nodes = tuple(read_candidate(raw) for raw in await self._around.cluster.list(NODE))
            self._nodes_at = at
        return self._nodes

    async def _list(self) -> None:
        """Know all schedules and their runs, also those that no watch told of, and those that are gone."""
        self._while_listing = {}
        try:
            schedules = await self._around.cluster.list(SCHEDULE)
            # One that has ended and that no schedule created is nothing to us, and there may be many of them.
            every = await self._around.cluster.list(RUN)
            runs = [raw for raw in every if read_open(raw) is not None or read_run(raw) is not None]
            newer = self._while_listing
        finally:
            self._while_listing = None
        found: dict[Key, Raw | None] = {
            **{Key.of(SCHEDULE, raw): raw for raw in schedules},
            **{Key.of(RUN, raw): raw for raw in runs},
        }
        gone = [key for key in (*self._schedules, *self._runs, *self._open) if key not in found]
        for key, raw in {**dict.fromkeys(gone), **found, **newer}.items():
            self.note(key, raw)
        self._of = {whose: runs for whose, runs in self._of.items() if runs}
        for known in self._schedules.values():
            known.wake_at = self._now()
        self._nodes_at = None

    def _now(self) -> datetime:
        return self._around.clock.now()
