"""The audit log: what was decided, by whom; and how anybody finds out that it was not rewritten."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from flask import Response as FlaskResponse
from flask import make_response, request

from attestation.api.operations import OperatorAPI
from attestation.audit import checkpoint
from attestation.audit.authority import words_of
from attestation.audit.checkpoint import Signer
from attestation.audit.export import MEDIA_TYPE as EXPORT_MEDIA_TYPE
from attestation.audit.note import MAX_NOTE_BYTES, VerifierKey, parse_vkey
from attestation.audit.proof import MEDIA_TYPE as PROOF_MEDIA_TYPE
from attestation.client.audit_proof import grew, inclusion, place
from attestation.client.errors import AnswerInvalid
from attestation.client.text import clean
from attestation.errors import (
    LogRejected,
    MalformedEvidence,
    MalformedNote,
    NoteRejected,
    ProofUnavailable,
    RequestInvalid,
    Unavailable,
    Unknown,
)
from attestation_web.page import Badge, Column, Page, api, now, render, table
from attestation_web.page.badges import Look

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from werkzeug.wrappers import Response

    from attestation.api import AuditKeys
    from attestation.audit.checkpoint import Checkpoint, UnverifiedCheckpoint
    from attestation.client import OperatorClient

PAGE_SIZE: Final = 50
ACTION: Final = re.compile(r"[a-z_]{1,64}")
MACHINE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LONGEST_NAME: Final = 256
LONGEST_TEXT: Final = 128
ASKED: Final = ("machine", "action", "operator", "since", "until", "text")
REFUSED: Final = Look.BAD
FAILURES: Final = ("denied", "attest_failed", "break_glass")
"""Actions that somebody looks for first; they stand out in the list."""

page: Final = Page(__name__, title="Audit", place=70, right="audit")

COLUMNS: Final = (
    Column(name="id", title="Entry", numeric=True),
    Column(name="at", title="When"),
    Column(name="action", title="Action"),
    Column(name="operator", title="Who"),
    Column(name="machine", title="Machine"),
    Column(name="change", title="Change"),
    Column(name="detail", title="What"),
    Column(name="from", title="From", shown=False),
    Column(name="hash", title="Hash", shown=False),
)


class EntryUnknown(Unknown):
    """The audit log has no entry of this number."""

    code = "audit-entry-unknown"


@page.get("")
def show() -> Response:
    """List entries, newest first: of one machine, action or person, between two instants, with a text in them."""
    asked = {name: request.args.get(name, "").strip() for name in ASKED}
    faults = _faults(asked)
    rows: Any = ()
    cursor = searched_to = None
    if not faults:
        try:
            found = api().whole_page(
                OperatorAPI.audit,
                request.args.get("after"),
                machine_id=asked["machine"] or None,
                action=asked["action"] or None,
                operator_cn=asked["operator"] or None,
                since=_instant(asked["since"]),
                until=_instant(asked["until"]),
                text=asked["text"] or None,
                page_size=PAGE_SIZE,
            )
            rows, cursor, searched_to = found.items, found.next_cursor, found.searched_to
        except RequestInvalid as e:
            faults = [clean(str(e))]
    return render(
        "audit/page.html",
        entries=table(COLUMNS, rows, cursor=cursor, paged=True),
        asked=asked,
        faults=faults,
        filtered=any(asked.values()),
        searched_to=searched_to,
        words_of=words_of,
        loud=FAILURES,
    )


def _instant(text: str) -> datetime | None:
    """Return the instant, UTC, that a field for day and time says; None for nothing.

    Raises:
        ValueError: None.
    """
    if not text:
        return None
    at = datetime.fromisoformat(text)
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def _faults(asked: dict[str, str]) -> list[str]:
    faults = []
    if asked["machine"] and not MACHINE.fullmatch(asked["machine"]):
        faults.append("The id of a machine is 36 characters, as its page shows it.")
    if asked["action"] and not ACTION.fullmatch(asked["action"]):
        faults.append("An action is one word in lower case, such as approve or attest_failed.")
    for name in ("since", "until"):
        try:
            _instant(asked[name])
        except ValueError:
            faults.append(f"{name.capitalize()} is a day and a time in UTC, such as 2026-11-26T14:00.")
    if len(asked["text"]) > LONGEST_TEXT or not asked["text"].isprintable():
        faults.append(f"A text to search for has at most {LONGEST_TEXT} characters.")
    if len(asked["operator"]) > LONGEST_NAME or not asked["operator"].isprintable():
        faults.append("That is no name of a person.")
    return faults


@page.get("/<int:number>")
def entry(number: int) -> Response:
    """Show one entry: who, what and when; that it follows the one before; that it is in the signed log."""
    client = api()
    try:
        found = place(client, number)
    except ProofUnavailable as e:
        raise EntryUnknown(f"the audit log has no entry {number}") from e
    except MalformedEvidence as e:
        raise AnswerInvalid(str(e)) from e
    proven, why = Badge(look=Look.GOOD, text="in the signed log"), ""
    size = None
    try:
        size = inclusion(client, number, None).head.checkpoint.size
    except ProofUnavailable:
        proven = Badge(look=Look.WAITS, text="not signed yet")
        why = "The next checkpoint covers it; the service signs one every few minutes at the latest."
    except Unavailable as e:
        proven, why = Badge(look=Look.UNKNOWN, text="not known now"), clean(str(e))
    except (LogRejected, MalformedEvidence) as e:
        proven, why = Badge(look=REFUSED, text="not what was signed"), clean(str(e))
    return render(
        "audit/entry.html",
        found=found,
        entry=found.entry,
        words=words_of(found.entry.get("detail")),
        proven=proven,
        why=why,
        size=size,
        chained=Badge(look=Look.GOOD, text="follows entry " + str(number - 1) if number > 1 else "the first")
        if found.follows
        else Badge(look=REFUSED, text="does not follow the entry before it"),
    )


@page.get("/<int:number>/proof.json")
def proof(number: int) -> Response:
    """Give the proof of one entry, which `attestation audit proof --file` verifies without the service."""
    if number < 1:
        raise EntryUnknown("the first entry is 1")
    found = inclusion(api(), number, None)
    return _file(
        json.dumps(found.document(), indent=2).encode("ascii") + b"\n",
        f"audit-{number}.proof.json",
        PROOF_MEDIA_TYPE,
    )


@page.get("/verify")
def verify() -> Response:
    """Let the service walk its log, where somebody asks for it; and say how to do without its word."""
    asked = "now" in request.args
    return render("audit/verify.html", found=api().verify_audit() if asked else None, at=now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One line of a checkpoint.

    Args:
        name: Who signed, as the line says.
        kind: The log, a witness, or somebody whom the service does not name.
        algorithm: Of the key.
        state: Whether it verifies under the key that the service names.
        time: The instant that it states; None where it states none.
    """

    name: str
    kind: str
    algorithm: str
    state: Badge
    time: datetime | None


