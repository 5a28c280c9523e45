"""Why a machine is trusted, or not, in plain words.

Pure: a machine, its newest result and the instant go in, sentences come out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from attestation.client.advice import advice
from attestation.client.tee_words import tee_words
from attestation.client.text import ago, clean, short_ids
from attestation.machines import TEES, Status, Trust
from attestation.results import Assurance, Verdict
from attestation.results.vector import BOOTED

if TYPE_CHECKING:
    from attestation.api import (
        CheckDetail,
        ConfigurationNotDelivered,
        HardwareDetail,
        MachineDetail,
        PCRChange,
        ResultDetail,
        ResultReport,
    )

_PCR = re.compile(r"pcr([0-9]{1,2})")
ASSURANCE: dict[Assurance, str] = {
    Assurance.EK_ALLOWLIST: "this exact TPM is on the allow-list: an operator vouches for it",
    Assurance.EK_CHAIN: "the TPM's certificate leads to a known manufacturer",
    Assurance.TEE: "an operator approved its processor, which vouches for what was launched, as its policy states it",
    Assurance.AK_CERTIFIED: "the TPM's attestation key has a certificate of a known authority",
    Assurance.TOFU: "trust on first use: no vendor vouches for this TPM; it is only proven to stay the same one",
    Assurance.NONE: "nothing was proven; it gets no configuration and no secret",
}


def hardware_words(seen: HardwareDetail) -> str:
    """Return confidential hardware as people read it: what it is, whose it is, and whether anybody decided about it."""
    chip = f"chip {seen.chip[:16]}" if seen.chip is not None else "a chip that hides its id"
    words = f"{TEE_WORDS.get(seen.kind, clean(seen.kind))}, {chip}"
    words += f", guest {seen.guest[:16]}" if seen.guest is not None else ", a guest without a name"
    words += f", provider {clean(seen.csp_id)}" if seen.csp_id is not None else ""
    words += ", ends with its boot" if seen.ephemeral else ""
    if seen.approved_chip is None:
        return words
    same = (seen.approved_chip, seen.approved_csp_id) == (seen.chip or "", seen.csp_id)
    return words + (
        ", approved" if same else f", NOT the approved one: {seen.approved_chip[:16] or 'hidden'}"
    )


TEE_WORDS: Final = {
    "sev_snp": "AMD SEV-SNP",
    "tdx": "Intel TDX",
    "azure_hcl": "Azure, with a vTPM",
    "svsm": "SVSM",
}
NEVER_JUDGED: Final = "it has never sent a quote that could be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What there is to say about a machine.

    Args:
        trusted: It is attested and its last result is good and still in its lease.
        configured: Its configuration is not owed any more.
        headline: One sentence.
        why: Sentences, in the order in which they matter.
        next: What can be done, commands in backquotes.
        checks: The checks of the newest result that did not simply pass.
    """

    trusted: bool
    configured: bool
    headline: str
    why: tuple[str, ...]
    next: tuple[str, ...]
    checks: tuple[CheckDetail, ...]


def appraised(result: ResultDetail) -> str:
    """Return one word or two for how much of the boot was compared and is as expected."""
    found = set(result.boot_state_appraised)
    return "appraised" if found >= BOOTED else "in part" if found else "not appraised"


def no_event_log(result: ResultReport) -> str:
    """Return that no event log of *result* is there, why, and what to do."""
    return f"No event log of result {result.result_id} is kept: " + (
        "the machine sent none. See there whether its kernel shows one (ITL_EVENT_LOG, else /sys/kernel/security/tpm0/"
        "binary_bios_measurements); a policy with `event_log: required` demands it, and the agent then logs why it "
        "cannot read it."
        if result.event_log_sha256 is None
        else "of a machine that was not admitted, the service need not keep it. Look at a newer result: "
        f"`attestation machine results {short_ids([result.machine_id])[result.machine_id]}`."
    )


