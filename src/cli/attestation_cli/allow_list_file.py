"""Files of EKs to admit: our own CSV and JSON, and tables of vendors, whose columns somebody names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation_cli.ek_text import demand_sha256, fingerprint_of

if TYPE_CHECKING:
    from attestation.api import AllowListEntry

COLUMNS: Final = ("ek_fingerprint", "role", "hostname", "assigned_ip", "cluster_id", "note")
MAPPED: Final = (*COLUMNS, "ek_sha256", "serial", "product")
"""What a column of a vendor may be: serial number and product become part of the note."""
MAX_NOTE: Final = 256
SNIFFED: Final = (",", ";", "\t", "|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a vendor's table is read.

    Args:
        columns: Member -> heading, as `MAPPED` has members; a heading counts whatever its case.
        role: Of entries without one.
        cluster_id: Likewise.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    role: str | None = None
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One entry of a file: what it says, or what is wrong with it; *same_as* names an earlier one of its EK."""

    where: str
    entry: AllowListEntry | None = None
    fault: str | None = None
    same_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A file as it was read; *unknown* are headings that nothing was made of."""

    lines: tuple[Line, ...]
    unknown: tuple[str, ...] = ()


def parse_mapping(said: Iterable[str]) -> dict[str, str]:
    """Read `member=Heading`, each once; empty lines and such with # are for people.

    Raises:
        RequestInvalid: No such member, or one twice.
    """
    found: dict[str, str] = {}
    for text in said:
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        member, equals, heading = (part.strip() for part in text.partition("="))
        if not equals or not heading or member not in MAPPED:
            raise RequestInvalid(f"a mapping is MEMBER=HEADING, with one of {', '.join(MAPPED)}")
        if member in found:
            raise RequestInvalid(f"{member} is mapped twice")
        found[member] = heading
    return found


def read_table(text: str, mapping: Reading) -> Table:
    """Read a file; every entry is judged, and what is wrong with one is told beside it.

    Raises:
        RequestInvalid: The file as a whole cannot be read: its headings, no entry.
    """
    from pydantic import ValidationError

    from attestation.api import AllowListEntry
    from attestation.api.said import said

    unknown: list[str] = []
    if mapping.columns:
        rows, unknown = _vendor_rows(text, mapping)
    elif text.lstrip()[:1] in ("[", "{"):
        rows = _json_rows(text)
    else:
        rows = _csv_rows(text)
    lines: list[Line] = []
    seen: dict[str, str] = {}
    for where, row in rows:
        try:
            entry = AllowListEntry.model_validate(_entry_of(row, mapping))
        except RequestInvalid as e:
            lines.append(Line(where=where, fault=str(e)))
            continue
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            member = ".".join(str(part) for part in first["loc"])
            lines.append(Line(where=where, fault=f"{member or 'the entry'} {said(first)}"))
            continue
        same = seen.setdefault(entry.ek_fingerprint, where)
        lines.append(Line(where=where, entry=entry, same_as=None if same == where else same))
    if not lines:
        raise RequestInvalid("there is no entry in it")
    return Table(lines=tuple(lines), unknown=tuple(unknown))


def demand_good(table: Table) -> list[AllowListEntry]:
    """Return the entries of a file without a fault.

    Raises:
        RequestInvalid: The first that is wrong, or there twice, with its place.
    """
    entries = []
    for line in table.lines:
        if line.fault is not None:
            raise RequestInvalid(f"{line.where}: {line.fault}")
        if line.same_as is not None:
            raise RequestInvalid(f"{line.where}: the same EK as in {line.same_as}")
        assert line.entry is not None
        entries.append(line.entry)
    return entries


def _entry_of(row: Any, mapping: Reading) -> Any:
    """Return the members of an entry, with what is said for all of them."""
    if not isinstance(row, dict):
        return row
    found = dict(row)
    if mapping.columns:
        ek = found.get("ek_fingerprint", "")
        if not ek:
            raise RequestInvalid("there is no EK")
        if digest := found.pop("ek_sha256", None):
            demand_sha256(digest, ek)
        found["ek_fingerprint"] = fingerprint_of(ek)
        told = [f"{name} {clean(value)}" for name in ("product", "serial") if (value := found.pop(name, ""))]
        if told:
            found["note"] = "; ".join([*told, *filter(None, [found.get("note")])])[:MAX_NOTE]
    for name in ("role", "cluster_id"):
        value = getattr(mapping, name)
        if value is not None:
            found.setdefault(name, value)
    return found


def _vendor_rows(text: str, mapping: Reading) -> tuple[list[tuple[str, Any]], list[str]]:
    """Return the rows of a vendor's table, by our members, and the headings that nothing was made of."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=_delimiter(text))
    rows: list[tuple[str, Any]] = []
    places: dict[str, int] | None = None
    unknown: list[str] = []
    width = 0
    try:
        for raw in reader:
            values = [value.strip() for value in raw]
            if not any(values):
                continue
            where = f"line {reader.line_num}"
            if places is None:
                places, unknown = _places(values, mapping.columns)
                width = len(values)
                continue
            if len(values) > width:
                raise RequestInvalid(f"{where}: {len(values)} values under {width} headings")
            rows.append(
                (where, {name: values[at] for name, at in places.items() if at < len(values) and values[at]})
            )
    except csv.Error as e:
        raise RequestInvalid(f"line {reader.line_num}: {e}") from e
    return rows, unknown