@page.get("/log")
def log() -> Response:
    """Show the newest checkpoint: who signed it, which witnesses saw it, and under which keys."""
    client = api()
    keys = client.audit_keys()
    try:
        signed = checkpoint.parse(client.audit_checkpoint())
    except (Unavailable, MalformedNote) as e:
        return render("audit/log.html", keys=keys, head=None, why=clean(str(e)), signatures=(), missing=())
    signatures = _signatures(signed, keys)
    seen = {each.name for each in signatures if each.kind == "witness"}
    return render(
        "audit/log.html",
        keys=keys,
        head=signed.checkpoint,
        why="",
        note=str(signed.note),
        signatures=signatures,
        missing=[key.name for key in map(parse_vkey, keys.witnesses) if key.name not in seen],
    )


def _signatures(signed: UnverifiedCheckpoint, keys: AuditKeys) -> list[Signature]:
    """Return each line, with what the keys say of it that the service names."""
    known: dict[tuple[str, bytes], tuple[str, VerifierKey]] = {}
    for kind, vkeys in (("log", keys.vkeys), ("log, retired", keys.retired), ("witness", keys.witnesses)):
        for named in map(parse_vkey, vkeys):
            known[named.name, named.key_id] = kind, named
    shown = []
    for line in signed.note.signatures:
        of, at = "not named by the service", (line.name, line.key_id)
        key = known[at][1] if at in known else None
        signer: Signer | None = None
        state = Badge(look=Look.UNKNOWN, text="not verified", title="The service names no such key")
        if key is not None:
            of = known[at][0]
            try:
                signer = next(iter(checkpoint.verify_signatures(signed, (key,))), None)
                state = Badge(look=Look.GOOD, text="verifies")
            except LogRejected as e:
                state = Badge(look=Look.BAD, text="does not verify", title=clean(str(e)))
        shown.append(
            Signature(
                name=line.name,
                kind=of,
                algorithm="unknown" if key is None else key.type.name.replace("_", "-").lower(),
                state=state,
                time=None
                if signer is None or signer.time is None
                else datetime.fromtimestamp(signer.time, UTC),
            )
        )
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came of two checkpoints.

    Args:
        old, new: What each of them says; None where it could not be read.
        good: The log of the newer begins with that of the older, and both are signed.
        words: What that means, or what is wrong.
    """

    old: Checkpoint | None
    new: Checkpoint | None
    good: bool
    words: str


@page.get("/compare")
def compare_form() -> Response:
    """Ask for two checkpoints."""
    return render("audit/compare.html", found=None)


@page.post("/compare")
def compare() -> Response:
    """Verify here that of two checkpoints the log of one begins with that of the other."""
    old = _sent("old")
    if old:
        found = _compared(api(), old, _sent("new"), request.form.get("keys", ""))
    else:
        nothing = "Choose the file of the older checkpoint, or paste it."
        found = Compared(old=None, new=None, good=False, words=nothing)
    return render(
        "audit/compare.html", 200 if found.good else 422, found=found, pinned=request.form.get("keys")
    )


def _sent(name: str) -> bytes:
    """Return a checkpoint that a form brought: a file, or what was pasted; empty where neither."""
    file = request.files.get(f"{name}_file")
    data = file.read(MAX_NOTE_BYTES + 1) if file is not None else b""
    # What is pasted into a form comes with CR LF, and perhaps without its last line break.
    pasted = request.form.get(name, "").replace("\r\n", "\n").strip()
    return data or (f"{pasted}\n".encode() if pasted else b"")


def _compared(client: OperatorClient, old: bytes, new: bytes, keys: str) -> Compared:
    read: list[Checkpoint] = []
    try:
        named = None if keys.strip() else client.audit_keys()
        sets = [tuple(map(parse_vkey, keys.split()))] if named is None else _key_sets(named)
        for note in (old, new or client.audit_checkpoint()):
            unverified = checkpoint.parse(note)
            read.append(unverified.checkpoint)
            _verify_signed(unverified, sets)
        grew(client, *read)
    except (
        RequestInvalid,
        MalformedNote,
        MalformedEvidence,
        LogRejected,
        ProofUnavailable,
        Unavailable,
    ) as e:
        before, after = [*read, None, None][:2]
        return Compared(old=before, new=after, good=False, words=clean(str(e)))
    return Compared(
        old=read[0],
        new=read[1],
        good=True,
        words=f"All {read[0].size:,} entries of the older one are in the newer one, unchanged and in their places.",
    )


def _key_sets(named: AuditKeys) -> list[tuple[VerifierKey, ...]]:
    """Return by which keys a checkpoint may be signed: the present ones, or for an older one those before too."""
    present, retired = (tuple(map(parse_vkey, vkeys)) for vkeys in (named.vkeys, named.retired))
    return [present, (*present, *retired), retired] if retired else [present]


def _verify_signed(unverified: UnverifiedCheckpoint, sets: Sequence[tuple[VerifierKey, ...]]) -> None:
    """Verify that who must have signed did, by one of *sets*.

    Raises:
        NoteRejected: By none of them.
    """
    for number, keys in enumerate(sets, 1):
        try:
            checkpoint.verify(unverified, log_keys=keys, witnesses=(), quorum=0)
        except NoteRejected:
            if number == len(sets):
                raise
        else:
            return


@page.get("/checkpoint")
def newest_checkpoint() -> Response:
    """Give the newest checkpoint, to be kept: a log that is not its continuation later was rewritten."""
    note = api().audit_checkpoint()
    size = checkpoint.parse(note).checkpoint.size
    return _file(note, f"audit-{size}.checkpoint", "text/plain; charset=utf-8")


@page.get("/keys")
def keys() -> Response:
    """Give the keys of the log, one a line, to be compared with what its operator says."""
    found = api().audit_keys()
    lines = "".join(f"{key}\n" for key in (*found.vkeys, *found.retired))
    return _file(lines.encode(), "log.vkeys", "text/plain; charset=utf-8")


@page.get("/export")
def export() -> Response:
    """Pass the whole log on, piece by piece; the service writes an entry about it."""
    pieces = api().export_audit()
    # What the service refuses is known before anything is sent.
    first = next(pieces, b"")

    def passed_on() -> Iterator[bytes]:
        with closing(pieces):
            yield first
            yield from pieces

    return FlaskResponse(
        passed_on(),
        mimetype=EXPORT_MEDIA_TYPE,
        headers={"Content-Disposition": 'attachment; filename="audit.jsonl"'},
    )


def _file(data: bytes, name: str, media_type: str) -> Response:
    response = make_response(data)
    response.headers["Content-Type"] = media_type
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
