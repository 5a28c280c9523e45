"""The people of the demo: two operators and an auditor, made up at the first start."""

from __future__ import annotations

import json
import os
import secrets
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tools.keycloak_realm import Person

PEOPLE_FILE: Final = "identity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A person with their password."""

    person: Person
    password: str


def make_people() -> list[Account]:
    """Make up two operators and an auditor, with passwords of this demo."""
    return [
        Account(
            person=Person(
                username=username,
                sub=str(uuid.uuid4()),
                name=f"{username.capitalize()} of the demo",
                email=f"{username}@demo.invalid",
                roles=(role,),
            ),
            password=secrets.token_hex(4),
        )
        for username, role in (
            ("alice", "attestation-operator"),
            ("bob", "attestation-operator"),
            ("carol", "attestation-auditor"),
        )
    ]


def write_private(path: Path, text: str) -> None:
    """Write a file that only we can read."""
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)


def load_people(directory: Path) -> list[Account]:
    """Return the people of the demo; those of an earlier start keep their `sub` and password."""
    path = directory / PEOPLE_FILE
    if not path.exists():
        write_private(path, json.dumps([asdict(a) for a in make_people()], indent=2) + "\n")
    found = []
    for entry in json.loads(path.read_text(encoding="utf-8")):
        person = entry["person"]
        found.append(
            Account(person=Person(**{**person, "roles": tuple(person["roles"])}), password=entry["password"])
        )
    return found
