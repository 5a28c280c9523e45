"""`attestation audit …`: read, export and verify the audit log, and prove what is in it."""

# Longer than 500 lines: the commands of one group, which share how the log's keys are read.
from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation.wire import b64encode
from attestation_cli.audit_screen import emit_checked, emit_verdict, signers_cell
from attestation_cli.options import EXISTING_FILE, FILE_PATH, FOLDER_PATH, listing, printing
from attestation_cli.render import Cell, cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.audit.proof import Head

INSTANT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"])
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
@click.option("--since", type=INSTANT, help="Not before this day or instant, UTC.")
@click.option("--until", type=INSTANT, help="Before this day or instant, UTC.")
@click.option("--text", help="Only with this text in action, name, machine, detail or address.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, help="Show at most so many; 0 shows all. [default: 50]"
)
@listing
def list_(
    session: Session,
    machine_id: str | None,
    action: str | None,
    since: datetime | None,
    until: datetime | None,
    text: str | None,
    limit: int,
) -> None:
    """List entries, newest first. For a text the service looks at all of them, 20,000 at a time.

    \b
    Examples:
      attestation audit list --action approve
      attestation audit list --machine-id cp-1 --limit 0 -o csv > cp-1.csv
      attestation audit list --since 2026-11-01T06:00 --text 10.0.0.7
    """
    from attestation_cli import audit_rows  # here: whoever asks for help need not wait for it

    with session.client() as client:
        full_id = session.find_id(client, machine_id) if machine_id else None
        entries = islice(
            client.audit(
                machine_id=full_id,
                action=action,
                since=since and since.replace(tzinfo=UTC),
                until=until and until.replace(tzinfo=UTC),
                text=text,
                page_size=min(limit or 200, 200),
            ),
            limit or None,
        )
        session.emit_list(entries, audit_rows.COLUMNS, "No audit entries.")


def trust_options(command: Command) -> Command:
    """Add the options that say whom to believe."""
    for option in (
        click.option("--quorum", type=click.IntRange(min=1), help="So many of them must. [default: all]"),
        click.option(
            "--witnesses-file", type=EXISTING_FILE, help="File with vkeys of witnesses, one a line."
        ),
        click.option(
            "--witness", "witnesses", multiple=True, metavar="VKEY", help="A witness that must have cosigned."
        ),
    ):
        command = option(command)
    return log_key_options(command)


def log_key_options(command: Command) -> Command:
    """Add the options that pin the keys of the log."""
    for option in (
        click.option("--vkeys-file", type=EXISTING_FILE, help="File with vkeys of the log, one a line."),
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
    type=EXISTING_FILE,
    help="An older checkpoint that you kept: the log must still begin with it.",
)


@group.command()
@click.argument("file", required=False, type=EXISTING_FILE)
@trust_options
@earlier_option
@click.option("--unpinned", is_flag=True, help="Believe the keys that the file names: proves little.")
@printing
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
            "no key to verify with: give the log's keys with --vkey or --vkeys-file, as its operator gave them to you; "
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
    emit_checked(session, checked)
    ctx.exit(0 if checked.error is None else 1)


