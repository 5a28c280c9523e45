"""The OpenAPI document as one page of HTML: every route with its parameters, bodies and answers, every schema.

No script, no font, no image, nothing from another host: a browser shows it under `default-src 'none'` with the one
style sheet that stands in it, allowed by its SHA-256. Everything of the document is escaped, also what is ours.
"""

# Algorithms for: digest
from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any, Final

from attestation_service.routing.openapi import ACCESS

STYLE: Final = """
:root { color-scheme: light dark; --line: light-dark(#d5d9df, #3a4048); --soft: light-dark(#f4f6f8, #1d2126);
  --dim: light-dark(#5a636e, #a3adb8); --link: light-dark(#0b57a4, #7db7f2); --act: light-dark(#9a3412, #fdba74);
  --read: light-dark(#1d6b3a, #86d8a4) }
* { box-sizing: border-box }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; background: light-dark(#fff, #15181c);
  color: light-dark(#1b2026, #e6eaee); display: grid; grid-template-columns: minmax(0, 1fr) }
main, nav { padding: 1.5rem; min-width: 0 }
nav { background: var(--soft); border-bottom: 1px solid var(--line); font-size: .875rem }
nav ul { list-style: none; margin: 0 0 .75rem; padding: 0 }
nav li { overflow-wrap: anywhere }
a { color: var(--link) }
nav a { text-decoration: none }
a:hover, a:focus { text-decoration: underline }
h1 { margin: 0 0 .5rem; font-size: 1.6rem }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.2rem }
h3 { margin: 1.25rem 0 .25rem; font-size: .9rem; color: var(--dim) }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; padding: 0 1rem }
details[open] { padding-bottom: 1rem }
details:has(:target) { border-color: var(--link) }
:target { scroll-margin-top: 4rem }
summary { cursor: pointer; padding: .6rem 0; overflow-wrap: anywhere }
summary span { color: var(--dim) }
.method { font-weight: 700; display: inline-block; min-width: 4.2em; color: var(--act) }
.GET { color: var(--read) }
.table { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line) }
th { color: var(--dim); font-weight: 600 }
@media (min-width: 70rem) {
  body { grid-template-columns: 21rem minmax(0, 1fr) }
  nav { position: sticky; top: 0; height: 100vh; overflow-y: auto; border-bottom: 0;
    border-right: 1px solid var(--line) }
  main { max-width: 70rem }
}
"""

POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    + "'"
)
"""What the page may load: its own style sheet, and nothing else."""

_LIMITS: Final = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} members",
    "pattern": "matches <code>{}</code>",
    "default": "default <code>{}</code>",
}

Schema = Mapping[str, Any]


def render(document: Mapping[str, Any]) -> str:
    """Return the page for an OpenAPI 3.1 document."""
    tags: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tags.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    info, schemas = document["info"], document["components"]["schemas"]
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(info['title'])}</title><style>{STYLE}</style></head><body><nav>",
            *(_index(tag, tags[tag]) for tag in sorted(tags)),
            '<p><a href="#schemas">Schemas</a></p></nav><main>',
            f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>{_prose(info['description'])}",
            '<p>The same for programs: <a href="/openapi.json"><code>/openapi.json</code></a>.</p>',
            *(_section(tag, tags[tag]) for tag in sorted(tags)),
            '<h2 id="schemas">Schemas</h2>',
            *(_schema(name, schemas[name]) for name in sorted(schemas)),
            "</main></body></html>",
        )
    )


def _index(tag: str, operations: Iterable[tuple[str, str, Mapping[str, Any]]]) -> str:
    items = (
        f'<li><a href="#{_id(operation["operationId"])}">{escape(operation["summary"])}</a></li>'
        for _, _, operation in operations
    )
    return f"<strong>{escape(tag)}</strong><ul>{''.join(items)}</ul>"


