"""`attestation bundle …`: believe a sealed bundle without asking anybody, however old it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from attestation.client.text import clean
from attestation.clock import rfc3339
from attestation.errors import AlreadyExists, MalformedEvidence, RequestInvalid, SealRejected
from attestation_cli.audit_screen import signers_cell
from attestation_cli.commands.audit import log_key_options
from attestation_cli.options import EXISTING_FILE, FOLDER_PATH, printing
from attestation_cli.render import Cell, cell, moment_cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.sealing import SealedClaims, ServiceKey

MOST_KEYS_BYTES: Final = 1 << 17
COLOURS: Final = {"verified": "green", "failed": "red"}


@click.group("bundle")
def group() -> None:
    """Verify sealed bundles of attestation runs: what was measured of a node of a cluster.

    \b
    Examples:
      attestation bundle verify 0c1d2e3f.intoto.jsonl --vkeys-file log.vkeys
    """


@group.command()
@click.argument("file", type=EXISTING_FILE)
@log_key_options
@click.option("--keys", type=EXISTING_FILE, help="JWK set of the service: only these may have signed.")
@click.option(
    "--extract", type=FOLDER_PATH, help="Write event, result, policy and evidence into this new folder."
)
@printing
def verify(
    session: Session,
    file: Path,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
    keys: Path | None,
    extract: Path | None,
) -> None:
    """Verify FILE by itself, and say what was measured, when, and who says so.

    Needs neither the service nor the network, only the keys of the audit log as its operator gave them: signature,
    every byte that was sealed, and the place of it in the log. Ends with 0 where all of it is proven, whatever the
    verdict was, else with 1.

    \b
    Examples:
      attestation bundle verify 0c1d2e3f.intoto.jsonl --vkeys-file log.vkeys
      attestation bundle verify 0c1d2e3f.intoto.jsonl --vkeys-file log.vkeys \\
        --keys service.jwks -o json
    """
    # Imported here: cryptography takes longer to load than --help takes to print.
    from attestation import sealing
    from attestation_cli import audit_file

    pinned = audit_file.pinned(audit_file.read_vkeys(vkeys, vkeys_file), (), None)
    if pinned is None:
        raise RequestInvalid(
            "no key to verify with: give the log's keys with --vkey or --vkeys-file, as its operator gave them"
        )
    service = None if keys is None else _read_keys(keys)
    data = _read(file, sealing.MAX_FILE_BYTES)
    try:
        claims = sealing.verify(sealing.parse(data), log_keys=pinned.log_keys, service_keys=service)
    except MalformedEvidence as e:
        # To who asks, a byte that makes it unreadable is as bad as one that makes it untrue.
        raise SealRejected(str(e)) from e
    if extract is not None:
        _extract(claims, extract)
    if session.json:
        session.emit_json(_document(claims))
    else:
        _emit(session, claims, datetime.now(UTC), extract)


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as opened:
            return opened.read(most + 1)
    except OSError as e:
        raise RequestInvalid(f"{path}: {e.strerror}") from e


def _read_keys(path: Path) -> tuple[ServiceKey, ...]:
    from attestation.sealing import service_keys

    try:
        return service_keys(json.loads(_read(path, MOST_KEYS_BYTES)))
    except (ValueError, RecursionError, MalformedEvidence) as e:
        raise RequestInvalid(f"{path} is no JWK set: an object with a list called keys") from e


def _emit(session: Session, claims: SealedClaims, now: datetime, extracted: Path | None) -> None:
    result, event = claims.result, claims.event
    predicate = claims.predicate
    rows: list[tuple[str, Cell]] = [
        ("bundle", Cell("VALID", "green")),
        ("verdict", _verdict(predicate["result"]["verdict"])),
        ("told as", cell(_said(event, "type"))),
        ("node", cell(_said(result, "nodeName"))),
        ("cluster", cell(_said(event, "clusterIdentity", "clusterID"))),
        ("machine", cell(clean(predicate["result"].get("machineID", "")) or "no machine of the service")),
        ("hardware", cell(_said(result, "backend"))),
        ("run", cell(f"{_said(result, 'derivedFromRun', 'name')} ({predicate['result']['runUID']})")),
        ("policy", cell(f"{predicate['result']['policyID']} ({_said(result, 'policySource')})")),
        *_measured(result),
        *(
            (each.name, cell(clean(f"{each.media_type}, {len(each.content)} bytes, sha256 {each.sha256}")))
            for each in claims.evidence
        ),
        *_checks(result),
        ("signed", moment_cell(claims.attested_at, now)),
        ("signed by", cell(clean(f"{_said(predicate, 'attestor', 'name')} at {_instance(claims)}"))),
        (
            "key",
            cell(claims.key_id)
            if claims.key_is_pinned
            else Cell(f"{claims.key_id}: not pinned, the log vouches for it", "yellow"),
        ),
        ("logged", moment_cell(claims.logged_at, now)),
        ("logged for", cell(clean(claims.logged_by))),
        ("log", cell(clean(f"{claims.origin}, entry {claims.index + 1}"))),
        ("checkpoint by", signers_cell(claims.signers)),
        ("statement", cell(claims.digest)),
    ]
    if extracted is not None:
        rows.append(("written to", cell(str(extracted))))
    session.emit_fields(rows)


def _verdict(word: str) -> Cell:
    return Cell(clean(word).upper(), COLOURS.get(word, "yellow"))


def _measured(result: Any) -> list[tuple[str, Cell]]:
    listed = result.get("measurements")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return [(f"measured {_said(each, 'slot')}", cell(_said(each, "digest"))) for each in found]


def _checks(result: Any) -> list[tuple[str, Cell]]:
    listed = result.get("checks")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    told = [f"{_said(each, 'id')} {_said(each, 'outcome')}" for each in found]
    return [("checks", cell(", ".join(told)))] if told else []


def _said(found: Any, *path: str) -> str:
    """Return the text at *path* for a screen, a dash where there is none."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return clean(found) if isinstance(found, str) and found else "-"


