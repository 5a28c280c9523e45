"""`attestation crypto …`: which algorithms are in use, and what the suites of the NSA say; asks nobody."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from attestation_cli.options import printing
from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.algorithms import CryptoPolicy, Entry, Ruling, Use

POLICIES = ("default", "cnsa1", "cnsa2")
COLOURS = {"allowed": "green", "let through": "yellow", "forbidden": "red"}


@click.group("crypto")
def group() -> None:
    """Which algorithms are in use, and what the suites of the NSA say of them.

    \b
    Examples:
      attestation crypto inventory
      attestation crypto inventory --policy cnsa2
    """


@group.command()
@click.option("--policy", type=click.Choice(POLICIES), help="Tell what this policy allows, and why.")
@printing
def inventory(session: Session, policy: str | None) -> None:
    """List every algorithm in use: for what, who chooses it, and whether CNSA 1.0 and 2.0 name it.

    With `--policy`, what ITL_CRYPTO_POLICY would do: `allowed` is in the suite, `let through` is not and says why,
    `forbidden` is refused at start or when somebody brings it. `-o wide` tells all of each, `-o json` everything.

    \b
    Examples:
      attestation crypto inventory
      attestation crypto inventory --policy cnsa1 -o wide
      attestation crypto inventory -o csv > algorithms.csv
    """
    from importlib.resources import files

    from attestation.algorithms import ALGORITHMS, USES, CryptoPolicy

    chosen = CryptoPolicy(policy) if policy else None
    if session.json:
        # Where each is used: collected from the source of a release, since not all of it is installed here.
        text = files("attestation_cli.commands").joinpath("crypto.json").read_bytes()
        where: dict[str, list[str]] = json.loads(text)
        members = [_members(entry, where[use], chosen) for use, entry in USES.items()]
        session.emit_json({"policy": chosen, "uses": members})
        return
    rows: list[list[Cell]] = []
    for use, entry in USES.items():
        for name in entry.algorithms:
            algorithm = ALGORITHMS[name]
            row = [
                cell(use.value),
                cell(name),
                cell(entry.chooser.value),
                _yes(algorithm.cnsa1),
                _yes(algorithm.cnsa2),
                cell("yes" if algorithm.quantum_vulnerable else "no"),
            ]
            if chosen is not None:
                said, reason = _judged(chosen, use, name)
                row += [Cell(said.value, COLOURS[said.value], said.value), cell(reason)]
            rows.append([*row, cell(entry.title), cell(entry.parameters), cell(entry.enforced)])
    columns = [
        Column("USE"),
        Column("ALGORITHM"),
        Column("CHOSEN BY", drop=1),
        Column("CNSA 1.0"),
        Column("CNSA 2.0"),
        Column("QUANTUM BREAKS"),
    ]
    if chosen is not None:
        columns += [Column(chosen.value.upper()), Column("WHY", wide=True)]
    columns += [Column("FOR", wide=True), Column("PARAMETERS", wide=True), Column("ENFORCED", wide=True)]
    session.emit_table(columns, rows, "No algorithms.")


def _members(entry: Entry, where: list[str], policy: CryptoPolicy | None) -> dict[str, Any]:
    from attestation.algorithms import ALGORITHMS

    algorithms = []
    for name in entry.algorithms:
        algorithm = ALGORITHMS[name]
        members: dict[str, Any] = {
            "name": name,
            "kind": algorithm.primitive,
            "specification": algorithm.specification,
            "cnsa1": algorithm.cnsa1,
            "cnsa2": algorithm.cnsa2,
            "quantum_vulnerable": algorithm.quantum_vulnerable,
        }
        if policy is not None:
            members["verdict"], members["reason"] = _judged(policy, entry.use, name)
        algorithms.append(members)
    return {
        "use": entry.use,
        "title": entry.title,
        "chosen_by": entry.chooser,
        "parameters": entry.parameters,
        "enforced": entry.enforced,
        "where": where,
        "algorithms": algorithms,
    }


def _judged(policy: CryptoPolicy, use: Use, algorithm: str) -> tuple[Ruling, str | None]:
    from attestation.algorithms import Ruling, exemption, ruling

    said = ruling(policy, use, algorithm)
    return said, exemption(policy, use, algorithm) if said is Ruling.EXEMPT else None


def _yes(value: bool) -> Cell:
    return Cell("yes", "green", "yes") if value else Cell("no", None, "no")
