"""What is done to one machine: only what its status allows is offered, and the service decides again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from attestation.api import LabelsRequest, ReplaceRequest, RoleChangeRequest
from attestation.api.operations import OperatorAPI
from attestation.client.words import TEE_WORDS
from attestation.machines import TEES, Role, Status
from attestation.machines.labels import parse_selector
from attestation_web.extensions import kms
from attestation_web.page import Act, Field, Values, api
from attestation_web.page.names import called, typed_for
from attestation_web.pages.machines.area import page

if TYPE_CHECKING:
    from attestation.api import MachineDetail
    from attestation.api.operator import HardwareDetail

SEEN: Final = "seen"
CONFIRMS: Final = "confirm_name"
MOST_WAITING: Final = 100
REASON: Final = Field(name="reason", label="Reason")
VOTES: Final = "Where dual control asks for several people this is your vote."
WHY: Final = Field(name="reason", label="Reason", needed=True, help="It stands in the audit log.")
ROLES: Final = [(role.value, role.value) for role in Role]
_PENDING: Final = frozenset({Status.PENDING_APPROVAL})
_ADMITTED: Final = frozenset({Status.REGISTERED, Status.ATTESTED, Status.LOCKED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An act that is offered.

    Args:
        name: In its address, below the machine.
        words: On the button.
        kind: How the button looks.
        fits: Whether it can be done to a machine.
        area: The pages on which it is done.
    """

    name: str
    words: str
    fits: Callable[[MachineDetail], bool]
    kind: str = ""
    area: str = "machines"


def _is_decidable(machine: MachineDetail) -> bool:
    # What a receipt alone tells of has proven nothing: the service lets nobody approve it.
    return machine.status in _PENDING and not machine.expected


OFFERS: Final = (
    # Decided where the evidence stands side by side, in one place: there the EK fingerprint is typed.
    Offer(name="approve", words="Approve", kind="primary", fits=_is_decidable, area="inbox"),
    Offer(name="reject", words="Reject", kind="danger", fits=lambda m: m.status in _PENDING, area="inbox"),
    Offer(name="unlock", words="Unlock", kind="primary", fits=lambda m: m.status is Status.LOCKED),
    Offer(name="lock", words="Lock", fits=lambda m: m.status is Status.ATTESTED),
    Offer(name="role", words="Change role", fits=lambda m: m.status in _ADMITTED),
    Offer(name="redeliver", words="Deliver configuration again", fits=lambda m: m.status is Status.ATTESTED),
    Offer(name="labels", words="Labels", fits=lambda _: True),
    Offer(
        name="approve-hardware",
        words="Approve hardware",
        fits=lambda m: m.hardware is not None and m.status in _ADMITTED,
    ),
    Offer(
        name="ak-reset",
        words="Reset attestation key",
        fits=lambda m: m.status in _ADMITTED | _PENDING and m.ek_source not in TEES and not m.expected,
    ),
    Offer(name="replace", words="Replace", fits=lambda m: m.status in _ADMITTED),
    Offer(name="revoke", words="Revoke", kind="danger", fits=lambda m: m.status in _ADMITTED),
    Offer(
        name="delete",
        words="Delete",
        kind="danger",
        fits=lambda m: m.status is Status.REJECTED or (m.status is Status.REVOKED and m.wiped_at is not None),
    ),
)


def allowed(machine: MachineDetail, enabled: frozenset[str]) -> Sequence[Offer]:
    """Return what can be done to *machine* now, where the extensions *enabled* answer."""
    offers = [offer for offer in OFFERS if offer.fits(machine)]
    if kms.NAME in enabled and machine.status in _ADMITTED:
        offers.insert(-1, Offer(name="hold", words="Hold disk key", fits=lambda _: True))
    return offers


def _facts(machine: MachineDetail) -> list[tuple[str, str]]:
    return [
        ("Machine", machine.machine_id),
        ("Host name", machine.hostname or "none"),
        ("EK fingerprint", machine.ek_fingerprint),
        ("Status", machine.status.value.replace("_", " ")),
    ]