def _instance(claims: SealedClaims) -> str:
    return _said(claims.predicate, "attestor", "instance")


def _document(claims: SealedClaims) -> dict[str, Any]:
    return {
        "valid": True,
        "statement": claims.digest,
        "bundle_uid": claims.bundle_uid,
        "predicate": dict(claims.predicate),
        "event": {"name": claims.event_name, "spec": dict(claims.event)},
        "result": {"name": claims.result_name, "spec": dict(claims.result)},
        "policy": dict(claims.policy),
        "evidence": [
            {
                "name": each.name,
                "media_type": each.media_type,
                "sha256": each.sha256,
                "size": len(each.content),
            }
            for each in claims.evidence
        ],
        "signed_at": rfc3339(claims.attested_at),
        "key_id": claims.key_id,
        "key_is_pinned": claims.key_is_pinned,
        "logged_at": rfc3339(claims.logged_at),
        "logged_by": claims.logged_by,
        "log": claims.origin,
        "entry_id": claims.index + 1,
        "signers": sorted({signer.key.name for signer in claims.signers}),
    }


def _extract(claims: SealedClaims, folder: Path) -> None:
    """Write what was sealed, byte for byte, under names of ours: those in the file are somebody else's.

    Raises:
        AlreadyExists: There is such a folder.
        RequestInvalid: It cannot be written.
    """
    names = ("event.json", "result.json", "policy.json")
    try:
        folder.mkdir(mode=0o700)
        for number, subject in enumerate(claims.subjects):
            name = names[number] if number < len(names) else f"evidence-{number - len(names) + 1}"
            (folder / name).write_bytes(subject.content)
    except FileExistsError as e:
        raise AlreadyExists(f"{folder} exists; choose another name") from e
    except OSError as e:
        raise RequestInvalid(f"{folder} cannot be written: {e.strerror}") from e
