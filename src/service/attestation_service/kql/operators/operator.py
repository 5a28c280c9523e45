"""What is said of an operator, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attestation_service.kql.binder import Binder, Bound
from attestation_service.kql.expressions import PipelineParser
from attestation_service.kql.kinds import Place
from attestation_service.kql.reader import Reader
from attestation_service.kql.syntax import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator of pipelines.

    Args:
        written: How it is written, for the reference.
        read: Reads what stands after its name.
        meaning: Says what a stage means for the rows that come in.
        is_source: Whether a pipeline may begin with it.
    """

    name: str
    written: str
    description: str
    read: Callable[[Reader, PipelineParser, Place], Stage]
    meaning: Callable[[Binder, Any, Bound], Bound]
    aliases: tuple[str, ...] = ()
    is_source: bool = False

    def bind(self, binder: Binder, stage: Any, rows: Bound) -> Bound:
        """Say what a stage means for the rows that come in."""
        return self.meaning(binder, stage, rows)
