"""docs/operate/cryptography.md, and where each algorithm is used as `attestation crypto inventory -o json` tells it.

Written from `attestation.algorithms` and from the line `# Algorithms for: …` of each module (docs/adr/0075).
`python -m tests.docs.cryptography_page` writes both anew; a test compares.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Final

from attestation.algorithms import ALGORITHMS, USES, CryptoPolicy, Entry, Ruling, Use, exemption, ruling
from tests.docs.pages import ROOT

PAGE: Final = ROOT / "docs/operate/cryptography.md"
WHERE: Final = ROOT / "src/cli/attestation_cli/commands/crypto.json"
DECLARED: Final = re.compile(r"^# Algorithms for: (.+)$", re.MULTILINE)

INTRODUCTION = """\
# Algorithms

Written by `python -m tests.docs.cryptography_page` from `attestation.algorithms`, and from what each module says
that it uses algorithms for; a test compares, and another walks the source: an algorithm that is used somewhere and
not named there fails it. `attestation crypto inventory` says the same in a terminal, as CSV and as JSON.

## What `ITL_CRYPTO_POLICY` does

| value | allows |
|---|---|
| `default` | everything below |
| `cnsa1` | CNSA 1.0: AES-256, SHA-384, ECDSA and ECDH on P-384, RSA from 3072 bits |
| `cnsa2` | CNSA 2.0: AES-256, SHA-384, SHA-512, ML-DSA-87, ML-KEM-1024; LMS and XMSS are for firmware |

What a policy forbids is refused, never replaced: at start, with the setting that names it, and at run time where
others bring keys (`422 algorithm-forbidden`; `401` for operators' certificates and tokens). What is outside a
suite and used all the same is marked `let through` below, each time with the reason; the service says at every
start, in its log and its audit, for which uses that is so. There are three kinds of reasons:

- **Nothing of the suite exists for it.** No TPM has ML-DSA or ML-KEM, no identity provider signs with it, and our
  own tokens are ES384. Under `cnsa2` what CNSA 1.0 allows is let through there, and nothing weaker
  ([ADR 40](../adr/0040-what-a-suite-lets-through.md)).
- **A format fixes it.** Witnesses of transparency logs know Ed25519 and ML-DSA-44, tree hashes are SHA-256.
- **Nothing rests on it.** It names what was authenticated otherwise, or stays inside one machine.

So no value makes an approved product of this one: a policy keeps out what its suite forbids where there is a
choice, and shows what is left.

### What `cnsa1` and `cnsa2` mean for a fleet

- EKs of the templates L-1, L-2, H-1 and H-2 are refused (RSA-2048, P-256, AES-128): machines need a TPM with an EK
  on P-384 or RSA from 3072 bits (H-3, H-6, H-7), and an attestation key of that strength with SHA-384 (`cnsa2`:
  or SHA-512). `attestation-agent` takes such an EK with `ITL_EK=strong` and makes such a key with
  `ITL_AK=ecc-p384`; what it does without them is refused. Another EK is another machine: it is introduced anew.
- TLS of the service agrees on P-384 alone. Where TLS ends at a proxy, suites, groups and certificate are the
  proxy's: [tls.md](tls.md).
- `cnsa2` demands `ITL_ENROLLMENT_CA_ALGORITHM=ml-dsa-87`. Certificates so signed are verified by OpenSSL 3.5 and
  its like, not by older libraries. The service then issues none to operators (`ITL_OPERATOR_CERTIFICATES`).
- Keys made by the service for a machine (`ITL_COMPAT_SERVER_KEYS`, `ITL_COMPAT_OFFLINE_BUNDLE`) are refused:
  SHA-256 inside RSA-OAEP.
- A CA key of an algorithm that a new policy forbids signs no certificates any more, and still the revocation
  lists and OCSP answers about those that it signed.
"""


@functools.cache
def modules() -> dict[str, Path]:
    """Return every module that is shipped and runs: all but the test kit and the inventory itself."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = (
            ".".join(path.relative_to(ROOT / "src").parts[1:]).removesuffix(".py").removesuffix(".__init__")
        )
        if not name.startswith("attestation_testing") and name not in (
            "attestation.algorithms",
            "hatch_build",
        ):
            found[name] = path
    return found


@functools.cache
def declared(path: Path) -> frozenset[Use]:
    """Return what the module at *path* says that it uses algorithms for."""
    said = DECLARED.findall(path.read_text(encoding="utf-8"))
    return frozenset(Use(word) for line in said for word in line.split(", "))


def where() -> dict[Use, list[str]]:
    """Return the modules that declare each use, sorted."""
    return {use: sorted(name for name, path in modules().items() if use in declared(path)) for use in USES}


def where_file() -> str:
    """Return `where` as JSON, one line each."""
    rows = (f"  {json.dumps(use)}: {json.dumps(names)}" for use, names in where().items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, "## Algorithms by suite", "", *_suites(), "", "## Uses", ""]
    users = where()
    for use, entry in USES.items():
        parts += [*_use(entry), "", f"In {', '.join(f'`{module}`' for module in users[use])}.", ""]
    return "\n".join(parts).rstrip() + "\n"


def _suites() -> list[str]:
    rows = [
        "| algorithm | kind | CNSA 1.0 | CNSA 2.0 | a quantum computer breaks it | specification |",
        "|---|---|---|---|---|---|",
    ]
    for each in ALGORITHMS.values():
        words = (_yes(each.cnsa1), _yes(each.cnsa2), _yes(each.quantum_vulnerable))
        rows.append(f"| `{each.name}` | {each.primitive} | {' | '.join(words)} | {each.specification} |")
    return rows


def _use(entry: Entry) -> list[str]:
    lines = [
        f"### {entry.use}",
        "",
        f"{_sentence(entry.title)} Chosen by {entry.chooser}. {_sentence(entry.parameters)}",
        "",
        f"A policy is enforced {entry.enforced}." if entry.enforced else "No policy is enforced here.",
        "",
        "| algorithm | `cnsa1` | `cnsa2` |",
        "|---|---|---|",
    ]
    for name in entry.algorithms:
        said = (ruling(policy, entry.use, name) for policy in (CryptoPolicy.CNSA1, CryptoPolicy.CNSA2))
        lines.append(f"| `{name}` | {' | '.join(said)} |")
    if entry.any_rsa:
        lines += ["", "RSA of any other length from 2048 bits is judged by its length."]
    for each in entry.exemptions:
        under = " and ".join(f"`{policy}`" for policy in CryptoPolicy if policy in each.policies)
        names = ", ".join(
            f"`{name}`"
            for name in entry.algorithms
            if any(exemption(policy, entry.use, name) == each.reason for policy in each.policies)
            and any(ruling(policy, entry.use, name) is Ruling.EXEMPT for policy in each.policies)
        )
        lines += ["", f"Let through under {under}: {names}: {each.reason}."]
    return lines


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text[0].isalpha() and " " in text.split(":")[0] else f"{text}."


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    WHERE.write_text(where_file(), encoding="utf-8")
