"""KQL: the text of a query to one SQL statement that reads, for SQLite and PostgreSQL.

    text ── lexer ── expressions, pipelines ── binder ── compiler ── statement
            tokens   syntax: as written        tree: what it means   bound parameters only

Pure: no database, no clock. docs/protocol/kql.md is the language.
"""

from attestation.errors import QueryInvalid
from attestation_service.kql.complete import Suggested, Suggestion, complete
from attestation_service.kql.kinds import Catalog, Column, Kind, Limits, Render, Table
from attestation_service.kql.plan import Plan, Statement, analyse, compiled, to_python
from attestation_service.kql.reference import Described, aggregates, functions, operators
from attestation_service.kql.sqlite_functions import FUNCTIONS

__all__ = [
    "FUNCTIONS",
    "Catalog",
    "Column",
    "Described",
    "Kind",
    "Limits",
    "Plan",
    "QueryInvalid",
    "Render",
    "Statement",
    "Suggested",
    "Suggestion",
    "Table",
    "aggregates",
    "analyse",
    "compiled",
    "complete",
    "functions",
    "operators",
    "to_python",
]
