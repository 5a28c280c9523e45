"""What a run brings of each kind of hardware, and what it is compared with: the runs' side of `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from attestation.api import RunMeasurement, RunTcb
from attestation.appraisal import KINDS, Appraisal
from attestation.appraisal.confidential import Approved
from attestation.appraisal.confidential import Expected as HardwareExpected
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.tdx import TDX, UnverifiedTDX
from attestation.appraisal.tpm import TPM, UnverifiedEvidence, found_in
from attestation.appraisal.tpm import Expected as TPMExpected
from attestation.errors import EvidenceRejected, MalformedEvidence
from attestation.evidence import dcap, event_log, sev_snp, tpm_quote
from attestation.machines import Machine
from attestation.report_data import report_data
from attestation.store import Tx
from attestation.wire import b64decode
from attestation_service.resources import Resources
from attestation_service.runs.attempts import AttemptContext
from attestation_service.verifier.firmware import vendor_of

MAX_MEMBER_BYTES: Final = 4096
_QUOTE_MEMBERS: Final = frozenset({"pcr_quote", "pcr_signature", "pcr_values"})


class Sought(NamedTuple):
    """What an item is to answer, and by what it is judged.

    Args:
        context: The run and its attempt.
        machine: The machine that the node is; None where there is none.
        tx: Reads what is kept.
        res: What the application owns.
        at: The instant to judge at.
    """

    context: AttemptContext
    machine: Machine | None
    tx: Tx
    res: Resources
    at: datetime


class Gathered(NamedTuple):
    """What came of one kind.

    Args:
        kind: Its name.
        evidence: As parsed; nothing of it is believed yet.
        expected: What it is compared with; None where the machine has no key for it.
        quote: The bytes that hardware signed, as they came.
        signature: The signature over them; None where it stands inside of them.
        foreign: They name another key than the machine's.
    """

    kind: str
    evidence: Any
    expected: Any
    quote: bytes
    signature: bytes | None
    foreign: bool = False


class Backend(NamedTuple):
    """One kind of hardware.

    Args:
        kind: Name of the kind of evidence.
        media_type: Of its item.
        gather: From an item, and what it is to answer, to what is judged.
        measurements: From an appraisal of authentic evidence to the registers that it shows.
        tcb: Likewise to what collateral says of the platform.
    """

    kind: str
    media_type: str
    gather: Callable[[Any, Sought], Gathered]
    measurements: Callable[[Appraisal, AttemptContext], tuple[RunMeasurement, ...]]
    tcb: Callable[[Appraisal], RunTcb | None]


# ---------------------------------------------------------------- TPM


def _gather_quote(item: Any, sought: Sought) -> Gathered:
    """Return a quote with the log that explains it, and what is expected of the machine's TPM.

    Raises:
        MalformedEvidence: It cannot be parsed.
    """
    sent = _members(item)
    quote = tpm_quote.parse(sent["pcr_quote"], sent["pcr_signature"])
    evidence = UnverifiedEvidence(quote, tpm_quote.parse_pcr_json(sent["pcr_values"]))
    context, res = sought.context, sought.res
    expected = _expected_of_tpm(context, sought.machine, res)
    if "event_log" in sent and expected is not None and _is_authentic(evidence, expected):
        # Who holds no activated key cannot have us parse a megabyte.
        evidence = evidence._replace(event_log=res.replays.replay(sent["event_log"], context.policy.tpm.bank))
    foreign = False
    if expected is not None:
        key = tpm_quote.enrolled_key(expected.ak_public, expected.ek_public)
        foreign = quote.attest.qualified_signer not in key.parents
    return Gathered(TPM.name, evidence, expected, sent["pcr_quote"], sent["pcr_signature"], foreign)


def _members(item: Any) -> dict[str, bytes]:
    if not isinstance(item, Mapping) or not _QUOTE_MEMBERS <= item.keys() <= _QUOTE_MEMBERS | {"event_log"}:
        raise MalformedEvidence(
            "a quote has the members pcr_quote, pcr_signature and pcr_values; also event_log"
        )
    limits = {
        "pcr_quote": MAX_MEMBER_BYTES,
        "pcr_signature": MAX_MEMBER_BYTES,
        "pcr_values": tpm_quote.MAX_PCR_JSON_BYTES,
        "event_log": event_log.MAX_LOG_BYTES,
    }
    return {name: b64decode(text, name, max_bytes=limits[name]) for name, text in item.items()}


def _is_authentic(evidence: UnverifiedEvidence, expected: TPMExpected) -> bool:
    try:
        TPM.verify(evidence, expected)
    except EvidenceRejected:
        return False
    return True


def _expected_of_tpm(context: AttemptContext, machine: Machine | None, res: Resources) -> TPMExpected | None:
    if machine is None or machine.tee is not None or machine.anchor.ak_public is None:
        return None
    # An attestation that was recorded since the challenge was made may be newer than this quote: then its clock
    # says nothing about this one.
    recorded = machine.last_result_at
    comparable = recorded is not None and recorded <= context.attempt.issued_at
    return TPMExpected(
        ak_public=machine.anchor.ak_public,
        ek_public=machine.anchor.ek_public,
        challenge=context.nonce,
        selection=context.policy.tpm.selection,
        clock=machine.clock if comparable else None,
        ek_vendor=vendor_of(machine),
        event_log_requested=context.policy.tpm.event_log_required,
        ek_certification_requested=False,
        firmware_attested=machine.firmware_attested,
        firmware=res.advisories.judge,
    )


def _pcrs(appraisal: Appraisal, context: AttemptContext) -> tuple[RunMeasurement, ...]:
    values = found_in(appraisal).claims.pcrs.get(context.policy.tpm.bank, {})
    return tuple(RunMeasurement(slot=str(i), digest=value.hex()) for i, value in sorted(values.items()))


# ---------------------------------------------------------------- confidential hardware


def _hardware(
    kind: str, tee: str, signed: Callable[[Mapping[str, str], Any], bytes]
) -> Callable[[Any, Sought], Gathered]:
    """Return what gathers an item of confidential hardware.

    Args:
        kind: Of the evidence.
        tee: As report data names it.
        signed: From an item and its evidence, parsed, to what hardware made.
    """

    def gather(item: Any, sought: Sought) -> Gathered:
        context, machine, tx, res, at = sought
        evidence = KINDS[kind].parse(item)
        identity = tx.identities.of(machine.machine_id).get(kind) if machine is not None else None
        approved = None
        if identity is not None and identity.approved_chip is not None:
            approved = Approved(chip=identity.approved_chip, csp_id=identity.approved_csp_id)
        expected = HardwareExpected(
            at=at,
            report_data=report_data(tee, context.nonce, context.run.node_uid),
            endorsements=res.collateral.endorsements(tx, kind, evidence),
            approved=approved,
            nonce=context.nonce,
            before=identity.state if identity is not None else None,
            guest=identity.guest if identity is not None else None,
        )
        return Gathered(kind, evidence, expected, signed(item, evidence), None)

    return gather


def _td_quote(item: Mapping[str, str], evidence: UnverifiedTDX) -> bytes:
    """Return a quote without what stands behind it (CONFIDENTIAL §9.1)."""
    quote = b64decode(item["quote"], "quote", max_bytes=dcap.MAX_QUOTE_BYTES)
    return quote[: len(quote) - evidence.quote.padding_bytes]


def _state(appraisal: Appraisal, kind: str) -> Mapping[str, Any]:
    found = appraisal.found.get(kind)
    return (found.state if found is not None else None) or {}


def _of_snp(appraisal: Appraisal, _asked: AttemptContext) -> tuple[RunMeasurement, ...]:
    state = _state(appraisal, SEV_SNP.name)
    slots = {"MEASUREMENT": state.get("measurement"), "HOST_DATA": state.get("host_data")}
    return tuple(RunMeasurement(slot=slot, digest=each) for slot, each in slots.items() if each)


def _of_tdx(appraisal: Appraisal, _asked: AttemptContext) -> tuple[RunMeasurement, ...]:
    state = _state(appraisal, TDX.name)
    slots = {"MRTD": state.get("mrtd")}
    slots |= {f"RTMR{i}": each for i, each in enumerate(state.get("rtmr", ()))}
    slots |= {name.upper(): state.get(name) for name in ("mrseam", "mrconfigid")}
    return tuple(RunMeasurement(slot=slot, digest=each) for slot, each in slots.items() if each)


def _tcb_of_tdx(appraisal: Appraisal) -> RunTcb | None:
    state = _state(appraisal, TDX.name)
    if "tcb_status" not in state:
        return None
    return RunTcb(
        status=state["tcb_status"],
        date=state["tcb_date"],
        evaluation_data_number=state["tcb_evaluation_data_number"],
        advisory_ids=tuple(state["advisories"]),
    )


def _no_tcb(_appraisal: Appraisal) -> None:
    return None


BACKENDS: Final[Mapping[str, Backend]] = {
    "tpm": Backend(TPM.name, tpm_quote.MEDIA_TYPE, _gather_quote, _pcrs, _no_tcb),
    "sev-snp": Backend(
        SEV_SNP.name,
        sev_snp.MEDIA_TYPE,
        _hardware(SEV_SNP.name, "sev-snp", lambda _, evidence: evidence.raw),
        _of_snp,
        _no_tcb,
    ),
    "tdx": Backend(
        TDX.name,
        dcap.TDX_MEDIA_TYPE,
        _hardware(TDX.name, "tdx", _td_quote),
        _of_tdx,
        _tcb_of_tdx,
    ),
}
"""By `spec.backend`."""