def _seen(machine: MachineDetail) -> Field:
    """Return the field that keeps what *machine* was when it was shown: one that has changed since is left alone."""
    return Field(name=SEEN, label="What was shown", kind="hidden", value=str(machine.version))


def _act(machine: MachineDetail, **given: Any) -> Act:
    values: dict[str, Any] = {
        "facts": _facts(machine),
        "back": f"/machines/{machine.machine_id}",
        "fields": [REASON],
    }
    return Act(**(values | given))


@page.act("/<machine_id>/lock")
def lock(machine_id: str) -> Act:
    """Suspend a machine."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"Lock {called(m)}",
        button="Lock",
        will=["It gets no configuration, secret or certificate while it is locked.", "Unlock undoes it."],
        do=lambda client, f: client.lock(machine_id, f.get("reason")),
        did=lambda answer: f"{called(answer)} is locked.",
    )


@page.act("/<machine_id>/unlock", fresh=True)
def unlock(machine_id: str) -> Act:
    """Let a locked machine attest again."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"Unlock {called(m)}",
        button="Unlock",
        will=["It may attest again; its next attestation decides what it is worth.", VOTES],
        do=lambda client, f: client.unlock(machine_id, f.get("reason")),
        did=lambda answer: f"{called(answer)} is unlocked; its next attestation decides.",
    )


@page.act("/<machine_id>/role", fresh=True)
def role(machine_id: str) -> Act:
    """Give a machine another role."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"Change the role of {called(m)}",
        button="Change",
        will=[
            "Its config tokens lose their right, and it gets the configuration of the new role.",
            "What is left empty stays as it is.",
            VOTES,
        ],
        fields=[
            _seen(m),
            Field(
                name="role", label="Role", kind="choice", needed=True, value=str(m.role or ""), choices=ROLES
            ),
            Field(name="hostname", label="Host name", help=f"Now: {m.hostname or 'none'}."),
            Field(
                name="assigned_ip",
                label="Address with prefix length",
                help=f"Now: {m.assigned_ip or 'none'}.",
            ),
            Field(name="cluster_id", label="Cluster", help=f"Now: {m.cluster_id}."),
            WHY,
        ],
        do=lambda client, f: client.change_role(
            machine_id,
            RoleChangeRequest(
                role=Role(f["role"]),
                hostname=f.get("hostname"),
                assigned_ip=f.get("assigned_ip"),
                cluster_id=f.get("cluster_id"),
                reason=f["reason"],
                expected_version=int(f[SEEN]),
            ),
        ),
        did=lambda answer: f"{called(answer)} is {answer.role} in {answer.cluster_id} now.",
    )


@page.act("/<machine_id>/redeliver", fresh=True)
def redeliver(machine_id: str) -> Act:
    """Offer the configuration again."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"Deliver the configuration of {called(m)} again",
        button="Deliver again",
        will=["It is offered its configuration at each good attestation until it has applied it.", VOTES],
        fields=[],
        do=lambda client, _: client.redeliver(machine_id),
        did=lambda answer: f"{called(answer)} is offered its configuration with its next attestation.",
    )


@page.act("/<machine_id>/labels")
def labels(machine_id: str) -> Act:
    """Write labels."""
    m = api().machine(machine_id)
    written = ",".join(f"{key}={value}" for key, value in sorted(m.labels.items()))

    def write(client: Any, filled: Mapping[str, str]) -> MachineDetail:
        wanted = parse_selector(filled["labels"]) if "labels" in filled else {}
        request = LabelsRequest(
            set={key: value or "" for key, value in wanted.items() if m.labels.get(key) != (value or "")},
            remove=sorted(m.labels.keys() - wanted.keys()),
        )
        answer: MachineDetail = client.label(machine_id, request)
        return answer

    return _act(
        m,
        title=f"Labels of {called(m)}",
        button="Write",
        will=[
            "Its labels are as they stand here; what you take out is taken off.",
            "No decision rests on them.",
        ],
        facts=[*_facts(m), ("Labels now", written or "none")],
        fields=[
            Field(
                name="labels",
                label="Labels",
                value=written,
                help="Keys and values with commas between: rack=4,site=ams.",
            )
        ],
        do=write,
        did=lambda answer: f"{called(answer)} has {len(answer.labels)} labels.",
    )


