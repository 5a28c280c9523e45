"""docs/kubernetes/cert-manager-conformance.md, written from the table of tests.unit.operator.hsm.issuer_lib.

`python -m tests.docs.conformance_page` writes it anew; a test compares.
"""

from __future__ import annotations

from typing import Final

from tests.docs.pages import ROOT
from tests.unit.operator.hsm.issuer_lib import TABLES, Row

PAGE: Final = ROOT / "docs/kubernetes/cert-manager-conformance.md"
INTRODUCTION: Final = """\
# What cert-manager expects of an issuer

cert-manager has external issuers written with a library, issuer-lib, whose tests say what an issuer does. These are
its cases, under the names that they have there, and what becomes of each in [ours](hsm.md). The page is written by
`python -m tests.docs.conformance_page` from a table of tests; each row is one of them, and runs our code.

How to read it:

- An outcome is what one look writes. "again by itself": it is looked at again although the object does not change.
  There a watch of the issuer wakes a request that waits for it; here it asks again, after a second and later and later,
  at most 30 s.
- Where outcomes differ, a reason stands below the table. There is no difference without one.
- Not compared: the words of messages, and Events. Theirs tells each step by an Event; ours tells an end without a
  certificate, with the reason of the condition.

cert-manager itself runs in none of our tests. Its CertificateRequest is written from the contract, and compared member
by member with its public definition and with the schemas of npm's `@kubernetes-models/cert-manager`.
"""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for title, file, rows in TABLES:
        differ = [row for row in rows if row.because is not None]
        parts += [
            f"## {title}",
            "",
            f"`{file}`: {len(rows)} cases, {len(rows) - len(differ)} end as there.",
            "",
            "| their case | of what | there | here |",
            "|---|---|---|---|",
            *(
                f"| `{row.name}` | {row.given} | {row.theirs} | {'as there' if row.because is None else row.ours()} |"
                for row in rows
            ),
            "",
            "Why it differs:",
            "",
            *_reasons(differ),
            "",
        ]
    return "\n".join(parts).rstrip() + "\n"


def _reasons(rows: list[Row]) -> list[str]:
    """Return each reason once, with the cases that have it."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        assert row.because is not None
        cases.setdefault(row.because, []).append(f"`{row.name}`")
    return [f"- {', '.join(names)}: {why}" for why, names in cases.items()]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
