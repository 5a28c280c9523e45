"""`attestation audit …`: read, export and verify the audit log, and prove what is in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation.wire import b64encode
from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session, output_option, pass_session

if TYPE_CHECKING:
    from attestation.api import AuditState
    from attestation.audit.checkpoint import Signer
    from attestation_cli.audit_file import Checked

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group("audit")
def group() -> None:
    """Read, export and verify the audit log.

    \b
    Examples:
      attestation audit list --machine-id cp-1
      attestation audit verify
      attestation audit export -f audit.jsonl --vkeys-file log.vkeys
      attestation audit verify audit.jsonl --vkeys-file log.vkeys
    """


@group.command("list")
@click.option(
    "--machine-id",
    metavar="ID",
    help="Only about this machine: its id, the beginning of it, or its hostname.",
)
@click.option("--action", help="Only of this kind, e.g. approve, lock, attest_failed.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, help="Show at most so many; 0 shows all. [default: 50]"
)
@output_option
@pass_session
def list_(session: Session, machine_id: str | None, action: str | None, limit: int) -> None:
    """List entries, newest first.

    \b
    Examples:
      attestation audit list --action approve
      attestation audit list --machine-id cp-1 --limit 0 -o csv > cp-1.csv
    """
    with session.client() as client:
        full_id = session.find_id(client, machine_id) if machine_id else None
        entries = islice(
            client.audit(machine_id=full_id, action=action, page_size=min(limit or 200, 200)), limit or None
        )
        if session.json:
            session.emit_json(entries)
            return
        found = list(entries)
    from attestation.audit.authority import words_of  # here: whoever asks for help need not wait for it

    session.emit_table(
        [
            Column("ID"),
            Column("TIME"),
            Column("ACTION"),
            Column("OPERATOR", shrink_to=8),
            Column("MACHINE", drop=1),
            Column("CHANGE", shrink_to=10, drop=2),
            Column("DETAIL", shrink_to=24),
            Column("FROM", shrink_to=9, drop=4),
            Column("SUBJECT", wide=True),
            Column("HASH", wide=True),
        ],
        [
            [
                cell(e.id),
                cell(f"{e.timestamp[:19].replace('T', ' ')}Z", e.timestamp),
                cell(e.action),
                cell(e.operator_cn),
                cell(e.machine_id[:8] if e.machine_id else None, e.machine_id or ""),
                cell(
                    f"{e.prev_state or 'new'} → {e.new_state}"
                    if e.new_state not in (None, e.prev_state)
                    else None
                ),
                cell(words_of(e.detail), e.detail),
                cell(e.source_ip),
                cell(e.operator_sub),
                cell(e.entry_hash),
            ]
            for e in found
        ],
        "No audit entries.",
    )


def trust_options(command: Command) -> Command:
    """Add the options that say whom to believe."""
    for option in (
        click.option("--quorum", type=click.IntRange(min=1), help="So many of them must. [default: all]"),
        click.option(
            "--witnesses-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="File with vkeys of witnesses, one a line.",
        ),
        click.option(
            "--witness", "witnesses", multiple=True, metavar="VKEY", help="A witness that must have cosigned."
        ),
        click.option(
            "--vkeys-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="File with vkeys of the log, one a line.",
        ),
        click.option(
            "--vkey",
            "vkeys",
            multiple=True,
            metavar="VKEY",
            help="A key of the log, from its operator; give all of them.",
        ),
    ):
        command = option(command)
    return command


earlier_option = click.option(
    "--checkpoint",
    "earlier",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An older checkpoint that you kept: the log must still begin with it.",
)


@group.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@trust_options
@earlier_option
@click.option("--unpinned", is_flag=True, help="Believe the keys that the file names: proves little.")
@output_option
@pass_session
@click.pass_context
def verify(
    ctx: click.Context,
    session: Session,
    file: Path | None,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
    witnesses: tuple[str, ...],
    witnesses_file: Path | None,
    quorum: int | None,
    earlier: tuple[Path, ...],
    *,
    unpinned: bool,
) -> None:
    """Verify the log: an export in FILE by yourself, or let the service walk its own.

    FILE needs neither the service nor the network: chain, tree, and every checkpoint under the keys that you give.
    Ends with 0 where the log is valid, else with 1, and names the entry that was changed, removed or moved.

    \b
    Examples:
      attestation audit verify
      attestation audit verify a.jsonl --vkeys-file log.vkeys
      attestation audit verify a.jsonl --vkeys-file log.vkeys \\
        --checkpoint last-year.checkpoint --witnesses-file anna.vkeys
    """
    if file is None:
        if vkeys or vkeys_file or witnesses or witnesses_file or quorum or earlier or unpinned:
            raise RequestInvalid("keys and checkpoints are for a FILE; the service verifies with its own")
        _verify_at_service(ctx, session)
    # Imported here: cryptography takes longer to load than --help takes to print.
    from attestation_cli import audit_file

    pinned = audit_file.pinned(
        audit_file.read_vkeys(vkeys, vkeys_file), audit_file.read_vkeys(witnesses, witnesses_file), quorum
    )
    if pinned is None and not unpinned:
        raise RequestInvalid(
            "whom to believe? Give the log's keys with --vkey or --vkeys-file, as its operator gave them to you; "
            "--unpinned believes the file itself, which proves only that it fits itself"
        )
    if pinned is not None and unpinned:
        raise RequestInvalid("--unpinned and keys of the log exclude one another")
    checked = audit_file.verify_file(
        file,
        pinned=pinned,
        earlier=[audit_file.read_checkpoint(path) for path in earlier],
        silent=session.json,
    )
    _emit_checked(session, checked)
    ctx.exit(0 if checked.error is None else 1)


@group.command()
@click.option(
    "-f",
    "--file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file, readable by you only.",
)
@click.option("--force", is_flag=True, help="Replace a file of this name.")
@trust_options
@earlier_option
@output_option
@pass_session
@click.pass_context
def export(
    ctx: click.Context,
    session: Session,
    file: Path,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
    witnesses: tuple[str, ...],
    witnesses_file: Path | None,
    quorum: int | None,
    earlier: tuple[Path, ...],
    *,
    force: bool,
) -> None:
    """Write the whole log into a file that verifies without the service, and verify it.

    The file is there whole or not at all; one that does not verify is kept as evidence, and the command ends with 1.
    Without keys it is verified in itself only: pin them, and keep an older checkpoint.

    \b
    Examples:
      attestation audit export -f audit.jsonl --vkeys-file log.vkeys
      attestation audit export -f audit.jsonl --vkeys-file log.vkeys \\
        --checkpoint last-year.checkpoint
    """
    from attestation_cli import audit_file

    pinned = audit_file.pinned(
        audit_file.read_vkeys(vkeys, vkeys_file), audit_file.read_vkeys(witnesses, witnesses_file), quorum
    )
    kept = [audit_file.read_checkpoint(path) for path in earlier]
    with session.client() as client, contextlib.closing(client.export_audit()) as pieces:
        checked = audit_file.save(
            file, pieces, pinned=pinned, earlier=kept, replace=force, silent=session.json
        )
    _emit_checked(session, checked, saved=file)
    ctx.exit(0 if checked.error is None else 1)


@group.command()
@output_option
@pass_session
def keys(session: Session) -> None:
    """Print the keys of the log, as the service names them, one vkey a line.

    Compare them with what the log's operator tells you by another way, then keep them in a file.

    \b
    Examples:
      attestation audit keys > log.vkeys
    """
    with session.client() as client:
        found = client.audit_keys()
    if session.json:
        session.emit_json(found)
        return
    for vkey in (*found.vkeys, *found.retired):
        session.emit(clean(vkey))


@group.command()
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep it in this new file, for a later `--checkpoint`.",
)
@click.option(
    "--since",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An older checkpoint: let the service prove that the log only grew.",
)
@trust_options
@output_option
@pass_session
def checkpoint(
    session: Session,
    file: Path | None,
    since: Path | None,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
    witnesses: tuple[str, ...],
    witnesses_file: Path | None,
    quorum: int | None,
) -> None:
    """Fetch the newest signed checkpoint: a few lines that bind the log to all that is in it.

    With keys, who signed is verified; with --since, also that nothing of the older log is missing or changed.

    \b
    Examples:
      attestation audit checkpoint --vkeys-file log.vkeys -f 2026-11.checkpoint
      attestation audit checkpoint --vkeys-file log.vkeys --since 2026-10.checkpoint
    """
    from attestation_cli import audit_file, audit_proof

    pinned = audit_file.pinned(
        audit_file.read_vkeys(vkeys, vkeys_file), audit_file.read_vkeys(witnesses, witnesses_file), quorum
    )
    if since is not None and pinned is None:
        raise RequestInvalid("give the log's keys too: --vkey or --vkeys-file")
    with session.client() as client:
        note = client.audit_checkpoint()
        head = audit_proof.read_head(note, pinned)
        grew = (
            None
            if since is None
            else audit_proof.grew(client, audit_file.read_checkpoint(since), head, pinned)
        )
    if file is not None:
        audit_proof.keep(file, note)
    if session.json:
        session.emit_json(
            {
                "origin": head.checkpoint.origin,
                "size": head.checkpoint.size,
                "root": b64encode(head.checkpoint.root),
                "note": note.decode(),
                "signers": [signer.key.name for signer in head.signers],
                "verified": pinned is not None,
                "grew_from": grew,
            }
        )
    elif file is None and since is None:
        session.emit(str(head.note).rstrip("\n"))
    else:
        session.emit_fields(
            [
                ("log", cell(head.checkpoint.origin)),
                ("entries", cell(head.checkpoint.size)),
                ("root", cell(b64encode(head.checkpoint.root))),
                (
                    "signed by",
                    _signers(head.signers) if pinned else Cell("not verified: no key given", "yellow"),
                ),
                *([] if grew is None else [("grew from", cell(f"{grew} entries, all of them still there"))]),
                *([] if file is None else [("kept in", cell(str(file)))]),
            ]
        )


@group.command()
@click.argument("entry_id", metavar="ID", type=click.IntRange(min=1))
@trust_options
@output_option
@pass_session
def proof(
    session: Session,
    entry_id: int,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
    witnesses: tuple[str, ...],
    witnesses_file: Path | None,
    quorum: int | None,
) -> None:
    """Prove that entry ID is in the signed log, and show it.

    The proof is verified here, against a checkpoint signed with the keys that you give. With `-o json` it can be
    handed on: entry, hashes and checkpoint are all that anybody needs.

    \b
    Examples:
      attestation audit proof 17 --vkeys-file log.vkeys
    """
    from attestation_cli import audit_file, audit_proof

    pinned = audit_file.pinned(
        audit_file.read_vkeys(vkeys, vkeys_file), audit_file.read_vkeys(witnesses, witnesses_file), quorum
    )
    with session.client() as client:
        found = audit_proof.inclusion(client, entry_id, pinned)
    if session.json:
        session.emit_json(found.document())
        return
    session.emit_fields(
        [
            ("entry", cell(entry_id)),
            *((name.replace("_", " "), cell(value)) for name, value in sorted(found.entry.items())),
            ("in the log", cell(found.head.checkpoint.origin)),
            ("of entries", cell(found.head.checkpoint.size)),
            (
                "signed by",
                _signers(found.head.signers) if pinned else Cell("not verified: no key given", "yellow"),
            ),
        ]
    )


def _verify_at_service(ctx: click.Context, session: Session) -> NoReturn:
    with session.client() as client:
        verdict = client.verify_audit()
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
    ctx.exit(0 if verdict.valid else 1)


def _emit_checked(session: Session, checked: Checked, saved: Path | None = None) -> None:
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
            ("signed by", _signers(verdict.head.signers)),
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
                        "who made it: the keys are those that the file names, and whoever made another log could "
                        "name his own",
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


def _signers(signers: Sequence[Signer]) -> Cell:
    """Name who signed, each once with the kinds of its signatures."""
    kinds: dict[str, list[str]] = {}
    for signer in signers:
        kind = "ML-DSA-44" if signer.key.type.name == "ML_DSA_44" else "Ed25519"
        kinds.setdefault(signer.key.name, []).append(kind)
    return cell("; ".join(f"{name} ({' and '.join(found)})" for name, found in kinds.items()))
