"""An AttestationPolicy of Kubernetes as a policy of ours (CONFIDENTIAL.md §2.3).

Kubernetes writes camelCase. The members are those of our own document: their names, types, defaults and reference
values are made of its tables (`attestation.reference.confidential_blocks`) by rule, so that none is listed twice. What
is different stands here: the block `tpm`, which has the form of the seed, and the members that are one value where our
document has a list.

What is read here is what is asked: the schema of the kind (`attestation.api.attestation_policy`) is made of the same
tables and admits nothing else, but an API server need not have looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from attestation.reference.blocks import COMMON_BLOCKS
from attestation.reference.confidential_blocks import COLLATERAL, GPU, IDENTITY, SEV_SNP, SGX, TCB, TDX
from attestation.reference.document import BANKS, FORMAT_2, TPM, read
from attestation.reference.identifier import identifier
from attestation.reference.members import FLAG, Member, Schema, Table, Type, one_of, refuse
from attestation.reference.policy import Policy, build
from attestation.tpm import PCRSelection, bank_name

BACKENDS: Final[Mapping[str, str]] = {"tpm": TPM, "sev-snp": SEV_SNP.name, "tdx": TDX.name}
"""Backend of a run -> the block that is about it."""
MODES: Final = ("enforce", "report")
PCRS: Final = 24
_NAME: Final = "attestation-policy"
_CAPITALS: Final = {"id": "ID", "ids": "IDs", "ip": "IP", "td": "TD", "uid": "UID"}
"""Words that Kubernetes writes in capitals where they do not begin a name."""
_SINGLE: Final = frozenset({"id_block.family_id", "id_block.image_id", "mrsignerseam", "mrownerconfig"})
"""Members that are one value here and a list in our document."""
_FIRMWARE_PCRS: Final = range(8)
"""What a run of the backend `tpm` quotes in any case."""


def camel(path: str) -> str:
    """Return how Kubernetes writes the path of a member of our document.

    `id_block.family_id` is `idBlock.familyID`.
    """
    return ".".join(_camel(name) for name in path.split("."))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(_CAPITALS.get(word, word.capitalize()) for word in rest)


# ---------------------------------------------------------------- the block tpm


def _pcrs(item: Type, *, listed: bool) -> Type:
    """Return the type of `{index: value}`, index 0-23 in decimal."""
    indices = frozenset(str(index) for index in range(PCRS))

    def judge(path: str, value: object) -> object:
        if not isinstance(value, Mapping) or not value:
            refuse(f"{path} is not an object that states something")
        for index, each in value.items():
            if index not in indices:
                refuse(f"{path}: PCR {str(index)[:8]!r} is not a decimal number from 0 to {PCRS - 1}")
            item.read(f"{path}.{index}", each)
        return {index: {"any_of": each if listed else [each]} for index, each in value.items()}

    return Type(
        judge,
        {
            "type": "object",
            "additionalProperties": item.schema,
            "minProperties": 1,
            "maxProperties": PCRS,
        },
    )


def _text(path: str, value: object) -> object:
    return value if isinstance(value, str) else refuse(f"{path} is not text")


_PATTERN: Final = "^([0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128})$"
_DIGEST: Final = Type(_text, {"type": "string", "maxLength": 128, "pattern": _PATTERN})
"""A value of a PCR. How long it is says the bank, which our document compares."""
_MAX_VALUES: Final = 64
"""Values of one PCR."""


def _digests(path: str, value: object) -> object:
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_VALUES:
        refuse(f"{path} must list 1 to {_MAX_VALUES} values")
    return [_text(path, each) for each in value]


_DIGESTS: Final = Type(
    _digests, {"type": "array", "minItems": 1, "maxItems": _MAX_VALUES, "items": _DIGEST.schema}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TPMDefaults:
    bank: str = "sha256"


_TPM: Final = Table(
    name=TPM,
    rules=_TPMDefaults,
    members={
        "bank": Member(about="Which bank of PCRs is quoted", type=one_of(*BANKS), plain=True),
        "pcrs": Member(
            about="Index of a PCR, 0 to 23 -> its value, hex",
            type=_pcrs(_DIGEST, listed=False),
            reference=True,
        ),
        "pcrsAnyOf": Member(
            about="Index of a PCR, 0 to 23 -> the values it may have, hex",
            type=_pcrs(_DIGESTS, listed=True),
            reference=True,
        ),
        "requireEventLog": Member(
            about="The event log comes with the quote and leads to the PCRs", type=FLAG, idle=False
        ),
        "requireSecureBoot": Member(
            about="Secure Boot is on, as PCR 7 and the event log show", type=FLAG, idle=False
        ),
    },
)


def _tpm_document(stated: Mapping[str, object]) -> dict[str, object]:
    """Return block `tpm` of our document; *stated*: member -> as `_TPM` read it."""
    one, several = stated.get("pcrs", {}), stated.get("pcrsAnyOf", {})
    assert isinstance(one, Mapping)
    assert isinstance(several, Mapping)
    if both := sorted(one.keys() & several.keys(), key=int):
        refuse(f"tpm: PCR {both[0]} stands in pcrs and in pcrsAnyOf")
    found: dict[str, object] = {"bank": stated["bank"], "pcrs": {**one, **several}}
    if "requireEventLog" in stated:
        found["event_log"] = "required"
    if "requireSecureBoot" in stated:
        found["secure_boot"] = {"required": True}
    return found


# ---------------------------------------------------------------- the other blocks


def _single(type_: Type) -> Type:
    def judge(path: str, value: object) -> object:
        return type_.read(path, [value])

    item = type_.schema["items"]
    assert isinstance(item, dict)
    return Type(judge, item)


def _shown(table: Table) -> Table:
    """Return *table* as Kubernetes writes it; it reads, and builds nothing."""
    members = {
        camel(path): replace(
            member, field=member.field or path, type=_single(member.type) if path in _SINGLE else member.type
        )
        for path, member in table.members.items()
    }
    inner = {camel(path): words for path, words in table.inner.items()}
    return replace(table, name=camel(table.name), members=members, inner=inner)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block as Kubernetes writes it, and the path of each member in our document."""

    table: Table
    paths: Mapping[str, str]


