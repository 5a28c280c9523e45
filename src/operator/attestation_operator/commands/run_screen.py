"""One run on a terminal: what was asked, how it ended, and each check in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from attestation_cli.plugin import cell, clean, moment_cell
from attestation_operator.commands import run_words as words

if TYPE_CHECKING:
    from attestation_cli.plugin import Session
    from attestation_operator.objects import Raw

_LABELS: Final = (("expected", "expected"), ("actual", "found"), ("source", "source"))


def emit_run(session: Session, run: Raw, result: Raw | None) -> None:
    """Print a run, and its Result where there is one."""
    if session.json:
        session.emit_json({"run": run, "result": result})
        return
    session.emit_fields(_fields(run, result))
    if session.output == "csv":
        return
    if said := words.conditions(run):
        session.emit("\nconditions:")
        session.emit_fields(
            [(f"  {each.get('type')}", cell(_condition(each))) for each in said],
        )
    spec = (result or {}).get("spec") or {}
    if checks := spec.get("checks"):
        session.emit("\nchecks:")
        for check in checks:
            _check(session, check)
    if measured := spec.get("measurements"):
        session.emit("\nmeasured:")
        session.emit_fields([(f"  {each['slot']}", cell(each["digest"])) for each in measured])


def _fields(run: Raw, result: Raw | None) -> list[tuple[str, Any]]:
    now = datetime.now(UTC)
    metadata, spec, status = run["metadata"], run.get("spec") or {}, run.get("status") or {}
    found = (result or {}).get("spec") or {}
    standing = (result or {}).get("status") or {}
    policy = (spec.get("policyRef") or {}).get("name") or ("inline" if spec.get("policy") else None)
    sealed = words.condition(run, "Sealed")
    rows = [
        ("run", cell(f"{metadata.get('namespace')}/{metadata['name']}")),
        ("uid", cell(metadata["uid"])),
        ("node", cell(spec.get("targetNodeName"))),
        ("backend", cell(spec.get("backend"))),
        ("policy", cell(policy or "none: nothing is compared")),
        ("phase", cell(words.phase(run))),
        ("verdict", cell(words.verdict(run))),
        ("means", cell(words.why(run))),
        ("trusted", cell(_trusted(standing))),
        ("started", moment_cell(words.instant(run, "status", "startTime"), now)),
        ("ended", moment_cell(words.instant(run, "status", "completionTime"), now)),
        ("attempt", cell(status.get("attempt"))),
        ("machine", cell(found.get("machineID"))),
        ("policy id", cell(status.get("policyID"))),
        ("bundle", cell(sealed.get("message") if sealed.get("status") == "True" else None)),
    ]
    tcb = found.get("tcb") or {}
    if tcb:
        advisories = ", ".join(tcb.get("advisoryIDs") or ())
        told = " ".join(filter(None, (tcb.get("status"), tcb.get("date"), advisories)))
        rows.append(("TCB", cell(told)))
    if found.get("verifierNotes"):
        rows.append(("notes", cell(found["verifierNotes"])))
    return rows


def _trusted(standing: Raw) -> str | None:
    if not standing:
        return None
    if standing.get("trusted"):
        return f"yes, until {standing.get('trustedUntil') or 'it expires'}"
    return "no: not verified under an AttestationPolicy, or expired"


def _condition(each: Any) -> str:
    told = ": ".join(filter(None, (each.get("reason"), each.get("message"))))
    return f"{each.get('status'):<8} {told}"


def _check(session: Session, check: Any) -> None:
    """Print a check with expected and found, one below the other: digests are too long for columns."""
    outcome = cell(words.OUTCOMES.get(check.get("outcome"), check.get("outcome")))
    code = check.get("code")
    meant = f": {words.CODES.get(code, code)} ({code})" if code else ""
    session.emit(f"  {outcome.text:<9} {clean(str(check.get('id')))}{clean(meant)}")
    for name, label in _LABELS:
        if check.get(name) is not None:
            session.emit(f"    {label:<8}  {clean(str(check[name]))}")
