"""The API as a page for people: whole, without anybody else's hosts or scripts, and open as /openapi.json is."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from html.parser import HTMLParser
from typing import Any

import pytest

from attestation_service.documentation.page import STYLE, render
from tests.unit.service.conftest import Service, document

DOCUMENT = document()
PAGE = render(DOCUMENT)
VOID = frozenset({"meta", "br"})


class Reader(HTMLParser):
    """What a browser would load, where links lead, and whether every element ends."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element, its anchor and its link."""
        self.elements.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        """Close what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note what is to be read."""
        self.text += data


READ = Reader(PAGE)


def test_everything_stands_in_it() -> None:
    """Each route with its parameters, bodies, answers and error codes, and each schema with its members."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            section = PAGE.split(f'<div id="{operation["operationId"]}">')
            assert len(section) == 2, path
            heading, told = section[0].rpartition("<details>")[2], section[1].partition("</details>")[0]
            assert method.upper() in heading
            assert escape(path) in heading
            for parameter in operation.get("parameters", ()):
                assert f"<code>{parameter['name']}</code>" in told, (path, parameter)
            for kind in operation.get("requestBody", {}).get("content", {}):
                assert f"<code>{kind}</code>" in told, (path, kind)
            for status, response in operation["responses"].items():
                assert f"<td>{status}</td>" in told, (path, status)
                for content in response.get("content", {}).values():
                    for code in content.get("examples", {}):
                        assert f"<code>{code}</code>" in told, (path, code)
    for name, schema in DOCUMENT["components"]["schemas"].items():
        told = PAGE.split(f'<div id="schema-{name}">')[1].partition("</details>")[0]
        for member in schema.get("properties", {}):
            assert f"<code>{escape(member)}</code>" in told, (name, member)


def test_every_link_leads_somewhere_and_everything_is_reached_by_one() -> None:
    """Within the page, or to the document for programs; no other place is named."""
    within = {link[1:] for link in READ.links if link.startswith("#")}
    assert set(READ.links) - {f"#{anchor}" for anchor in within} == {"/openapi.json"}
    assert within <= set(READ.ids)
    assert len(READ.ids) == len(set(READ.ids))
    operations = {o["operationId"] for methods in DOCUMENT["paths"].values() for o in methods.values()}
    assert operations <= within


@pytest.mark.threat("T166")
def test_it_loads_and_runs_nothing() -> None:
    """No script, no picture, no form, no frame, no address of another host, no style but its own sheet."""
    assert not READ.elements & {"script", "img", "link", "iframe", "form", "object", "embed", "svg", "base"}
    assert READ.attributes <= {"id", "class", "href", "lang", "charset", "name", "content"}
    assert not [word for word in ("url(", "@import", "//") if word in STYLE]


@pytest.mark.threat("T166")
def test_what_the_document_says_stays_text() -> None:
    """Whatever stands in a title, description, path, name, pattern or example: none of it becomes an element."""
    evil = '"><script>alert(1)</script>`<b>`'
    schema = {"type": evil, "format": evil, "pattern": evil, "default": evil, "description": evil}
    operation: dict[str, Any] = {
        "tags": [evil],
        "summary": evil,
        "description": evil,
        "operationId": evil,
        "x-access": "public",
        "parameters": [{"name": evil, "in": evil, "description": evil, "schema": {"enum": [evil]}}],
        "requestBody": {"content": {evil: {"schema": {"$ref": f"#/{evil}"}}}},
        "responses": {
            evil: {
                "description": evil,
                "headers": {evil: {}},
                "content": {evil: {"examples": {evil: {"summary": evil}}}},
            },
            "200": {"description": evil, "content": {evil: {"schema": {"anyOf": [schema, {"const": evil}]}}}},
        },
    }
    hostile = {
        "info": {"title": evil, "version": evil, "description": evil},
        "paths": {evil: {evil: operation}},
        "components": {
            "schemas": {evil: {"description": evil, "properties": {evil: schema}, "type": evil}, "E": schema}
        },
    }
    read = Reader(render(hostile))
    assert not read.elements & {"script", "b"}
    assert read.attributes <= READ.attributes
    assert read.text.count("<script>alert(1)</script>") > 20


@pytest.mark.threat("T166")
@pytest.mark.anyio
async def test_it_is_open_and_may_show_only_its_own_style(service: Service) -> None:
    """Without a login, as /openapi.json; one policy, with the digest of its sheet. Other answers keep theirs."""
    answer = await service.http.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    (policy,) = answer.headers.get_list("content-security-policy")
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    sheet = answer.text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert directives == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "style-src": f"'sha256-{digest}'",
    }
    assert answer.headers.get_list("cache-control") == ["no-store"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (await service.http.get("/docs")).text == answer.text == render(service.app.openapi())
    other = await service.http.get("/openapi.json")
    assert other.headers.get_list("content-security-policy") == ["default-src 'none'; frame-ancestors 'none'"]