@group.command()
@click.option("-f", "--file", required=True, type=FILE_PATH, help="Write to this file, readable by you only.")
@click.option("--force", is_flag=True, help="Replace a file of this name.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    show_default=True,
    help="jsonl verifies later, without the service; csv is for spreadsheets and proves nothing.",
)
@trust_options
@earlier_option
@printing
@click.pass_context
def export(
    ctx: click.Context,
    session: Session,
    file: Path,
    form: str,
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

    As csv it has the columns of `audit list -o csv`. It is verified on the way too, and not written where that fails;
    but nobody can verify the file afterwards.

    \b
    Examples:
      attestation audit export -f audit.jsonl --vkeys-file log.vkeys
      attestation audit export -f audit.jsonl --vkeys-file log.vkeys \\
        --checkpoint last-year.checkpoint
      attestation audit export -f audit.csv --format csv
    """
    from attestation_cli import audit_file, audit_rows

    pinned = audit_file.pinned(
        audit_file.read_vkeys(vkeys, vkeys_file), audit_file.read_vkeys(witnesses, witnesses_file), quorum
    )
    kept = [audit_file.read_checkpoint(path) for path in earlier]
    with session.client() as client, contextlib.closing(client.export_audit()) as pieces:
        checked = audit_file.save(
            file,
            pieces,
            pinned=pinned,
            earlier=kept,
            replace=force,
            silent=session.json,
            convert=audit_rows.CSV().feed if form == "csv" else None,
        )
    emit_checked(session, checked, saved=file if checked.error is None or form == "jsonl" else None)
    if form == "csv":
        session.note(
            "note: a CSV cannot be verified, not even for a change by mistake; what proves the log is "
            "the export itself, --format jsonl"
        )
    ctx.exit(0 if checked.error is None else 1)


@group.command()
@printing
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
@click.option("-f", "--file", type=FILE_PATH, help="Keep it in this new file, for a later `--checkpoint`.")
@click.option(
    "--since", type=EXISTING_FILE, help="An older checkpoint: let the service prove that the log only grew."
)
@trust_options
@printing
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
      attestation audit checkpoint --vkeys-file log.vkeys --since 10.checkpoint
    """
    from attestation.audit.proof import read_head
    from attestation_cli import audit_file, audit_proof

    pinned = audit_file.pinned(
        audit_file.read_vkeys(vkeys, vkeys_file), audit_file.read_vkeys(witnesses, witnesses_file), quorum
    )
    if since is not None and pinned is None:
        raise RequestInvalid("give the log's keys too: --vkey or --vkeys-file")
    with session.client() as client:
        note = client.audit_checkpoint()
        head = read_head(note, pinned)
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
                    signers_cell(head.signers) if pinned else Cell("not verified: no key given", "yellow"),
                ),
                *([] if grew is None else [("grew from", cell(f"{grew} entries, all of them still there"))]),
                *([] if file is None else [("kept in", cell(str(file)))]),
            ]
        )


@group.command()
@click.argument("entry_id", metavar="[ID]", required=False, type=click.IntRange(min=1))
@click.option("-f", "--file", type=EXISTING_FILE, help="A proof that was handed on: verify it, offline.")
@trust_options
@printing
def proof(
    session: Session,
    entry_id: int | None,
    file: Path | None,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
    witnesses: tuple[str, ...],
    witnesses_file: Path | None,
    quorum: int | None,
) -> None:
    """Prove that entry ID is in the signed log, and show it.

    The proof is verified here, against a checkpoint signed with the keys that you give. With `-o json` it can be
    handed on: entry, hashes and checkpoint are all that anybody needs. Whoever has that file, or the one that the
    dashboard gives, verifies it with --file, without the service and the network.

    \b
    Examples:
      attestation audit proof 17 --vkeys-file log.vkeys
      attestation audit proof --file audit-17.proof.json --vkeys-file log.vkeys
    """
    from attestation.client.audit_proof import inclusion
    from attestation_cli import audit_file, audit_proof

    pinned = audit_file.pinned(
        audit_file.read_vkeys(vkeys, vkeys_file), audit_file.read_vkeys(witnesses, witnesses_file), quorum
    )
    if (entry_id is None) == (file is None):
        raise RequestInvalid("name the entry, or a file with its proof")
    if file is not None:
        if pinned is None:
            raise RequestInvalid(
                "no key to verify with: give the log's keys with --vkey or --vkeys-file, as its operator gave them"
            )
        found = audit_proof.read_file(file, pinned)
    else:
        assert entry_id is not None
        with session.client() as client:
            found = inclusion(client, entry_id, pinned)
    if session.json:
        session.emit_json(found.document())
        return
    session.emit_fields(
        [
            ("entry", cell(found.entry_id)),
            *((name.replace("_", " "), cell(value)) for name, value in sorted(found.entry.items())),
            ("in the log", cell(found.head.checkpoint.origin)),
            ("of entries", cell(found.head.checkpoint.size)),
            (
                "signed by",
                signers_cell(found.head.signers) if pinned else Cell("not verified: no key given", "yellow"),
            ),
        ]
    )


def _verify_at_service(ctx: click.Context, session: Session) -> NoReturn:
    with session.client() as client:
        verdict = client.verify_audit()
    emit_verdict(session, verdict)
    ctx.exit(0 if verdict.valid else 1)