def explain(
    machine: MachineDetail,
    newest: ResultDetail | None,
    at: datetime,
    changes: Sequence[PCRChange] = (),
    looks_away: Sequence[str] = (),
) -> Explanation:
    """Explain where *machine* stands at *at*.

    Args:
        machine: What the service knows.
        newest: Its newest stored result, with every check, or None where it never sent a quote.
        at: The instant, UTC.
        changes: PCRs that are not what they were, with what explains them.
        looks_away: What of a boot its policy does not compare.
    """
    short = short_ids([machine.machine_id])[machine.machine_id]
    name = f"{clean(machine.hostname)} ({short})" if machine.hostname else short
    trusted = machine.status is Status.ATTESTED and machine.trust is Trust.VERIFIED
    status, steps = _status(machine, short, at)
    why = [status, *_trust(machine, at), f"Assurance {machine.assurance}: {ASSURANCE[machine.assurance]}."]
    if newest is not None and any(c.check == "boot-state" for c in newest.checks):
        reported = ", ".join(clean(c.check) for c in newest.checks if c.outcome == "reported")
        why.append(
            f"Boot state not appraised: the policy {clean(newest.policy or 'none')} only reports, and these "
            f"rules do not hold: {reported}."
            if reported
            else f"Boot state not appraised: the policy {clean(newest.policy or 'none')} compares nothing that this "
            "machine measured with an expected value, so what software booted is unknown."
        )
    elif looks_away:
        why.append(f"Its policy looks away: not compared are {clean('; '.join(looks_away))}.")
    if newest is not None:
        hardware, more = tee_words(newest.checks, short)
        why += hardware
        steps += more
    ended = machine.status in (Status.REJECTED, Status.REVOKED)
    if not ended and not machine.expected and machine.ak_activated_at is None:
        why.append("It has no activated attestation key; it must prove itself again before it can attest.")
        steps.append("The agent does this by itself at its next attestation; see that it runs.")
    owed = machine.configuration_not_delivered
    if owed is not None:
        why.insert(0, f"{not_delivered(owed, at)}.")
        steps.append(
            "It is offered with every good attestation until the machine has applied it; nothing is lost. End the "
            "cause, in the service's folder of configurations or on the machine, and it heals by itself."
        )
    # That the boot state was not appraised is a sentence of its own above.
    checks = tuple(
        c for c in (newest.checks if newest else ()) if c.outcome != "passed" and c.check != "boot-state"
    )
    failed = [c for c in checks if c.outcome in ("failed", "undecided")]
    if changes:
        assert newest is not None
        steps.append(
            f"`attestation machine results {short} {newest.result_id}` shows the events behind each change."
        )
    if failed or changes:
        steps += [f"Look at the {each}." for each in _advice(changes, failed)]
    if failed and machine.status in (Status.PENDING_APPROVAL, Status.REGISTERED, Status.ATTESTED):
        steps.append(
            "If what was found is right, put it into a policy: `attestation policy create`, then "
            f"`attestation policy assign NAME@VERSION --machine {short}`. If you do not know who changed it, "
            f"`attestation machine lock {short}` keeps everything from it."
        )
    return Explanation(
        trusted=trusted,
        configured=owed is None,
        headline=f"{name} is {_headline(machine, trusted=trusted)}"
        f"{'' if owed is None else '; configuration not delivered'}.",
        why=tuple(why),
        next=tuple(steps),
        checks=checks,
    )


def not_delivered(owed: ConfigurationNotDelivered, at: datetime) -> str:
    """Return in words that a machine has no configuration, why, and since when."""
    since = f"{owed.since.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z ({ago(owed.since, at)})"
    return f"Configuration not delivered: {clean(owed.why)}, since {since}"


_HEADLINES = {
    Status.PENDING_APPROVAL: "not attested: it waits for an operator's approval",
    Status.REGISTERED: "not attested: it is admitted, but has not yet proven itself",
    Status.ATTESTED: "attested, but not trusted now",
    Status.LOCKED: "locked",
    Status.REVOKED: "revoked",
    Status.REJECTED: "rejected",
}


def _headline(machine: MachineDetail, *, trusted: bool) -> str:
    if machine.expected and machine.status is Status.PENDING_APPROVAL:
        return "expected: it has not come yet"
    return "attested and trusted" if trusted else _HEADLINES[machine.status]


def _advice(changes: Sequence[PCRChange], failed: Sequence[CheckDetail]) -> tuple[str, ...]:
    """Return what to look at: what changed; where nothing is known to have, the PCRs that failed."""
    if changes:
        return advice((c.pcr, c.text) for c in changes)
    pcrs = (_PCR.fullmatch(c.check) for c in failed)
    return advice((int(found[1]), "") for found in pcrs if found is not None)