@page.act("/<machine_id>/approve-hardware", fresh=True)
def approve_hardware(machine_id: str) -> Act:
    """Believe a machine on the confidential hardware that it was seen on."""
    m = api().machine(machine_id)
    seen = m.hardware
    chip = seen.chip if seen is not None else None
    return _act(
        m,
        title=f"Approve the hardware of {called(m)}",
        button="Approve",
        will=["It is believed on this processor from now on, and on no other.", VOTES],
        facts=[
            *_facts(m),
            ("Hardware", TEE_WORDS.get(seen.kind, seen.kind) if seen else "none was seen"),
            ("Chip", chip or "hidden"),
            ("Approved until now", _approved(seen)),
        ],
        # The chip that was shown, not the one that the machine shows by the time that the button is pressed.
        fields=[WHY, _seen(m), Field(name="chip", label="Chip", kind="hidden", value=chip or "")],
        do=lambda client, f: client.approve_hardware(machine_id, f["reason"], f.get("chip"), int(f[SEEN])),
        did=lambda answer: f"The hardware of {called(answer)} is approved.",
    )


def _approved(seen: HardwareDetail | None) -> str:
    if seen is None or seen.approved_chip is None:
        return "none"
    return seen.approved_chip or "one that hides its id"


@page.act("/<machine_id>/ak-reset", fresh=True)
def ak_reset(machine_id: str) -> Act:
    """Let a machine activate another attestation key."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"Reset the attestation key of {called(m)}",
        button="Reset",
        will=[
            "Its attestation key counts no more; its agent has to prove another one of the same TPM.",
            VOTES,
        ],
        fields=[WHY],
        typed=typed_for(m),
        typed_as=CONFIRMS,
        dangerous=True,
        do=lambda client, f: client.ak_reset(machine_id, f["reason"], f[CONFIRMS]),
        did=lambda answer: f"{called(answer)} may activate another attestation key.",
    )


@page.act("/<machine_id>/replace", fresh=True)
def replace(machine_id: str) -> Act:
    """Let a machine that waits take the place of this one."""
    m = api().machine(machine_id)
    waiting, more = api().one_page(
        OperatorAPI.machines, None, status=Status.PENDING_APPROVAL, page_size=MOST_WAITING
    )
    return _act(
        m,
        title=f"Replace {called(m)}",
        button="Replace",
        will=[
            "It is revoked, for good.",
            "The new machine is admitted with its role, cluster, host name and address.",
            VOTES,
        ],
        fields=[
            Field(
                name="new",
                label="The machine that takes its place",
                kind="choice",
                needed=True,
                # With what it was when it was shown: one that has changed since takes nobody's place.
                choices=[
                    ("", "Choose a machine"),
                    *(
                        (
                            f"{each.machine_id} {each.version}",
                            f"{called(each)}, EK {each.ek_fingerprint[:16]}…, came from {each.registered_from}",
                        )
                        for each in waiting
                    ),
                ],
                help=_help_to_replace(len(waiting), more=more is not None),
            ),
            Field(name="accept_ek", label="Admit its EK by name: it goes on the allow-list", kind="check"),
            WHY,
        ],
        typed=typed_for(m),
        typed_as=CONFIRMS,
        dangerous=True,
        do=lambda client, f: client.replace(machine_id, _replacement(f)),
        did=lambda answer: f"{called(answer)} took its place; {machine_id} is revoked.",
    )


def _replacement(filled: Values) -> ReplaceRequest:
    new, _, version = filled["new"].partition(" ")
    return ReplaceRequest(
        new=new,
        accept_ek="accept_ek" in filled,
        reason=filled["reason"],
        expected_version=int(version),
        confirm_name=filled[CONFIRMS],
    )


def _help_to_replace(waiting: int, *, more: bool) -> str:
    if more:
        return f"The newest {waiting} that wait; another one: `attestation machine replace`."
    return "" if waiting else "No machine waits for approval: start the new one first."


@page.act("/<machine_id>/revoke", fresh=True)
def revoke(machine_id: str) -> Act:
    """End a machine for good."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"Revoke {called(m)}",
        button="Revoke",
        will=[
            "It gets nothing any more, for good.",
            "Its certificates are revoked at once.",
            "With the order to wipe itself, it erases its disks at its next attestation.",
        ],
        fields=[Field(name="wipe", label="Order it to wipe itself", kind="check"), REASON],
        typed=typed_for(m),
        typed_as=CONFIRMS,
        dangerous=True,
        do=lambda client, f: client.revoke(
            machine_id, wipe="wipe" in f, reason=f.get("reason"), confirm_name=f[CONFIRMS]
        ),
        did=lambda answer: (
            f"{called(answer)} is revoked" + (" and ordered to wipe itself." if answer.wipe_pending else ".")
        ),
    )


