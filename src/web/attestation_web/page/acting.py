"""Acts: told before they are done, confirmed, done once, and told afterwards with the audit entry's number (R22).

serve ── GET: what it will do, its fields, a button
      └─ POST: 1 as it was shown  2 the typed name  3 a login of lately  4 the act, under its key  5 what it did
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flask import g, make_response, redirect, render_template, request
from pydantic import ValidationError

from attestation.api import PendingApproval
from attestation.api.said import said
from attestation.client.acts import Acts, keys_of, new_base
from attestation.client.errors import APIError, OutcomeUnknown
from attestation.client.text import clean
from attestation.errors import AnswerNotKept, AuthenticationTooOld, Conflict, RequestInvalid, Unavailable
from attestation_web.login.current import api, is_fresh, session
from attestation_web.login.sessions import Notice, Pressed

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.client import OperatorClient

T = TypeVar("T")

KEY: Final = re.compile(r"[0-9a-f]{32}")
KEY_FIELD: Final = "_key"
TYPED_FIELD: Final = "_typed"
SHOWN_FIELD: Final = "_shown"
CHANGED: Final = (
    "What this page said has changed since you saw it. Look at it as it is now; press again if you want it."
)
LONGEST_VALUE: Final = 1 << 20
ASK_SECONDS: Final = 10.0
"""So long we ask what became of an act whose answer was lost: a person waits, and presses again."""

Values = Mapping[str, str]
"""What was filled in, by the names of the fields, without blanks around; what was left empty is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Something to fill in.

    Args:
        name: In `Values`.
        label: Above it.
        kind: `text`, `area`, `choice`, `check` or `hidden`.
        value: What stands in it at first; of a check `yes` or nothing.
        help: One sentence below it.
        needed: It must not be empty.
        choices: Of a choice: value and words of each.
    """

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    help: str = ""
    needed: bool = False
    choices: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that can be done.

    Args:
        title: What, about whom: the heading of the page.
        button: The word on the button, a verb.
        will: What it will do, a sentence each.
        do: Does it: the API, whose acts carry this form's key, and what was filled in.
        did: What it did, a sentence, of the answer. A `PendingApproval` is told by itself.
        back: Path of the page to go to afterwards, or where somebody thinks better of it.
        fields: What to fill in.
        facts: What to look at before, label and value each: identifiers that are compared.
        moving: Likewise, but what changes by itself while one looks: it keeps nobody from pressing the button.
        typed: What must be typed letter by letter, a hostname for example; None asks for nothing.
        typed_as: Name in `Values` of what was typed, for `do` to send: the service compares it with what it knows.
        dangerous: It cannot be undone.
        shown_once: A secret in the answer, which the next page shows and no other.
    """

    title: str
    button: str
    will: Sequence[str]
    do: Callable[[OperatorClient, Values], Any]
    did: Callable[[Any], str]
    back: str
    fields: Sequence[Field] = ()
    facts: Sequence[tuple[str, str]] = ()
    moving: Sequence[tuple[str, str]] = ()
    typed: str | None = None
    typed_as: str | None = None
    dangerous: bool = False
    shown_once: Callable[[Any], str] | None = None

    @property
    def shown_facts(self) -> Sequence[tuple[str, str]]:
        """Return all facts, as they stand on the page."""
        return (*self.facts, *self.moving)


@dataclass(slots=True, kw_only=True)
class _Form:
    """What one person filled in so far, and what is wrong with it."""

    values: dict[str, str]
    key: str
    faults: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    unsure: bool = False
    """It is not known whether it was done."""


@dataclass(slots=True)
class _Entries:
    """Numbers of audit entries that this request led to, and of which of several each is."""

    numbers: list[int] = field(default_factory=list)
    named: list[tuple[str, int]] = field(default_factory=list)


def one_of_several(name: str, do: Callable[[], T]) -> T:
    """Do one of the acts of a form that does several, and let the notice say which audit entry is that of *name*."""
    entries: _Entries = g.entries
    before = len(entries.numbers)
    answer = do()
    entries.named += [(name, number) for number in entries.numbers[before:]]
    return answer