def _section(tag: str, operations: Iterable[tuple[str, str, Mapping[str, Any]]]) -> str:
    return f"<h2>{escape(tag)}</h2>" + "".join(_operation(*one) for one in operations)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    access = operation["x-access"]
    return "".join(
        (
            f'<details><summary><code><span class="method {escape(method)}">{escape(method)}</span> {escape(path)}',
            f"</code> <span>{escape(operation['summary'])}</span></summary>",
            f'<div id="{_id(operation["operationId"])}">',  # inside: so a link to it opens the details
            _prose(operation.get("description", "")),
            f"<p>Who may ask: {escape(ACCESS[access])} (<code>{escape(access)}</code>).</p>",
            _table(
                "Parameters", ("name", "in", "type", ""), map(_parameter, operation.get("parameters", ()))
            ),
            _contents("Body", operation.get("requestBody", {})),
            _table("Answers", ("status", "what", "body"), _answers(operation["responses"])),
            "</div></details>",
        )
    )


def _parameter(parameter: Mapping[str, Any]) -> tuple[str, ...]:
    schema = parameter["schema"]
    return (
        _name(parameter["name"], needed=parameter.get("required", False)),
        escape(parameter["in"]),
        _type(schema),
        _told(parameter.get("description", ""), schema),
    )


def _contents(title: str, body: Mapping[str, Any]) -> str:
    rows = (
        (f"<code>{escape(kind)}</code>", _type(c.get("schema", {})))
        for kind, c in body.get("content", {}).items()
    )
    return _table(title, ("media type", "type"), rows)


def _answers(responses: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield one row a status; problems are told code by code, as their examples explain them."""
    for status, response in sorted(responses.items()):
        contents = response.get("content", {})
        codes = {code: e["summary"] for c in contents.values() for code, e in c.get("examples", {}).items()}
        words = "<br>".join(f"<code>{escape(code)}</code> {_inline(text)}" for code, text in codes.items())
        headers = "".join(
            f"<br>header <code>{escape(header)}</code>" for header in response.get("headers", {})
        )
        kinds = (f"{_type(c.get('schema', {}))} <code>{escape(kind)}</code>" for kind, c in contents.items())
        yield escape(str(status)), (words or _inline(response["description"])) + headers, "<br>".join(kinds)


def _schema(name: str, schema: Schema) -> str:
    needed = schema.get("required", ())
    rows = (
        (_name(member, needed=member in needed), _type(told), _told(told.get("description", ""), told))
        for member, told in schema.get("properties", {}).items()
    )
    return "".join(
        (
            f'<details><summary><code>{escape(name)}</code></summary><div id="schema-{_id(name)}">',
            _prose(schema.get("description", "")),
            "" if "properties" in schema else f"<p>{_type(schema)} {_told('', schema)}</p>",
            _table("Members", ("name", "type", ""), rows),
            "</div></details>",
        )
    )


def _type(schema: Schema) -> str:
    """Return what a value is, in a few words; another schema is a link to it."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{_id(name)}">{escape(name)}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(one) for one in schema[several])
    if "const" in schema or "enum" in schema:
        return " | ".join(f"<code>{escape(str(v))}</code>" for v in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    inside = schema.get("additionalProperties")
    if kind == "object" and isinstance(inside, Mapping):
        return f"object of {_type(inside)}"
    return escape(kind) + (f" ({escape(schema['format'])})" if "format" in schema else "")


def _told(description: str, schema: Schema) -> str:
    """Return the description of a value and its limits, those of its alternatives among them."""
    parts = [_inline(description)] if description else []
    for one in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        parts += [
            words.format(escape(str(one[limit])))
            for limit, words in _LIMITS.items()
            if one.get(limit) is not None
        ]
    return "; ".join(parts)


def _name(name: str, *, needed: bool) -> str:
    return f"<code>{escape(name)}</code>{' <strong>needed</strong>' if needed else ''}"


def _table(title: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table with its title, or nothing where it has no row. The cells are HTML already."""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f'<h3>{title}</h3><div class="table"><table><tr>{head}</tr>{body}</table></div>' if body else ""


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(part)}</p>" for part in text.strip().split("\n\n") if part)


def _inline(text: str) -> str:
    """Return text with what stands in backticks as code."""
    return re.sub(r"``?([^`]+)``?", r"<code>\1</code>", escape(text))


def _id(name: str) -> str:
    """Return a name as an anchor: letters, digits, `_` and `-` only."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)
