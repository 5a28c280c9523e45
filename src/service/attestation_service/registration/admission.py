"""What a machine becomes when its AK is proven: admitted by token or list, waiting, or known already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime

from attestation.audit import AuditEvent
from attestation.endorsements import PathValidation, judge_ek_trust
from attestation.errors import (
    NameInUse,
    RegistrationTokenInvalid,
)
from attestation.machines import (
    DEFAULT_CLUSTER,
    Anchor,
    Machine,
    NodeEvent,
    Role,
    SeenHardware,
    Status,
    Transition,
    next_status,
)
from attestation.machines.chips import Kinship, MarkKind
from attestation.machines.chips import judge as kinship_of
from attestation.store import AKBinding, ApprovalRule, RegistrationToken, Tx
from attestation_service.border import limits
from attestation_service.entitlements import alarms, approval_rules, names, pending
from attestation_service.entitlements.events import emit, hardware
from attestation_service.registration import elsewhere
from attestation_service.registration.binding import kinship_shown
from attestation_service.registration.elsewhere import MOST_MARKS
from attestation_service.registration.introduction import Alternative, Introduction
from attestation_service.registration.vouching import Vouching
from attestation_service.resources import Resources
from attestation_service.settings import Settings
from attestation_service.verifier import endorsements, policy


@dataclass(frozen=True, slots=True)
class _Admission:
    """How a machine nobody knows may come in: what an operator decided in advance, or nothing."""

    status: Status
    role: Role | None = None
    hostname: str | None = None
    assigned_ip: str | None = None
    cluster_id: str | None = None
    allow_listed: bool = False
    rule: str | None = None
    alarm: str | None = None


def endorsed_by(tx: Tx, introduction: Introduction, res: Resources, at: datetime) -> PathValidation | None:
    """Ask the bundle in force who vouches for the EK; None where it has no certificate."""
    if introduction.certificate_der is None or introduction.certificate is None:
        return None
    return res.anchors.judge(
        tx,
        introduction.certificate_der,
        introduction.chain,
        vendor=introduction.certificate.manufacturer,
        at=at,
        enrolling=True,
    )


def _waits(
    tx: Tx,
    token: RegistrationToken | ApprovalRule,
    validation: PathValidation | None,
    res: Resources,
    *,
    ak_certified: bool,
) -> bool:
    """Return True where a machine is vouched for less than its token, or the role of the token, demands."""
    trust = judge_ek_trust(allow_listed=False, chain=validation, ak_certified=ak_certified)
    cluster_id = token.cluster_id or DEFAULT_CLUSTER
    needed = policy.of_role(tx, token.role, cluster_id, res.settings).assurance_minimum(token.role)
    return trust.assurance.level < max(needed.level, token.minimum_assurance.level)


def admit(
    tx: Tx,
    introduction: Introduction,
    validation: PathValidation | None,
    res: Resources,
    at: datetime,
    *,
    waits: bool,
    spend: bool = False,
    ak_certified: bool = False,
    expected: bool = False,
) -> _Admission:
    """Decide what a new machine becomes; `spend` takes a use of its registration token, `waits` passes all words over.

    One that is `expected` has a row already: strangers who use up what all strangers may have do not keep it out.

    A token admits a machine that is vouched for well enough for its role. Another one waits for an operator, and
    the token keeps its use; so does a machine that would be called like another one, whatever admits it.
    Who vouches for its AK (`ak_certified`) is known at the activation, and not before.

    Raises:
        RegistrationTokenInvalid: A token was presented that admits nobody.
        PendingQuotaExceeded: It would wait for approval, and too many do.
    """
    taken: str | None = None
    entry = tx.allow_list.get(introduction.ek_fingerprint)
    if entry is not None and not waits:
        admission = _Admission(
            Status.REGISTERED,
            entry.role,
            entry.hostname,
            entry.assigned_ip,
            entry.cluster_id,
            allow_listed=True,
        )
        taken = _taken(tx, admission, res.settings)
        if taken is None:
            return admission
    digest = introduction.registration_token_sha256
    if digest is not None and not waits:
        token = tx.registration_tokens.get_by_hash(digest)
        if token is None or token.uses_left < 1 or token.revoked_at is not None or at >= token.expires_at:
            raise RegistrationTokenInvalid("the registration token is not valid here")
        admission = _Admission(
            Status.REGISTERED, token.role, token.hostname, token.assigned_ip, token.cluster_id
        )
        if not _waits(tx, token, validation, res, ak_certified=ak_certified):
            taken = _taken(tx, admission, res.settings)
            if taken is None and spend:
                tx.registration_tokens.use(digest, at)
            if taken is None:
                return admission
    if entry is None and digest is None and not waits:
        by_rule = _by_rule(tx, introduction, validation, res, ak_certified=ak_certified, spend=spend)
        if by_rule is not None and by_rule.alarm is None:
            return by_rule
        taken = by_rule.alarm if by_rule is not None else None
    vouched = entry is not None or ak_certified or expected or (validation is not None and validation.ok)
    pending.check_quota(tx, res.settings, introduction.source, vouched=vouched, at=at, take=spend)
    return _Admission(
        Status.PENDING_APPROVAL, allow_listed=entry is not None and taken is not None, alarm=taken
    )


def _by_rule(
    tx: Tx,
    introduction: Introduction,
    validation: PathValidation | None,
    res: Resources,
    *,
    ak_certified: bool,
    spend: bool,
) -> _Admission | None:
    """Return what the first rule that approves a machine makes of it; with an alarm where another is called so.

    Like a token it admits who is vouched for well enough for its role. A role that came under dual control since the
    rule was enabled is given by none.
    """
    rules = tx.approval_rules.enabled(approval_rules.MOST_RULES)
    if not rules:
        return None
    trust = judge_ek_trust(allow_listed=False, chain=validation, ak_certified=ak_certified)
    facts = approval_rules.facts_of(
        introduction.hw,
        certificate=introduction.certificate,
        ek_fingerprint=introduction.ek_fingerprint,
        ek_source=introduction.ek_source,
        ek_template=introduction.ek_template,
        assurance=trust.assurance,
        desired_role=introduction.desired_role,
        desired_cluster=introduction.cluster_id,
        source=introduction.source,
    )
    for rule in rules:
        if rule.role in res.settings.dual_control_roles:
            continue
        said = approval_rules.judge(rule.expression, rule.minimum_assurance, rule.hostname, facts)
        if said.why or _waits(tx, rule, validation, res, ak_certified=ak_certified):
            continue
        admission = _Admission(
            Status.REGISTERED, rule.role, said.hostname, None, rule.cluster_id, rule=rule.name
        )
        taken = _taken(tx, admission, res.settings)
        if taken is not None:
            return replace(admission, alarm=taken)
        if not spend or tx.approval_rules.use(rule.name):
            return admission
    return None


def _taken(tx: Tx, admission: _Admission, settings: Settings) -> str | None:
    """Return in words who else is called as *admission* says: then the machine waits, whatever admits it."""
    cluster_id = admission.cluster_id or DEFAULT_CLUSTER
    try:
        names.demand_free(tx, settings, "", cluster_id, admission.hostname, admission.assigned_ip)
    except NameInUse as e:
        return f"it was admitted in advance, but waits for approval: {e}"
    return None


def create(
    tx: Tx,
    machine_id: str,
    introduction: Introduction,
    proven: Sequence[Alternative],
    vouching: Vouching,
    res: Resources,
    at: datetime,
    *,
    seen: SeenHardware | None = None,
    expected: Machine | None = None,
) -> Machine:
    """Return a new machine, written down: admitted, or waiting for operators.

    *seen* is the hardware of one without a TPM. Who is on the allow-list is there with this chip. *expected* is its row
    where a receipt told of it: it is judged as if nobody had, and takes that row's place.
    """
    # Asked again: what was trusted at the introduction may be distrusted since.
    validation = endorsed_by(tx, introduction, res, at)
    kinship = kinship_shown(tx, machine_id, introduction, proven)
    certified = vouching.vouched is not None
    admission = admit(
        tx,
        introduction,
        validation,
        res,
        at,
        waits=kinship.waits,
        spend=True,
        ak_certified=certified,
        expected=expected is not None,
    )
    trust = judge_ek_trust(allow_listed=admission.allow_listed, chain=validation, ak_certified=certified)
    machine = Machine(
        machine_id=machine_id,
        version=1,
        status=admission.status,
        role=admission.role,
        cluster_id=admission.cluster_id or DEFAULT_CLUSTER,
        anchor=Anchor(
            ek_fingerprint=introduction.ek_fingerprint,
            ek_public=introduction.ek_public,
            ek_source=introduction.ek_source,
            ek_template=introduction.ek_template,
            ek_certificate=introduction.certificate,
            ek_chain_ok=trust.chain_ok,
            ek_allow_listed=trust.allow_listed,
            ak_public=introduction.ak_public,
            ak_name=introduction.ak_name,
            ak_activated_at=at,
        ),
        assurance=trust.assurance,
        hw_uuid=introduction.hw["hw_uuid"],
        hw_mac=introduction.hw["hw_mac"],
        hw_serial=introduction.hw["hw_serial"],
        hw_product=introduction.hw["hw_product"],
        desired_role=introduction.desired_role,
        desired_cluster_id=introduction.cluster_id,
        hostname=admission.hostname,
        assigned_ip=admission.assigned_ip,
        registered_from=introduction.source,
        registered_at=at,
        attested_at=None,
        locked_at=None,
        revoked_at=None,
        rejected_at=None,
        wipe_pending=False,
        wiped_at=None,
        config_owed_since=None,
        clock=None,
        last_verdict=None,
        last_result_at=None,
        last_policy=None,
        last_failed=None,
        last_result_key=None,
        trust_expires_at=None,
        directive_sha256=None,
        alarm=kinship.alarm or admission.alarm,
        kept_bytes=introduction.kept_bytes,
        hardware=seen,
    )
    if expected is None:
        tx.machines.add(machine)
    else:
        machine = _arrived(tx, expected, machine, introduction, at)
    if seen is not None:
        value = bytes.fromhex(introduction.ek_fingerprint)
        machine = tx.identities.add(machine, seen.kind, value, guest=seen.guest)
        if admission.status is Status.REGISTERED and admission.allow_listed:
            tx.identities.approve(machine.machine_id, seen.kind, chip=seen.chip, csp_id=seen.csp_id)
    tx.chip_marks.put(machine_id, introduction.marks(proven))
    if kinship.alarm is not None:
        _sound_kinship(tx, machine, kinship, introduction.source, at)
    if admission.alarm is not None:
        subject = machine.fingerprint
        alarms.sound(tx, admission.alarm, at, subject=subject, machine=machine, source=introduction.source)
    vouching.keep(tx, machine_id, at)
    machine = _kept(tx, machine, introduction, validation, at)
    _bind(tx, machine, introduction, at)
    _registered(
        tx,
        machine,
        introduction,
        at,
        iso_url=res.settings.iso_url,
        prev_state=None if expected is None else expected.status,
        detail=f"assurance {machine.assurance}: {trust.reason}{vouching.told}{_by(admission)}",
    )
    return machine


def _arrived(
    tx: Tx, expected: Machine, machine: Machine, introduction: Introduction, at: datetime
) -> Machine:
    """Return *machine* in the row of a receipt; operators hear of it where the receipt was of another board."""
    others = elsewhere.others_shown(expected, introduction)
    words = f"{elsewhere.told(others)}, as its receipt says" if others else None
    changes = {
        each.name: getattr(machine, each.name)
        for each in fields(Machine)
        if each.name not in ("machine_id", "version")
    }
    arrived = tx.machines.update(expected, **{**changes, "alarm": machine.alarm or words})
    if words is not None:
        alarms.sound(tx, words, at, subject=arrived.fingerprint, machine=arrived, source=introduction.source)
    return arrived


def _by(admission: _Admission) -> str:
    return "" if admission.rule is None else f"; approved by rule {admission.rule}"


def _sound_kinship(tx: Tx, machine: Machine, kinship: Kinship, source: str, at: datetime) -> None:
    """Tell operators that this machine may be another one."""
    assert kinship.alarm is not None
    assert kinship.about is not None
    words = f"machine {machine.machine_id} ({machine.status}): {kinship.alarm}"
    alarms.sound(tx, words, at, subject=kinship.about, machine=machine, source=source)


def _kept(
    tx: Tx, machine: Machine, introduction: Introduction, validation: PathValidation | None, at: datetime
) -> Machine:
    """Store the EK certificate with its judgement, where there is one."""
    if validation is None or introduction.certificate_der is None:
        return machine
    return endorsements.keep(tx, machine, introduction.certificate_der, introduction.chain, validation, at)


def confirm(
    tx: Tx,
    machine: Machine,
    introduction: Introduction,
    proven: Sequence[Alternative],
    vouching: Vouching,
    res: Resources,
    at: datetime,
    *,
    seen: SeenHardware | None = None,
) -> Machine:
    """Take the AK where an operator reset it; hardware hints are compared, never overwritten.

    A certificate of the EK that came this time is judged and kept: chips get theirs by firmware updates, too.
    """
    status = next_status(machine.status, Transition.ACTIVATE)
    detail, replaced = "AK confirmed", machine.key_name is None
    if replaced:
        identity = replace(
            machine.anchor,
            # A receipt that an operator rejected had none.
            ek_public=machine.anchor.ek_public or introduction.ek_public,
            ak_public=introduction.ak_public,
            ak_name=introduction.ak_name,
            ak_activated_at=at,
        )
        machine = tx.machines.update(machine, anchor=identity)
        detail = "AK replaced after a reset"
    if seen is not None and seen != machine.hardware:
        machine = tx.machines.update(machine, hardware=seen)
    detail += vouching.told
    vouching.keep(tx, machine.machine_id, at)
    validation = endorsed_by(tx, introduction, res, at)
    # What a vendor said of this EK stays true, whatever is shown later: nothing worse takes its place.
    if validation is not None and (validation.ok or not machine.anchor.ek_chain_ok):
        known, shown = machine.anchor.ek_certificate, introduction.certificate
        assert shown is not None  # it was judged
        if known is None or known.sha256 != shown.sha256:
            identity = replace(machine.anchor, ek_certificate=shown, ek_source=introduction.ek_source)
            machine = tx.machines.update(machine, anchor=identity)
            detail += (
                f"; EK certificate {shown.sha256[:16]} instead of {known.sha256[:16] if known else 'none'}"
            )
        machine = _kept(tx, machine, introduction, validation, at)
        if machine.kept_bytes != introduction.kept_bytes:
            machine = tx.machines.update(machine, kept_bytes=introduction.kept_bytes)
    machine = endorsements.level_of_ak(tx, machine, at, "who vouches for its attestation key")
    changed = [name for name, found in introduction.hw.items() if getattr(machine, name) != found]
    if changed:
        detail += f"; differs from the first introduction: {', '.join(changed)}"
    machine = elsewhere.compare(tx, machine, introduction, at)
    _noted(tx, machine, introduction, proven, at)
    _bind(tx, machine, introduction, at)
    if replaced or limits.may_record(tx, machine, at):
        iso_url = res.settings.iso_url
        _registered(tx, machine, introduction, at, iso_url=iso_url, prev_state=status, detail=detail)
    return machine


def _bind(tx: Tx, machine: Machine, introduction: Introduction, at: datetime) -> None:
    """Bind the AK to its EK for ever, so that the entry of this unit tells of it. That it is free was asked in it."""
    tx.ak_bindings.bind(
        AKBinding(
            ak_name=introduction.ak_name,
            ek_fingerprint=introduction.ek_fingerprint,
            machine_id=machine.machine_id,
            bound_at=at,
        )
    )


def _noted(
    tx: Tx, machine: Machine, introduction: Introduction, proven: Sequence[Alternative], at: datetime
) -> None:
    """Note what proves more about the chip of a known machine than was known, and say if that makes it another's."""
    known = tx.chip_marks.of(machine.machine_id)
    new = [
        mark
        for mark in introduction.marks(proven)
        if mark not in known and mark.kind in (MarkKind.EK, MarkKind.EK_SERIAL)
    ]
    kinship = kinship_of(tx.chip_marks.relatives(machine.machine_id, new))
    # Anybody can make EKs in software, and show another one each time.
    tx.chip_marks.put(machine.machine_id, new[: max(0, MOST_MARKS - len(known))])
    if kinship.alarm is not None:
        _sound_kinship(tx, machine, kinship, introduction.source, at)


def _registered(
    tx: Tx,
    machine: Machine,
    introduction: Introduction,
    at: datetime,
    *,
    iso_url: str,
    prev_state: Status | None,
    detail: str,
) -> None:
    tx.audit.append(
        AuditEvent(
            operator_cn="machine",
            action="register",
            machine_id=machine.machine_id,
            prev_state=prev_state,
            new_state=machine.status,
            detail=detail,
            source_ip=introduction.source,
        ),
        at,
    )
    node = {"status": machine.status, "config_url": None, "iso_url": iso_url or None, **hardware(machine)}
    emit(tx, NodeEvent.REGISTERED, machine, at, node=node, meta={"source_ip": introduction.source})
