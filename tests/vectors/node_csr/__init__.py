"""Certification requests of nodes, right and wrong (HSM-AND-KUBERNETES §24), and the case that each is judged in."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from attestation.appraisal.node_csr import Case, Requested, Rules, SeenNode
from attestation.evidence.key_certification import KeyMode
from attestation.evidence.node_csr import Layout
from attestation.machines import Machine, Status
from tests.unit.appraisal import node_csr_kit as kit

FOLDER: Final = Path(__file__).parent / "swtpm"
OTHER_MACHINE: Final = "00000000-0000-4000-8000-000000000002"


@cache
def index() -> Mapping[str, Any]:
    """Return what `regenerate.py` wrote down: keys, challenge, and for each file the case and what it must come to."""
    found: Mapping[str, Any] = json.loads((FOLDER / "index.json").read_text())
    return found


def names() -> list[str]:
    """Return the names of all fixtures."""
    return list(index()["fixtures"])


def fixture(name: str) -> bytes:
    """Return what stands in `spec.request` of a fixture."""
    file: str = index()["fixtures"][name].get("file", f"{name}.pem")
    return (FOLDER / file).read_bytes()


def expected(name: str) -> str:
    """Return the reason that it must come to."""
    reason: str = index()["fixtures"][name]["reason"]
    return reason


def machine_of(name: str) -> Machine:
    """Return the record of the machine of a fixture."""
    facts = index()["fixtures"][name]
    return _machine(index()["keys"], facts.get("case", {}))


def case_of(name: str, the_index: Mapping[str, Any] | None = None) -> Case:
    """Return the case of a fixture."""
    found = the_index or index()
    return build_case(found, found["fixtures"][name].get("case", {}))


def build_case(found: Mapping[str, Any], changes: Mapping[str, Any]) -> Case:
    """Return a good case with what *changes* says otherwise."""
    case = kit.case(
        machine=_machine(found["keys"], changes),
        nonce=None if changes.get("spent") else bytes.fromhex(found["nonce"]),
        selection=kit.SELECTION,
        requested=Requested(
            username="system:bootstrap:abcdef",
            groups=frozenset({"system:bootstrappers"}),
            usages=("digital signature", "key encipherment", "client auth"),
        ),
        rules=Rules(
            modes=frozenset({KeyMode(changes.get("mode", KeyMode.RESIDENT))}),
            layouts=frozenset({Layout(changes.get("layout", Layout.ITL_V1))}),
            quote_required=changes.get("quote_required", True),
        ),
    )
    if "node_machine" in changes:
        case = replace(case, node=SeenNode(name=kit.HOSTNAME, machine_id=changes["node_machine"]))
    if "certified_ak" in changes:
        case = replace(case, certified_ak=base64.b64decode(found["keys"][changes["certified_ak"]]))
    return case


def _machine(keys: Mapping[str, str], changes: Mapping[str, Any]) -> Machine:
    """Return a record with the AK that *changes* names."""
    machine = kit.machine()
    which = changes.get("ak", "ak")
    ak = None if which is None else base64.b64decode(keys[which])
    ek = base64.b64decode(keys[changes.get("ek", "ek")])
    tpm = replace(machine.anchor, ak_public=ak, ek_public=ek)
    unattested: dict[str, Any] = {}
    if changes.get("never_attested"):
        unattested = {"last_verdict": None, "trust_expires_at": None}
    return replace(machine, anchor=tpm, status=Status(changes.get("status", Status.ATTESTED)), **unattested)