def _delimiter(text: str) -> str:
    """Return what separates the headings: the sign that stands in the first line most often."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(SNIFFED, key=first.count)


def _places(headings: list[str], columns: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    folded = [each.casefold() for each in headings]
    places = {}
    for member, heading in columns.items():
        if folded.count(heading.casefold()) != 1:
            times = "is not there" if heading.casefold() not in folded else "stands twice"
            raise RequestInvalid(
                f"the heading {clean(heading)} {times}; there are {clean(', '.join(headings)[:160])}"
            )
        places[member] = folded.index(heading.casefold())
    if "ek_fingerprint" not in places:
        raise RequestInvalid("say which column has the EK: --map ek_fingerprint=HEADING")
    return places, [each for at, each in enumerate(headings) if at not in places.values() and each]


def _json_rows(text: str) -> list[tuple[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise RequestInvalid(f"not JSON: {e}") from e
    if isinstance(document, dict) and set(document) == {"entries"}:
        document = document["entries"]
    if not isinstance(document, list):
        raise RequestInvalid('JSON must be a list of entries, or {"entries": [...]}')
    return [(f"entry {number}", row) for number, row in enumerate(document, start=1)]


def _csv_rows(text: str) -> list[tuple[str, Any]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[str, Any]] = []
    heading: list[str] | None = None
    try:
        for raw in reader:
            values = [value.strip() for value in raw]
            if not any(values) or values[0].startswith("#"):
                continue
            where = f"line {reader.line_num}"
            if heading is None:
                heading = [value.lower() for value in values]
                unknown = [name for name in heading if name not in COLUMNS]
                if unknown or len(set(heading)) < len(heading):
                    raise RequestInvalid(
                        f"{where}: a heading of {', '.join(COLUMNS)} is needed, found "
                        f"{clean(', '.join(values)[:80])}; --map says which column of another table is which"
                    )
                continue
            if len(values) > len(heading):
                raise RequestInvalid(f"{where}: {len(values)} values under {len(heading)} headings")
            row = {name: value for name, value in zip(heading, values, strict=False) if value}
            if "ek_fingerprint" in row:
                row["ek_fingerprint"] = row["ek_fingerprint"].lower().replace(":", "")
            rows.append((where, row))
    except csv.Error as e:
        raise RequestInvalid(f"line {reader.line_num}: {e}") from e
    return rows
