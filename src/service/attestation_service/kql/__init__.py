"""KQL: the text of a query to one SQL statement that reads, for SQLite and PostgreSQL.

    text ── lexer ── expressions, pipelines ── binder ── compiler ── statement
            tokens   syntax: as written        tree: what it means   bound parameters only

Pure: no database, no clock. docs/protocol/kql.md is the language.
"""

from attestation.errors import QueryInvalid
from attestation_service.kql.kinds import Catalog, Column, Kind, Limits, Render, Table
from attestation_service.kql.plan import Plan, Statement, analyse, compiled, to_python
from attestation_service.kql.sqlite_functions import FUNCTIONS

__all__ = [
    "FUNCTIONS",
    "Catalog",
    "Column",
    "Kind",
    "Limits",
    "Plan",
    "QueryInvalid",
    "Render",
    "Statement",
    "Table",
    "analyse",
    "compiled",
    "to_python",
]
