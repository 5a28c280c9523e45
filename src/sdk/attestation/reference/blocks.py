"""The blocks of a policy document (format `itl-policy/2`) beside `tpm`.

A block of a kind has the kind's name (`attestation.appraisal.kinds`) and demands its evidence; a common one says
more of whatever comes. What a block says is merged member by member, like all else, when several policies apply
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from attestation.reference import cel_rules
from attestation.reference.confidential_blocks import COLLATERAL, GPU, IDENTITY, SEV_SNP, SGX, TCB, TDX
from attestation.reference.rules import Stated


class Block(Protocol):
    """Reads one block."""

    @property
    def references(self) -> frozenset[str]:
        """Paths of the members that are reference values; a block that has any states one where it is enforced."""
        ...

    @property
    def loosening(self) -> frozenset[str]:
        """Paths of the members that may accept more than where nothing is stated."""
        ...

    @property
    def defaults(self) -> Mapping[str, object]:
        """What holds where nothing is stated, by path and as it would be written."""
        ...

    def read(self, block: object) -> Mapping[str, tuple[object, object]]:
        """Judge every member of the block; return each, by its path, as read and as written.

        Raises:
            PolicyInvalid: With the member and the rule of the format that it breaks.
        """
        ...

    def build(self, members: Mapping[str, Stated], *, report: bool) -> Any:
        """Return the rules that members state, by path, of one policy or of several together.

        Args:
            members: Path -> what is stated there.
            report: What holds by default is only reported.
        """
        ...

    def schema(self) -> dict[str, object]:
        """Return the JSON Schema of the block."""
        ...


BLOCKS: Final[dict[str, Block]] = {block.name: block for block in (SEV_SNP, TDX, SGX, GPU)}
"""Name of the kind -> its block."""
COMMON_BLOCKS: Final[dict[str, Block]] = {
    **{block.name: block for block in (TCB, COLLATERAL, IDENTITY)},
    "rules": cel_rules.RULES,
}
"""Name -> a block that demands no kind of evidence, and says more of what comes."""
