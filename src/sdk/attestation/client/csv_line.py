"""Records of CSV that nobody's spreadsheet calculates."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attestation.text import clean

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\ufffd", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Beginnings that make a spreadsheet calculate, the wide forms too; or that stand for a control character which did."""

_CALCULATES = re.compile(rf"(?:^|(?<=;))(?=\s*[{re.escape(''.join(FORMULA))}])")
"""Where a field may begin as one: where commas are decimal points, spreadsheets part fields at semicolons."""


def csv_line(values: Iterable[str]) -> str:
    """Return one record of RFC 4180, with its line end.

    A value that a spreadsheet would take for a formula gets an apostrophe in front of it: machines choose some of
    these texts, and `=HYPERLINK(…)` must stay a text in the hands of whoever opens the file.
    """
    fields = []
    for value in values:
        text = _CALCULATES.sub("'", clean(value))
        quoted = any(c in text for c in ",;'\"") or text != text.strip()
        fields.append('"' + text.replace('"', '""') + '"' if quoted else text)
    # A record of one empty field would be an empty line, which readers pass over.
    return (",".join(fields) if fields != [""] else '""') + "\r\n"
