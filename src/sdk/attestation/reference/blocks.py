"""The blocks of a policy document (format `itl-policy/2`) that are about other kinds of evidence than the TPM's.

Each has the name of its kind (`attestation.appraisal.kinds`). What a block says is merged member by member, like all
else, when several policies apply together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from attestation.reference.rules import Stated


class Block(Protocol):
    """Reads one block."""

    def read(self, block: Mapping[str, object]) -> Mapping[str, object]:
        """Judge every member of the block; return each as read, by its name.

        Raises:
            PolicyInvalid: With the member and the rule of the format that it breaks.
        """
        ...

    def build(self, members: Mapping[str, Stated]) -> Any:
        """Return the rules that members state, by name, of one policy or of several together."""
        ...

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of the block."""
        ...


BLOCKS: Final[dict[str, Block]] = {}
"""Name of the kind -> its block."""