def _status(machine: MachineDetail, short: str, at: datetime) -> tuple[str, list[str]]:
    """Return what its status means and what can be done about it."""
    match machine.status:
        case Status.PENDING_APPROVAL:
            wish = f" It wishes to be {machine.desired_role}." if machine.desired_role else ""
            if machine.expected:
                since = ago(machine.registered_at, at)
                return (
                    f"A receipt that was imported {since} tells of it; it has proven nothing.{wish}",
                    [
                        (
                            "It waits until a machine proves this EK; before that nobody can approve it. "
                            f"`attestation machine reject {short} --reason …` refuses it."
                        ),
                    ],
                )
            if machine.ek_source in TEES:
                return (
                    (
                        "Its processor vouches for it and for its key; no operator has decided about it since "
                        f"{ago(machine.registered_at, at)}.{wish}"
                    ),
                    [
                        (
                            f"Compare processor and guest (`attestation machine get {short}`) with what the owner of "
                            "the host says of it."
                        ),
                        (
                            f"`attestation machine approve {short} --role {machine.desired_role or 'ROLE'}` admits it "
                            f"and approves this processor; `attestation machine reject {short} --reason …` refuses it."
                        ),
                    ],
                )
            return (
                (
                    f"It proved that its key lives in its TPM; no operator has decided about it since "
                    f"{ago(machine.registered_at, at)}.{wish}"
                ),
                [
                    (
                        f"Compare the EK fingerprint {machine.ek_fingerprint[:16]}… with what the machine itself shows "
                        "(`attestation-agent identify`)."
                    ),
                    (
                        f"`attestation machine approve {short} --role {machine.desired_role or 'ROLE'}` admits it; "
                        f"`attestation machine reject {short} --reason …` refuses it."
                    ),
                ],
            )
        case Status.REGISTERED:
            return (
                (
                    "An operator, a token or the allow-list admitted it as "
                    f"{machine.role or 'no role'}; the first good attestation makes it attested."
                ),
                ["See that the agent runs on it and reaches the service; it attests by itself."],
            )
        case Status.ATTESTED:
            since = ago(machine.attested_at, at)
            return f"It is admitted as {machine.role or 'no role'} and first attested {since}.", []
        case Status.LOCKED:
            return (
                f"An operator locked it {ago(machine.locked_at, at)}; it gets nothing while it is locked.",
                [
                    (
                        f"`attestation machine unlock {short}` lets it attest again; "
                        f"`attestation machine revoke {short}` ends it for good."
                    )
                ],
            )
        case Status.REVOKED:
            if machine.wiped_at is not None:
                wiped = f" It acknowledged the order to wipe itself {ago(machine.wiped_at, at)}."
                step = f"`attestation machine delete {short}` removes the record; the machine can then start anew."
            elif machine.wipe_pending:
                wiped = " It is ordered to wipe itself and has not acknowledged that."
                step = "It acknowledges at its next attestation; see that its agent runs."
            else:
                wiped = ""
                step = "This is final. The record stays."
            return f"An operator revoked it {ago(machine.revoked_at, at)}.{wiped}", [step]
        case Status.REJECTED:
            return (
                f"An operator rejected it {ago(machine.rejected_at, at)}.",
                [f"`attestation machine delete {short}` removes the record; the machine can then ask again."],
            )


def _trust(machine: MachineDetail, at: datetime) -> list[str]:
    """Return what its last result is worth."""
    last = machine.last_result
    sent = "evidence" if machine.ek_source in TEES else "quote"
    if last is None:
        return [
            f"{(NEVER_JUDGED if sent == 'quote' else NEVER_JUDGED.replace('a quote', sent)).capitalize()}."
        ]
    when = ago(last.at, at)
    policy = f" under {clean(last.policy)}" if last.policy else ""
    if last.verdict is Verdict.FAILED:
        return [
            f"Its last {sent}, {when}{policy}, was authentic but not as expected: {clean(last.failed or '?')}."
        ]
    if last.verdict is Verdict.INDETERMINATE:
        return [
            f"Its last {sent}, {when}{policy}, could not be judged: {clean(last.failed or 'no check was made')}."
        ]
    if machine.trust is Trust.STALE and machine.trust_expires_at is None:
        return [f"Its last good {sent} is from {when}; an operator's act ended the trust in it since."]
    if machine.trust is Trust.STALE:
        return [
            (
                f"Its last good {sent} is from {when}; trust ended {ago(machine.trust_expires_at, at)}, "
                "because it did not attest again. See that its agent runs."
            )
        ]
    return [f"Its last {sent}, {when}{policy}, was good; trust ends {ago(machine.trust_expires_at, at)}."]