_BLOCKS: Final[Mapping[str, _Block]] = {
    TPM: _Block(_TPM, {}),
    **{
        table.name: _Block(_shown(table), {camel(path): path for path in table.members})
        for table in (SEV_SNP, TDX, SGX, TCB, GPU, COLLATERAL, IDENTITY)
    },
}
"""Name of a block of our document -> the block."""
_RULES: Final = "rules"
SHOWN: Final[Mapping[str, str]] = {camel(name): name for name in (*_BLOCKS, _RULES)}
"""Name of a block as Kubernetes writes it -> its name in our document."""


def read_block(shown: str, value: object) -> Mapping[str, object]:
    """Judge the block that Kubernetes calls *shown*; return what it states, path in our document -> value as written.

    What asks nothing is left out.

    Raises:
        PolicyInvalid: With the member and the rule that it breaks.
    """
    name = SHOWN[shown]
    if name == _RULES:
        COMMON_BLOCKS[_RULES].read(value)
        return {"": value}
    block = _BLOCKS[name]
    value = _without_null(value)
    if value == {}:
        return {}
    found: dict[str, object] = {}
    for path, (as_read, written) in block.table.read(value).items():
        idle = block.table.members[path].idle
        if idle is not None and written == idle:
            continue
        if name == TPM:
            found[path] = as_read
        else:
            inner = block.paths[path]
            found[inner] = [written] if inner in _SINGLE else block.table.members[path].type.whole(written)
    return found


def block_schema(shown: str) -> Schema:
    """Return the JSON Schema of the block that Kubernetes calls *shown*."""
    name = SHOWN[shown]
    schema = (COMMON_BLOCKS[_RULES] if name == _RULES else _BLOCKS[name].table).schema()
    # A block that states nothing means its defaults, which an API server writes into it.
    return {key: value for key, value in schema.items() if key != "minProperties"}


def references() -> Mapping[str, tuple[str, ...]]:
    """Return the reference values (®) as Kubernetes writes them: block -> paths, sorted; only blocks that have some."""
    return {
        block.table.name: tuple(sorted(block.table.references))
        for block in _BLOCKS.values()
        if block.table.references
    }


_DEEPEST: Final = 4
"""Objects inside of each other in a block, at most: `minTcb.milan.snp`. What is deeper is refused by its name."""


def _without_null(value: object, levels: int = _DEEPEST) -> object:
    """Leave out what is null: an API server may keep it of a member that was taken away."""
    if levels and isinstance(value, Mapping):
        return {key: _without_null(each, levels - 1) for key, each in value.items() if each is not None}
    return value


# ---------------------------------------------------------------- policies


