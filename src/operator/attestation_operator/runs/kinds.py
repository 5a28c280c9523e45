"""What is wrong with an object of security.ugallu.io, for whoever rests on it. Pure.

An API server before 1.25 leaves out the rules in CEL, and any server takes an object as whoever wrote it says. So what
matters is compared here once more, by the models that the schemas are made of; and what a rule of CEL remembers
(`self == oldSelf`) is seen from `metadata.generation`, which counts each change of `spec`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import ValidationError

from attestation.api.said import said
from attestation_operator.crds import DEFINITIONS
from attestation_operator.objects import RUNS_GROUP, Kind, Raw
from attestation_operator.runs.admission import FINAL

_MODELS: Final = {each.kind: each.model for each in DEFINITIONS if each.kind.group == RUNS_GROUP}


def faults(kind: Kind, raw: Raw, *, old: Raw | None = None) -> tuple[str, ...]:
    """Return what is wrong with an object, each with its member; nothing where it is as its kind allows.

    Args:
        kind: Which of security.ugallu.io.
        raw: As an API server shows it, or is asked to keep it.
        old: As it was before; None where that is not known.
    """
    return (*_of_model(kind, raw), *_of_change(kind, raw, old))


def _of_model(kind: Kind, raw: Raw) -> Iterator[str]:
    members = {name: raw[name] for name in ("spec", "status") if raw.get(name) is not None}
    try:
        # By their names in Kubernetes alone: Python's would be taken too, and no other program knows them.
        _MODELS[kind].model_validate(members, by_alias=True, by_name=False)
    except ValidationError as e:
        # What stands there is a stranger's, and faults go into logs and conditions: it is not told.
        for each in e.errors(include_url=False, include_input=False):
            yield f"{'.'.join(map(str, each['loc']))}: {said(each)}"


def _of_change(kind: Kind, raw: Raw, old: Raw | None) -> Iterator[str]:
    if kind not in FINAL:
        return
    if old is not None and old.get("spec") != raw.get("spec"):
        yield "spec: it cannot be changed"
    elif was_changed(raw):
        yield "spec: it was changed after it was created"


def was_changed(raw: Raw) -> bool:
    """Return whether `spec` of an object is another than when it was created, as its generation says.

    The server counts each change of what is neither metadata nor status; a deletion that has to wait counts as one.
    """
    metadata = raw.get("metadata") or {}
    allowed = 2 if metadata.get("deletionTimestamp") else 1
    return int(metadata.get("generation") or 1) > allowed