@page.act("/<machine_id>/delete", fresh=True)
def delete(machine_id: str) -> Act:
    """Forget a machine."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"Delete {called(m)}",
        button="Delete",
        will=["Its record is removed; it can then ask to be admitted anew.", "Its audit entries stay."],
        fields=[],
        typed=typed_for(m),
        typed_as=CONFIRMS,
        dangerous=True,
        back="/machines",
        do=lambda client, f: client.delete_machine(machine_id, f[CONFIRMS]),
        did=lambda _: f"{called(m)} is deleted.",
    )


@page.act("/<machine_id>/hold")
def hold(machine_id: str) -> Act:
    """Keep the disk key of a machine back."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"Hold the disk key of {called(m)}",
        button="Hold",
        will=["At its next start it waits for an operator before its disks open."],
        fields=[],
        back=f"/machines/{machine_id}?tab=disk-keys",
        do=lambda client, _: client.ask(
            kms.KMS.hold, kms.KMSHoldRequest(scope="machine", subject=machine_id)
        ),
        did=lambda _: f"The disk key of {called(m)} is held.",
    )


@page.act("/<machine_id>/unhold", fresh=True)
def unhold(machine_id: str) -> Act:
    """End a hold."""
    m = api().machine(machine_id)
    return _act(
        m,
        title=f"End the hold of {called(m)}",
        button="End the hold",
        will=["It gets its disk key by itself again. A hold of its whole cluster stays.", VOTES],
        fields=[],
        back=f"/machines/{machine_id}?tab=disk-keys",
        do=lambda client, _: client.ask(kms.KMS.unhold, "machine", machine_id),
        did=lambda _: f"The disk key of {called(m)} is held no more.",
    )


@page.act("/<machine_id>/release", fresh=True)
def release(machine_id: str) -> Act:
    """Let a machine that waits have its disk key."""
    m = api().machine(machine_id)
    waits = next((w for w in api().ask(kms.KMS.holds).waiting if w.machine_id == machine_id), None)
    asked = "it does not wait" if waits is None else waits.source_ip
    last = [] if waits is None else [("Asked last", f"{waits.last_at:%Y-%m-%d %H:%M:%S} UTC")]
    return _act(
        m,
        title=f"Release the disk key of {called(m)}",
        button="Release",
        will=[
            "It gets so many disk keys now, one for each encrypted volume; then it is held again.",
            "Be sure that this machine is to start: look at where it asks from, and at its evidence.",
            VOTES,
        ],
        facts=[*_facts(m), ("Asked last from", asked)],
        moving=last,
        fields=[
            Field(
                name="uses",
                label="How many disk keys",
                kind="choice",
                value="1",
                choices=[(str(n), str(n)) for n in range(1, kms.MOST_USES + 1)],
            )
        ],
        back=f"/machines/{machine_id}?tab=disk-keys",
        do=lambda client, f: client.ask(
            kms.KMS.release, machine_id, kms.KMSReleaseRequest(uses=int(f["uses"]))
        ),
        did=lambda answer: f"{called(m)} may have {answer.uses} disk keys.",
    )
