"""What the commands of plug-ins are made of: the parts that ours are made of.

    class Visits:                                          # in a module of its own: --help need not wait for pydantic
        @operation("visits_list", "GET /visits")
        def all(self) -> wire.VisitList:
            '''Return the visits.'''

    @click.group("visits")
    def group() -> None: ...

    @group.command("list")
    @listing                                               # -o json, --columns, --sort, --debug
    def list_(session: Session) -> None:
        from example_visits.operations import Visits

        with session.client() as client:                   # logged in as for every other command
            session.emit_list(iter(client.ask(Visits.all).visits), {Column("MACHINE"): lambda v: v.machine_id}, "None.")

Errors of the service, and those of `attestation.errors`, are told as for our commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attestation.api.operation import operation
from attestation.client.text import clean
from attestation_cli.options import FILE_PATH, listing, new_proposal_option, printing
from attestation_cli.render import Column, cell, moment_cell, time_cell
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.client import OperatorClient as OperatorClient  # for annotations

__all__ = [
    "FILE_PATH",
    "Column",
    "Session",
    "cell",
    "checked",
    "clean",
    "listing",
    "moment_cell",
    "new_proposal_option",
    "operation",
    "printing",
    "time_cell",
]