def serve(make: Callable[[], Act], *, fresh: bool) -> Response:
    """Answer a request for the act that *make* returns."""
    if request.method != "POST":
        act = make()
        return _ask(act, _begun(act), fresh=fresh)
    key = request.form.get(KEY_FIELD, "")
    pressed = session().press(request.path, key) if KEY.fullmatch(key) else Pressed()
    # Who presses twice sees the answer to the second request, which is that to the first.
    with pressed.lock:
        return _done_before(pressed) or _serve(make, pressed, fresh=fresh)


def _done_before(pressed: Pressed) -> Response | None:
    if pressed.did is None:
        return None
    notice, back = pressed.did
    if notice not in session().notices:
        # What was shown once is not shown twice.
        session().tell(replace(notice, text=f"Pressed twice, done once: {notice.text}", shown_once=None))
    return redirect(back, 303)


def _serve(make: Callable[[], Act], pressed: Pressed, *, fresh: bool) -> Response:
    if pressed.unsure is None:
        act = make()
        form = _sent(act)
    else:
        # Asked for again exactly as it was: about another state, or with other words, it would be another act.
        act, values = pressed.unsure
        form = replace(_sent(act), values=dict(values))
    # 1. It is what somebody saw. Machines change while one reads, and what a form carries unseen may name others.
    if pressed.unsure is None and not hmac.compare_digest(
        request.form.get(SHOWN_FIELD, "").encode(), shown(act).encode()
    ):
        _renewed(act, form).fault = CHANGED
        return _ask(act, form, fresh=fresh, status=409)
    # 2. What must be typed was typed. The page asks for it too, but whoever sends this need not have a page.
    typed = request.form.get(TYPED_FIELD, "").strip()
    if act.typed is not None and not hmac.compare_digest(typed.encode(), act.typed.encode()):
        form.faults[TYPED_FIELD] = f"Type {act.typed} to confirm."
    if act.typed_as is not None:
        form.values[act.typed_as] = typed
    for each in act.fields:
        if each.needed and not form.values.get(each.name):
            form.faults[each.name] = "This is needed."
    if form.faults:
        return _ask(act, form, fresh=fresh, status=422)
    # 3. Who decides proved lately who they are: an unlocked computer is not enough.
    if fresh and pressed.unsure is None and not is_fresh():
        return _log_in_again(form)
    # 4. It is done once, however often the button is pressed.
    entries = g.entries = _Entries()
    client = api(Acts(keys=keys_of(form.key), on_entry=entries.numbers.append, ask_seconds=ASK_SECONDS))
    try:
        answer = act.do(client, form.values)
    except AuthenticationTooOld:
        return _log_in_again(form)
    except AnswerNotKept as e:
        session().tell(Notice(text=f"Pressed twice, done once: {clean(str(e))}"))
        return redirect(act.back, 303)
    except ValidationError as e:
        faults = [(".".join(map(str, error["loc"])), said(error)) for error in e.errors()]
        return _ask(act, _faulty(act, form, faults), fresh=fresh, status=422)
    except ValueError:
        # A number that is none, a word that is no role: what a form of ours cannot send.
        form.fault = "What was filled in cannot be used."
        return _ask(act, form, fresh=fresh, status=422)
    except OutcomeUnknown as e:
        pressed.unsure = act, form.values
        form.unsure = True
        form.fault = (
            f"{clean(str(e))}. Press the button again: it is done once, and you are told what became of it."
        )
        return _ask(act, form, fresh=fresh, status=503)
    except Unavailable as e:
        # Of several requests some may have been answered; under the same key they are answered so again.
        form.unsure = bool(entries.numbers)
        pressed.unsure = (act, form.values) if form.unsure else pressed.unsure
        form.fault = f"{clean(str(e))}. What you filled in stays: press the button again when that is over."
        return _ask(act, form, fresh=fresh, status=503)
    except (RequestInvalid, Conflict) as e:
        pressed.unsure = None
        status = e.status if isinstance(e, APIError) else 409 if isinstance(e, Conflict) else 422
        return _ask(act, _refused(act, form, e), fresh=fresh, status=status)
    # 5. It says what it did, and where that is written.
    notice = _told(act, answer, entries)
    pressed.did, pressed.unsure = (notice, act.back), None
    session().tell(notice)
    return redirect(act.back, 303)