def policy_of(spec: Mapping[str, Any] | None, *, backend: str) -> Policy:
    """Return what *spec* asks of a run.

    The block of the backend, `gpu` where it is there, and the common blocks count; blocks of other backends ask
    nothing of this run. Equal policies have equal identifiers: all defaults are stated.

    Args:
        spec: An AttestationPolicySpec as JSON has it; None: what a run without a policy asks, only to be reported.
        backend: `tpm`, `sev-snp` or `tdx`.

    Raises:
        PolicyInvalid: With the member and the rule that it breaks; also where *spec* enforces without a reference
            value of the backend.
    """
    if backend not in BACKENDS:
        refuse(f"backend is not {' or '.join(BACKENDS)}")
    stated = _stated(spec)
    own = BACKENDS[backend]
    if _is_enforced(spec):
        _has_reference(stated, (own,))
    # All that is written is judged, so that a policy is good or bad whatever run asks it.
    _policy(spec, stated)
    kept = {own: stated.get(own, {})} | {
        name: values for name, values in stated.items() if name in COMMON_BLOCKS or name == GPU.name
    }
    return _policy(spec, kept)


def policy_id(spec: Mapping[str, Any]) -> str:
    """Return the identifier of all that *spec* states, whatever the backend: `status.policyID` of an AttestationPolicy.

    A run asks the same, and has the same identifier, where *spec* has the block of its backend and of no other.

    Raises:
        PolicyInvalid: As of `policy_of`; a reference value of any backend is enough.
    """
    stated = _stated(spec)
    if _is_enforced(spec):
        _has_reference(stated, _BLOCKS)
    return identifier(_policy(spec, stated))


def _is_enforced(spec: Mapping[str, Any] | None) -> bool:
    mode = "report" if spec is None else spec.get("mode")
    if mode not in (*MODES, None):
        refuse(f"mode is not {' or '.join(MODES)}")
    return mode != "report"


def _stated(spec: Mapping[str, Any] | None) -> dict[str, Mapping[str, object]]:
    """Return what each block states, by its name in our document."""
    if spec is not None and not isinstance(spec, Mapping):
        refuse("policy is not an object")
    found: dict[str, Mapping[str, object]] = {}
    for shown, value in (spec or {}).items():
        if value is None or shown == "mode":
            continue
        if shown not in SHOWN:
            refuse(f"unknown member {str(shown)[:40]!r}")
        found[SHOWN[shown]] = read_block(shown, value)
    return found


def _has_reference(stated: Mapping[str, Mapping[str, object]], among: Iterable[str]) -> None:
    """Refuse to enforce without a reference value of one of the blocks *among*."""
    wanted: list[str] = []
    for name in among:
        block = _BLOCKS[name]
        for path in sorted(block.table.references):
            if block.paths.get(path, path) in stated.get(name, {}):
                return
            wanted.append(f"{block.table.name}.{path}")
    refuse(f"who enforces says what is expected to run: {', '.join(wanted)}")


def _policy(spec: Mapping[str, Any] | None, stated: Mapping[str, Mapping[str, object]]) -> Policy:
    document: dict[str, object] = {
        "format": FORMAT_2,
        "name": _NAME,
        "version": 1,
        "mode": "enforce" if _is_enforced(spec) else "report",
    }
    # 1. Each block with its defaults, so that one who states a default asks the same as one who leaves it.
    for name in {**dict.fromkeys(stated), **dict.fromkeys(COMMON_BLOCKS)}:
        if name == _RULES:
            if rules := stated.get(_RULES):
                document[_RULES] = rules[""]
        else:
            block = _BLOCKS[name]
            defaults = {block.paths.get(path, path): value for path, value in block.table.defaults.items()}
            values = {**defaults, **stated.get(name, {})}
            document[name] = _tpm_document(values) if name == TPM else _nested(values)
    # 2. Judged once more as every document is: what the tables leave open (banks, PCRs that software resets).
    found = read(document)
    policy = build(
        found.members,
        name=found.name,
        version=found.version,
        ref=found.ref,
        bank=found.bank,
        document=found.written,
        parts=(found.ref,),
    )
    # 3. PCR 0-7 are recorded in any case, and whatever is judged.
    bank = bank_name(policy.tpm.bank)
    judged = {rule.index for rule in policy.tpm.rules} | set(policy.tpm.log_pcrs)
    selection = PCRSelection.from_names({bank: {*_FIRMWARE_PCRS, *judged}})
    return replace(policy, tpm=replace(policy.tpm, selection=selection))


def _nested(values: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for path, value in values.items():
        *above, last = path.split(".")
        place = found
        for name in above:
            inner = place.setdefault(name, {})
            assert isinstance(inner, dict)
            place = inner
        place[last] = value
    return found