@group.command()
@click.option("--git", "tree", type=FOLDER_PATH, help="The Git work tree that it goes into.")
@click.option("--push", is_flag=True, help="Push it, too.")
@click.option("--rekor", metavar="URL", help="The Rekor log that it goes into, in place of --git.")
@click.option(
    "--rekor-key",
    type=EXISTING_FILE,
    help="File with the public key of that log, PEM, as its operator gave it.",
)
@click.option(
    "--rekor-ca", type=EXISTING_FILE, help="PEM file with the only CAs that its address is believed by."
)
@click.option(
    "--keep",
    "kept",
    type=FOLDER_PATH,
    help="Directory where what is in that log is noted; needed with --rekor.",
)
@trust_options
@printing
def publish(
    session: Session,
    tree: Path | None,
    rekor: str | None,
    rekor_key: Path | None,
    rekor_ca: Path | None,
    kept: Path | None,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
    witnesses: tuple[str, ...],
    witnesses_file: Path | None,
    quorum: int | None,
    *,
    push: bool,
) -> None:
    """Put the newest checkpoint where the service cannot take it back, once it is proven that the log only grew.

    In a Git work tree it is committed as checkpoints/ORIGIN/SIZE.checkpoint and checkpoints/ORIGIN/latest. A Rekor log
    (API v1) gets its digest, the log's Ed25519 signature and key; what it answers must prove under --rekor-key that
    the entry is in it, and is kept in the directory as ORIGIN/SIZE.rekor.json beside the checkpoint.

    The one that was the latest is what the log must begin with: a service that rewrote it is refused, and nothing is
    published. What was published before is not published again.

    \b
    Examples:
      attestation audit publish --git evidence --vkeys-file log.vkeys --push
      attestation audit publish --rekor https://rekor.example \\
        --rekor-key rekor.pem --keep evidence --vkeys-file log.vkeys
    """
    from attestation.audit.proof import read_head
    from attestation_cli import audit_file, audit_git, audit_proof

    if (tree is None) == (rekor is None):
        raise RequestInvalid("say where to: --git, or --rekor")
    if rekor is None and (rekor_key or rekor_ca or kept):
        raise RequestInvalid("--rekor-key, --rekor-ca and --keep are for --rekor")
    if rekor is not None and (rekor_key is None or kept is None or push):
        raise RequestInvalid("--rekor needs --rekor-key and --keep, and pushes nothing")
    pinned = audit_file.pinned(
        audit_file.read_vkeys(vkeys, vkeys_file), audit_file.read_vkeys(witnesses, witnesses_file), quorum
    )
    if pinned is None:
        raise RequestInvalid("give the log's keys: --vkey or --vkeys-file")
    with session.client() as client:
        note = client.audit_checkpoint()
        head = read_head(note, pinned)
        origin, size = head.checkpoint.origin, head.checkpoint.size
        if tree is not None:
            folder = audit_git.folder_of(tree, origin)
        else:
            assert kept is not None
            folder = kept / audit_git.name_of(origin)
        before = folder / audit_git.LATEST
        old = audit_file.read_checkpoint(before) if before.exists() else None
        if old is not None:
            audit_proof.grew(client, old, head, pinned)
    if rekor is not None:
        assert rekor_key is not None
        _publish_in_rekor(session, head, note, folder, rekor, rekor_key, rekor_ca)
        return
    assert tree is not None
    new = not audit_git.is_published(tree, folder, size=size)
    if new:
        audit_git.publish(tree, folder, note, size=size, origin=origin)
    if push:
        audit_git.git(tree, "push", "--quiet")
    words = f"{size} entries of {clean(origin)}" + ("" if new else ": published before")
    session.emit_done(
        words + (", pushed" if push else ""), {"origin": origin, "size": size, "published": new}
    )


def _publish_in_rekor(
    session: Session, head: Head, note: bytes, folder: Path, url: str, key_file: Path, ca_file: Path | None
) -> None:
    from attestation_cli import audit_rekor

    with audit_rekor.Rekor(url, audit_rekor.read_key(key_file), ca_file=ca_file) as log:
        found, new = audit_rekor.publish_once(log, folder, head, note)
    origin, size = head.checkpoint.origin, head.checkpoint.size
    session.emit_done(
        f"{size} entries of {clean(origin)}: entry {found.index}" + ("" if new else ", published before"),
        {"origin": origin, "size": size, "published": new, "uuid": found.uuid, "index": found.index},
    )
