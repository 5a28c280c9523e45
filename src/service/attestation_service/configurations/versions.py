"""What is done with a version, whosever it is: of a role's base configuration, or of a machine's patch."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attestation.api import (
    ConfigurationChange,
    ConfigurationDetail,
    ConfigurationDiff,
    ConfigurationImport,
    ConfigurationInfo,
    PendingApproval,
)
from attestation.errors import AlreadyExists, ConfigurationUnknown
from attestation.machines import Machine, Role
from attestation.machines.dual_control import of_configuration
from attestation.store import ActiveConfiguration, Configuration, Place, SealedConfiguration, Tx
from attestation_service.auth import Operator
from attestation_service.configs.sealing import mark
from attestation_service.configs.sources import Sources
from attestation_service.configurations.subject import Subject
from attestation_service.operators import dual_control
from attestation_service.resources import Resources

if TYPE_CHECKING:
    from attestation_service.configurations.judging import Judged

ATTEMPTS = 5
"""So often a version gets another number, because somebody else stored one at the same time."""


async def store(
    place: Place, request: ConfigurationImport, res: Resources, operator: Operator
) -> ConfigurationDetail:
    """Judge a new version and keep it; see `handlers.import_base`."""
    text = request.document.encode()
    # 1. What nobody could use is not kept.
    newest = await res.configurations.beside.for_people(res.configurations.newest)

    def load(tx: Tx) -> Subject:
        if place.cluster_id:
            tx.clusters.demand_known(place.cluster_id)
        return _subject(tx, place, res)

    subject = await res.store.read(load)
    judged = await res.configurations.beside.for_people(
        partial(_judge, text, subject, res, request.talos_version, demand=True)
    )
    # 2. Under a number that nobody else took meanwhile.
    for _ in range(ATTEMPTS - 1):
        try:
            return await _store(place, text, newest, judged, request.note, res, operator)
        except AlreadyExists:
            continue
    return await _store(place, text, newest, judged, request.note, res, operator)


async def _store(
    place: Place,
    text: bytes,
    kek_id: str,
    judged: Judged,
    note: str | None,
    res: Resources,
    operator: Operator,
) -> ConfigurationDetail:
    at = res.clock.now()
    version = await res.store.read(lambda tx: tx.configurations.next_version(place))
    about = Configuration(
        place=place,
        version=version,
        sha256=hashlib.sha256(text).hexdigest(),
        size_bytes=len(text),
        talos_version=judged.talos_version,
        note=note,
        created_at=at,
        created_by=operator.cn,
        kek_id=kek_id,
    )
    # Sealed for its place and number, on a thread: it may ask a device.
    sealed = await res.configurations.beside.for_people(partial(res.configurations.seal, text, about))

    # One unit: version and audit. It is active nowhere, so a crash behind it leaves nothing half done.
    def work(tx: Tx) -> None:
        tx.configurations.add(sealed)
        told = f"{about.ref} sha256 {about.sha256}, {about.size_bytes} bytes, Talos {about.talos_version}"
        if note:
            told += f": {note}"
        tx.audit.append(operator.event("configuration_import", machine_id=_about(place), detail=told), at)

    await res.store.write(work)
    return _detail(about, None, judged)


async def show(place: Place, version: int, res: Resources) -> ConfigurationDetail:
    """Return one version without its secrets; see `handlers.get_base`."""

    def work(tx: Tx) -> tuple[SealedConfiguration, ActiveConfiguration | None, Subject]:
        subject = _subject(tx, place, res)
        return tx.configurations.get(place, version), tx.configurations.active(place), subject

    sealed, active, subject = await res.store.read(work)

    def look() -> Judged:
        return _judge(res.configurations.open(sealed).text, subject, res)

    return _detail(sealed.about, active, await res.configurations.beside.for_people(look))


async def diff(place: Place, before: int, after: int, res: Resources) -> ConfigurationDiff:
    """Return what differs between two versions; see `handlers.diff_bases`."""

    def work(tx: Tx) -> tuple[SealedConfiguration, SealedConfiguration, Subject]:
        subject = _subject(tx, place, res)
        return tx.configurations.get(place, before), tx.configurations.get(place, after), subject

    one, other, subject = await res.store.read(work)

    def look() -> list[ConfigurationChange]:
        from attestation_service.configurations import judging  # here, likewise

        kept = res.configurations
        return judging.changes(kept.open(one).text, kept.open(other).text, subject.sources.talos_version)

    return ConfigurationDiff(
        before=before, after=after, changes=await res.configurations.beside.for_people(look)
    )


async def activate(
    place: Place, version: int | None, reason: str | None, res: Resources, operator: Operator
) -> ConfigurationDetail | PendingApproval:
    """Let *version* be delivered, or the one before where it is None; or count a vote for that."""
    at, kept = res.clock.now(), res.configurations

    # 1. It can be opened, and Talos takes it today. On a thread; what is found is compared again in the unit.
    def load(tx: Tx) -> tuple[SealedConfiguration, Subject]:
        subject = _subject(tx, place, res)
        return tx.configurations.get(place, version or _previous(tx, place)), subject

    sealed, subject = await res.store.read(load)
    about = sealed.about

    opened = await kept.beside.for_people(partial(kept.open, sealed))
    judged = await kept.beside.for_people(partial(_judge, opened.text, subject, res, demand=True))

    def work(tx: Tx) -> ActiveConfiguration | PendingApproval:
        # 2. What is delivered there now is part of what is agreed to.
        now = tx.configurations.active(place)
        machine = _machine(tx, place)
        if (version or _previous(tx, place)) != about.version:
            raise ConfigurationUnknown(f"another version of {place} was made active meanwhile: ask again")
        proposal = of_configuration(
            place=str(place),
            cluster_id=machine.cluster_id if machine is not None else place.cluster_id,
            role=machine.role if machine is not None else Role(place.role),
            machine=machine,
            version=about.version,
            sha256=about.sha256,
            replaces=None if now is None else now.version,
            replaces_sha256=None if now is None else now.sha256,
        )
        # What is delivered already is no act, unless one operator activated it and several must agree by now.
        again = now is not None and (now.version, now.sha256) == (about.version, about.sha256)
        settled = again and now is not None and (now.agreed or not dual_control.gates(proposal, res))
        if now is not None and settled and operator.proposal is None:
            return now
        agreed = dual_control.gate(tx, proposal, operator, res, at, reason=reason)
        if isinstance(agreed, PendingApproval):
            return agreed
        # 3. The mark, the row and the audit are one unit.
        active = ActiveConfiguration(
            place=place,
            version=about.version,
            previous=now.previous if now is not None and again else None if now is None else now.version,
            sha256=about.sha256,
            activated_at=at,
            activated_by=operator.cn,
            agreed=bool(agreed.voters),
            mark=b"",
        )
        active = replace(active, mark=mark(opened, active))
        tx.configurations.activate(active)
        told = [f"{about.ref} sha256 {about.sha256}"]
        if now is not None:
            told.append(f"instead of version {now.version} sha256 {now.sha256}")
        if version is None:
            told.append("rollback")
        if reason:
            told.append(reason)
        event = operator.event(
            "configuration_activate",
            machine_id=_about(place),
            detail=agreed.told("; ".join(told)),
        )
        tx.audit.append(event, at)
        return active

    done = await dual_control.write(work, res=res, operator=operator, at=at, machine_id=_about(place))
    return done if isinstance(done, PendingApproval) else _detail(about, done, judged)


def _judge(
    text: bytes, subject: Subject, res: Resources, talos_version: str | None = None, *, demand: bool = False
) -> Judged:
    """Judge a configuration, on a thread; with *demand* what may not be kept or delivered is refused."""
    from attestation_service.configurations import judging  # here: few workers ever need YAML

    judged = judging.judge(text, subject, res, talos_version)
    if demand:
        judging.demand(judged, res.settings)
    return judged


def _about(place: Place) -> str | None:
    return place.machine_id or None


def _previous(tx: Tx, place: Place) -> int:
    active = tx.configurations.active(place)
    if active is None or active.previous is None:
        raise ConfigurationUnknown(f"no version of {place} was delivered before")
    return active.previous


def _machine(tx: Tx, place: Place) -> Machine | None:
    return tx.machines.require(place.machine_id) if place.machine_id else None


def _subject(tx: Tx, place: Place, res: Resources) -> Subject:
    """Return for whom a configuration of *place* is, and what else such a machine gets now."""
    machine = _machine(tx, place)
    if machine is not None:
        sources = Sources.of_machine(tx, machine, res.settings)
        return Subject(role=machine.role, cluster_id=machine.cluster_id, is_patch=True, sources=sources)
    role = Role(place.role)
    sources = Sources.of(tx, role, place.cluster_id, None, res.settings)
    return Subject(role=role, cluster_id=place.cluster_id, is_patch=False, sources=sources)


def info(about: Configuration, active: ActiveConfiguration | None) -> ConfigurationInfo:
    """Return what the API tells of a version, its text left out; *active* is what is delivered at its place."""
    return ConfigurationInfo.model_validate(_members(about, active))


def _detail(about: Configuration, active: ActiveConfiguration | None, judged: Judged) -> ConfigurationDetail:
    return ConfigurationDetail.model_validate(
        {**_members(about, active), "preview": judged.preview, "findings": judged.findings}
    )


def _members(about: Configuration, active: ActiveConfiguration | None) -> dict[str, object]:
    is_active = active is not None and active.version == about.version
    delivered = active if is_active else None
    return {
        "cluster_id": about.place.cluster_id or None,
        "role": about.place.role or None,
        "machine_id": about.place.machine_id or None,
        "version": about.version,
        "sha256": about.sha256,
        "size_bytes": about.size_bytes,
        "talos_version": about.talos_version,
        "note": about.note,
        "created_at": about.created_at,
        "created_by": about.created_by,
        "encryption_key_id": about.kek_id,
        "active": is_active,
        "activated_at": delivered and delivered.activated_at,
        "activated_by": delivered and delivered.activated_by,
        "agreed": bool(delivered and delivered.agreed),
        "previous": delivered and delivered.previous,
    }
