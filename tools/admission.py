"""deploy/helm/attestation-operator/files: the ValidatingAdmissionPolicies of attestation runs.

They are derived from the models of the kinds: `python -m tools.admission` writes them after one changed, and a test
compares. Whose the release is stands there in capitals, which the template replaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attestation_operator.crds import DEFINITIONS, definition
from attestation_operator.crds.yaml import document
from attestation_operator.runs.admission import KINDS, policies

ROOT: Final = Path(__file__).resolve().parents[1]
FILE: Final = ROOT / "deploy/helm/attestation-operator/files/admission-policies.yaml"
HEADER: Final = "# Written by `python -m tools.admission`; a test compares.\n"
USER: Final = "RUNS-USER"
PREFIX: Final = "RELEASE-PREFIX"


def schemas() -> dict[str, dict[str, object]]:
    """Return the schema of each kind of attestation runs, by its plural."""
    return {
        each.kind.plural: definition(each.kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for each in DEFINITIONS
        if each.kind in KINDS
    }


def written() -> str:
    """Return the file as it should be."""
    made = policies(USER, schemas(), prefix=PREFIX)
    return HEADER + "".join(f"---\n{document(each)}" for each in made)


if __name__ == "__main__":
    FILE.write_text(written(), "utf-8")
