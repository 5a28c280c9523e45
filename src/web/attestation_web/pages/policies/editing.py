"""The editor: a text, what is wrong with it beside the place, and the act that stores it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flask import redirect, request, url_for
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from attestation.api import PolicyTestRequest
from attestation.client.errors import APIError
from attestation.client.policy_text import read_policy
from attestation.client.yaml_text import yaml_text
from attestation.errors import PolicyInvalid, RequestInvalid
from attestation_web.page import Act, Field, api, drafted, keep_draft, lines_of, needs, now, render
from attestation_web.pages.policies.area import newest_first, page, ref
from attestation_web.pages.policies.reading import changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from werkzeug.wrappers import Response

NAME: Final = "the text"
AROUND: Final = 2
DEEPEST: Final = 16
LINE: Final = re.compile(r"(?:^the text |\b)line ([0-9]{1,6})\b")
WORD: Final = re.compile(r"[A-Za-z0-9_.@-]+")
EXAMPLE: Final = """\
format: itl-policy/2
name: workers
version: 1
mode: report          # report only says what would fail; enforce refuses
tpm:
  bank: sha256
  pcrs:
    7:
      any_of: []      # SHA-256 values of PCR 7, or learn them from machines that run
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a text, and where.

    Args:
        text: In words.
        line: Where, from 1; None where that cannot be said.
        excerpt: Lines around it, with their numbers.
    """

    text: str
    line: int | None
    excerpt: list[tuple[int, str]]


@page.get("/edit")
@needs("act")
def edit() -> Response:
    """Show the editor: empty, with a stored version as the next one, or with a draft."""
    text = drafted("document") or _next_version(request.args.get("from", "")) or EXAMPLE
    return _editor(text)


@page.post("/edit")
@needs("act")
def check() -> Response:
    """Check what was written, and go on to store it or try it where it is asked for and nothing is wrong."""
    text = request.form.get("document", "").replace("\r\n", "\n")
    document, fault = judged(text)
    if fault is not None or document is None:
        return _editor(text, fault=fault, status=422)
    to = request.form.get("to", "check")
    if to in ("create", "try"):
        draft = keep_draft({"document": text})
        return redirect(url_for("policies.create" if to == "create" else "policies.choose", draft=draft), 303)
    return _editor(text, document=document)


@page.act("/create", fresh=True)
def create() -> Act:
    """Store a policy version."""
    text = drafted("document")
    document = read_policy(text, NAME)
    reference = f"{document.get('name')}@{document.get('version')}"
    return Act(
        title=f"Store the policy {reference}",
        button="Store it",
        will=[
            f"{reference} is stored. It can never be changed afterwards; a change is another version.",
            "It applies nowhere by that: no machine is judged by it until it is activated.",
        ],
        fields=[Field(name="document", label="Document", kind="hidden", value=text, needed=True)],
        do=lambda client, filled: client.create_policy(read_policy(filled["document"], NAME)),
        did=lambda answer: (
            f"{ref(answer)} is stored. It applies nowhere yet: try it on the fleet, then activate it."
        ),
        back=f"/policies?q={document.get('name')}",
    )


def judged(text: str) -> tuple[dict[str, Any] | None, Fault | None]:
    """Return the document in *text*, or what is wrong with it: as this reader says, then as the service says."""
    try:
        document = read_policy(text, NAME)
    except RequestInvalid as e:
        found = LINE.search(str(e))
        return None, _fault(text, str(e).removeprefix(f"{NAME}: "), int(found[1]) if found else None)
    try:
        # Asked of the service, which must be able to judge by it: it may be older or newer than this dashboard.
        api().test_policy(PolicyTestRequest(document=document, limit=1))
    except (PolicyInvalid, RequestInvalid) as e:
        words = str(e)
        if isinstance(e, APIError) and e.errors:
            words = "; ".join(f"{each.field}: {each.message}" for each in e.errors)
        return None, _fault(text, words, line_of(text, words))
    return document, None


def line_of(text: str, words: str) -> int | None:
    """Return the line of the member that *words* names most exactly; None where they name none.

    `pcrs.7` is found below `tpm` too: the words of a fault begin at the member, not at the document.
    """
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, ValueError, RecursionError):
        return None
    named = {word.strip(".") for word in WORD.findall(words)}
    best: tuple[int, int] | None = None
    for path, line in _members(root, (), 0):
        for begin in range(len(path)):
            tail = path[begin:]
            if ".".join(tail) in named or (len(tail) > 1 and _said(tail, words)):
                best = max(best or (0, 0), (len(tail), -line))
    return None if best is None else -best[1]


def _said(path: tuple[str, ...], words: str) -> bool:
    """True where every part of *path* stands in *words*, in its order."""
    pattern = r"\b.{0,24}?\b".join(re.escape(part) for part in path)
    return re.search(rf"\b{pattern}\b", words, re.IGNORECASE) is not None


def _members(node: Node | None, path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], int]]:
    if depth > DEEPEST:
        return
    if isinstance(node, MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _members(value, here, depth + 1)
    elif isinstance(node, SequenceNode):
        for value in node.value:
            yield from _members(value, path, depth + 1)


def _fault(text: str, words: str, line: int | None) -> Fault:
    lines = text.splitlines()
    if line is None or not lines:
        return Fault(text=words, line=None, excerpt=[])
    begin, end = max(1, line - AROUND), min(len(lines), line + AROUND)
    return Fault(text=words, line=line, excerpt=[(n, lines[n - 1]) for n in range(begin, end + 1)])


def _next_version(reference: str) -> str:
    """Return a stored version as YAML, with the number that comes after the newest of its name."""
    if not reference:
        return ""
    listed = api().policies()
    found = next((p for p in listed.policies if ref(p) == reference), None)
    if found is None:
        return ""
    newest = max(p.version for p in listed.policies if p.name == found.name)
    return yaml_text(found.document | {"version": newest + 1})


def _editor(
    text: str, *, fault: Fault | None = None, document: dict[str, Any] | None = None, status: int = 200
) -> Response:
    before = None
    if document is not None:
        same = [p for p in newest_first(api().policies()) if p.name == document.get("name")]
        before = same[0] if same else None
    return render(
        "policies/edit.html",
        status,
        text=text,
        fault=fault,
        document=document,
        before=before,
        changes=changes(before.document, document) if before and document else [],
        lines=lines_of(yaml_text(before.document), yaml_text(document)) if before and document else None,
        at=now(),
    )
