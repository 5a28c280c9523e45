"""AttestationPolicySpec: what a cluster asks of its nodes, as Kubernetes has it (CONFIDENTIAL.md §2.3).

It is the `spec` of an AttestationPolicy and the inline policy of a run. Blocks are kept as they were written; their
schema and their judge are those of `attestation.reference.attestation_policy`, which is the truth about both. The rules
in CEL say part of the same to an API server, so that an author is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

from attestation.errors import PolicyInvalid
from attestation.reference.attestation_policy import (
    BACKENDS,
    PCRS,
    SHOWN,
    block_schema,
    policy_id,
    references,
)

_SHOWN_OF = {name: shown for shown, name in SHOWN.items()}


def has_reference(spec: str, backend: str | None = None) -> str:
    """Return CEL that is true where the policy *spec* has a reference value of *backend*, or of any."""
    blocks = references() if backend is None else {_SHOWN_OF[BACKENDS[backend]]: ()}
    stated = [
        f"(has({spec}.{block}) && ({' || '.join(_has(f'{spec}.{block}', path) for path in references()[block])}))"
        for block in blocks
    ]
    return " || ".join(stated)


def _has(above: str, path: str) -> str:
    """Return CEL that is true where *path* is there; `has` looks at the last member only."""
    names = path.split(".")
    steps = [".".join([above, *names[: i + 1]]) for i in range(len(names))]
    return f"({' && '.join(f'has({step})' for step in steps)})" if len(steps) > 1 else f"has({steps[0]})"


def _rule(rule: str, message: str) -> JsonValue:
    return {"rule": rule, "message": message}


_SIZE = "(self.bank == 'sha256' ? 64 : self.bank == 'sha384' ? 96 : 128)"
# Not `matches`: a regular expression over keys, which have no largest size, costs more than an API server allows.
_INDICES = ", ".join(f"'{index}'" for index in range(PCRS))
_TPM_RULES = [
    _rule(
        f"!has(self.pcrs) || self.pcrs.all(i, i in [{_INDICES}])", "pcrs: an index is a number from 0 to 23"
    ),
    _rule(
        f"!has(self.pcrsAnyOf) || self.pcrsAnyOf.all(i, i in [{_INDICES}])",
        "pcrsAnyOf: an index is a number from 0 to 23",
    ),
    _rule(
        f"!has(self.pcrs) || self.pcrs.all(i, size(self.pcrs[i]) == {_SIZE})",
        "pcrs: a value is as long as the bank's digests",
    ),
    _rule(
        f"!has(self.pcrsAnyOf) || self.pcrsAnyOf.all(i, self.pcrsAnyOf[i].all(v, size(v) == {_SIZE}))",
        "pcrsAnyOf: a value is as long as the bank's digests",
    ),
    _rule(
        "!has(self.pcrs) || !has(self.pcrsAnyOf) || self.pcrs.all(i, !(i in self.pcrsAnyOf))",
        "a PCR stands in pcrs or in pcrsAnyOf",
    ),
]
_Block = dict[str, Any]


class AttestationPolicySpec(BaseModel):
    """What is expected of a node. What is unset is not checked, but for the defaults."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
        json_schema_extra={
            "x-kubernetes-validations": [
                _rule(
                    f"self.mode == 'report' || {has_reference('self')}",
                    "a policy that enforces has a reference value",
                )
            ]
        },
    )

    mode: Literal["enforce", "report"] = Field(
        default="enforce", description="report: everything is recorded and nothing decided; never verified"
    )
    identity: Annotated[_Block, WithJsonSchema(block_schema("identity"))] | None = Field(
        default=None,
        description="registered: the hardware is that of the machine's record. observed: it is only recorded",
    )
    collateral: Annotated[_Block, WithJsonSchema(block_schema("collateral"))] | None = Field(
        default=None, description="How current what vendors say must be"
    )
    rules: Annotated[list[_Block], WithJsonSchema(block_schema("rules"))] | None = Field(
        default=None,
        description="Expressions of CEL over what the evidence shows; each must be true",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    tpm: Annotated[_Block, WithJsonSchema(block_schema("tpm"))] | None = Field(
        default=None,
        description="A TPM's quote: PCRs of one bank by value, event log, Secure Boot",
        json_schema_extra={"x-kubernetes-validations": _TPM_RULES},
    )
    sev_snp: Annotated[_Block, WithJsonSchema(block_schema("sevSnp"))] | None = Field(
        default=None, description="A report of AMD SEV-SNP; lists mean one of"
    )
    tdx: Annotated[_Block, WithJsonSchema(block_schema("tdx"))] | None = Field(
        default=None, description="A quote of Intel TDX; lists mean one of"
    )
    sgx: Annotated[_Block, WithJsonSchema(block_schema("sgx"))] | None = Field(
        default=None, description="A quote of Intel SGX; no backend of a run asks for one"
    )
    tcb: Annotated[_Block, WithJsonSchema(block_schema("tcb"))] | None = Field(
        default=None, description="How current firmware and microcode of an Intel platform must be"
    )
    gpu: Annotated[_Block, WithJsonSchema(block_schema("gpu"))] | None = Field(
        default=None, description="Evidence of NVIDIA GPUs, which is demanded where this block stands"
    )

    @model_validator(mode="after")
    def _can_be_asked(self) -> AttestationPolicySpec:
        try:
            policy_id(self.written())
        except PolicyInvalid as e:
            raise ValueError(str(e)) from None
        return self

    def written(self) -> Mapping[str, Any]:
        """Return it as JSON has it, without what is unset: what `policy_of` takes."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