def _begun(act: Act) -> _Form:
    values = {each.name: each.value for each in act.fields}
    kept = session().resumed.get(request.args.get("resume", ""))
    if kept is not None:
        values |= {name: kept[name] for name in values if name in kept}
    # An address fills nothing in: whoever sent the link would have typed what its reader is to type, or to choose.
    return _Form(values=values, key=new_base())


def _sent(act: Act) -> _Form:
    values = {each.name: request.form.get(each.name, "").strip()[:LONGEST_VALUE] for each in act.fields}
    key = request.form.get(KEY_FIELD, "")
    return _Form(
        values={name: value for name, value in values.items() if value},
        key=key if KEY.fullmatch(key) else new_base(),
    )


def _ask(act: Act, form: _Form, *, fresh: bool, status: int = 200) -> Response:
    page = render_template(
        "act.html",
        act=act,
        form=form,
        asks_again=fresh and not is_fresh(),
        key_field=KEY_FIELD,
        typed_field=TYPED_FIELD,
        shown_field=SHOWN_FIELD,
        shown=shown(act),
        resumed="resume" in request.args and request.method == "GET",
    )
    return make_response(page, status)


def shown(act: Act) -> str:
    """Return a digest of what the page of *act* says: SHA-256, 64 hex."""
    said_there = (
        act.title,
        act.button,
        *act.will,
        *(f"{label}: {value}" for label, value in act.facts),
        *(f"{each.name}: {each.label} {each.help}" for each in act.fields),
    )
    return hashlib.sha256(json.dumps(said_there).encode()).hexdigest()


def _log_in_again(form: _Form) -> Response:
    """Keep what was filled in, and send the person to the provider and back to the same page; nothing was done."""
    name = session().keep(form.values)
    to = f"{request.path}?resume={name}"
    return make_response(render_template("log_in_again.html", to=to, back=request.path), 403)


def _faulty(act: Act, form: _Form, faults: Iterable[tuple[str, str]]) -> _Form:
    """Put what is wrong beside its field; what has none stands above all of them."""
    names = {each.name for each in act.fields}
    for where, words in faults:
        name = where.rpartition(".")[2]
        if name in names:
            form.faults[name] = clean(words)
        else:
            form.fault = f"{form.fault} {name}: {clean(words)}.".strip()
    return form


def _refused(act: Act, form: _Form, error: RequestInvalid | Conflict) -> _Form:
    # What is wrong with each field stands beside it; the sentence over them speaks of requests and routes.
    told = isinstance(error, APIError) and bool(error.errors)
    form.fault = "What was filled in cannot be used." if told else clean(str(error))
    if isinstance(error, APIError):
        _faulty(act, form, ((each.field, each.message) for each in error.errors))
    return _renewed(act, form)


def _renewed(act: Act, form: _Form) -> _Form:
    """Make of a form with which nothing was done one for another act, about what is shown now."""
    form.key = new_base()
    form.values |= {each.name: each.value for each in act.fields if each.kind == "hidden"}
    return form


def _told(act: Act, answer: Any, entries: _Entries) -> Notice:
    entry = entries.numbers[-1] if entries.numbers and not entries.named else None
    if isinstance(answer, PendingApproval):
        missing = answer.approvals_required - answer.approvals_received
        return Notice(
            kind="waits",
            text=(
                f"Your vote counts: {answer.approvals_received} of {answer.approvals_required}. "
                f"Nothing has happened yet; {missing} more must agree until {answer.expires_at:%H:%M:%S} UTC."
            ),
            entry=entry,
            link=("What they agree to; send them this link", f"/approvals/{answer.proposal_digest}"),
        )
    secret = None if act.shown_once is None else act.shown_once(answer)
    return Notice(text=act.did(answer), entry=entry, entries=tuple(entries.named), shown_once=secret)
