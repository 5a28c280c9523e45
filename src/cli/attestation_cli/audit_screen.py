"""What came of verifying an audit log, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attestation.client.text import clean
from attestation.wire import b64encode
from attestation_cli.render import Cell, cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import AuditState, AuditVerification
    from attestation.audit.checkpoint import Signer
    from attestation_cli.audit_file import Checked


def emit_verdict(session: Session, verdict: AuditVerification) -> None:
    """Print what the service found when it walked its own log."""
    if session.json:
        session.emit_json(verdict)
    else:
        rows = [
            ("audit log", _word(valid=verdict.valid)),
            ("entries", cell(verdict.entries)),
            ("newest hash", cell(verdict.root_hash)),
            ("tree root", cell(verdict.tree_root)),
            ("checkpoints", cell(verdict.checkpoints)),
        ]
        if verdict.state is None:
            rows += _broken(verdict.first_invalid_id, verdict.error)
        else:
            rows += _state(verdict.state)
        session.emit_fields(rows)


def emit_checked(session: Session, checked: Checked, saved: Path | None = None) -> None:
    """Print what came of an export."""
    verdict, error = checked.verdict, checked.error
    if session.json:
        session.emit_json(
            {
                "valid": error is None,
                "pinned": verdict is not None and verdict.pinned,
                "origin": verdict and verdict.origin,
                "entries": checked.good,
                "root_hash": verdict and verdict.root_hash,
                "tree_root": verdict and b64encode(verdict.root),
                "checkpoints": list(verdict.checkpoints) if verdict else [],
                "earlier": list(verdict.earlier) if verdict else [],
                "witnessed": verdict.witnessed if verdict else 0,
                "signers": [signer.key.name for signer in verdict.head.signers] if verdict else [],
                "first_invalid_id": checked.first_invalid_id,
                "code": error and error.code,
                "error": error and str(error),
                "file": saved and str(saved),
            }
        )
        return
    rows = [("audit log", _word(valid=error is None))]
    if verdict is None:
        rows += [("good entries", cell(checked.good)), *_broken(checked.first_invalid_id, str(error))]
    else:
        rows += [
            ("log", cell(verdict.origin)),
            ("entries", cell(verdict.entries)),
            ("newest hash", cell(verdict.root_hash)),
            ("tree root", cell(b64encode(verdict.root))),
            ("checkpoints", cell(f"{len(verdict.checkpoints)} in the file, all fit")),
            ("signed by", signers_cell(verdict.head.signers)),
        ]
        if verdict.witnessed:
            rows.append(("cosigned", cell(f"by the quorum, up to entry {verdict.witnessed}")))
            if verdict.witnessed < verdict.entries:
                rows.append(
                    ("not proven", Cell(_ALONE.format(verdict.witnessed + 1, verdict.entries), "yellow"))
                )
        if verdict.earlier:
            sizes = ", ".join(map(str, verdict.earlier))
            rows.append(("begins with", cell(f"your older checkpoints of {sizes} entries")))
        if verdict.timestamps:
            rows.append(("time stamps", cell(f"{len(verdict.timestamps)} in the file, not verified here")))
        if not verdict.pinned:
            rows.append(
                (
                    "not proven",
                    Cell(
                        "who made it: the keys are those that the file names, and the maker of another log could "
                        "name other keys",
                        "yellow",
                    ),
                )
            )
        elif not verdict.earlier:
            rows.append(
                ("not proven", cell("that it is the log of before: keep a checkpoint, give it next time"))
            )
    if saved is not None:
        rows.append(("written to", cell(str(saved))))
    session.emit_fields(rows)


_ALONE = "that others saw the entries {} to {}: they are signed by the log alone"


def _word(*, valid: bool) -> Cell:
    return Cell("VALID", "green") if valid else Cell("INVALID", "red")


def _state(state: AuditState) -> list[tuple[str, Cell]]:
    """Say what the comparison of the rows that give authority with the log found."""
    rows = [("rows compared", cell(state.rows))]
    if state.adopted:
        rows.append(
            ("from before", cell(f"{state.adopted} rows that an upgrade found: no entry says who wrote them"))
        )
    rows += [
        ("unproven", Cell(clean(f"{each.kind} {each.key}: {each.problem}"), "red")) for each in state.unproven
    ]
    if state.more:
        rows.append(("unproven", Cell(f"and {state.more} more", "red")))
    if state.unproven:
        advice = "somebody wrote to the database past the service: lock what these rows admit, keep a copy"
        rows.append(("what to do", cell(advice)))
    return rows


def _broken(first_invalid_id: int | None, error: str | None) -> list[tuple[str, Cell]]:
    return [
        ("first bad entry", cell(first_invalid_id)),
        ("why", cell(error)),
        ("what to do", cell("stop trusting entries from there on; compare with a backup or an export")),
    ]


def signers_cell(signers: Sequence[Signer]) -> Cell:
    """Name who signed, each once with the kinds of its signatures."""
    kinds: dict[str, list[str]] = {}
    for signer in signers:
        kind = "ML-DSA-44" if signer.key.type.name == "ML_DSA_44" else "Ed25519"
        kinds.setdefault(signer.key.name, []).append(kind)
    return cell("; ".join(f"{name} ({' and '.join(found)})" for name, found in kinds.items()))
