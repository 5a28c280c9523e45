"""What one certificate costs in the heart, without a store: `python -m tests.bench.linting`.

CPU time of one thread, so that it says the same beside other work: each piece alone, and all of them in their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from attestation.pki.content import Algorithm, check_signed, make_certificate, rehearse
from attestation.pki.lint import lint
from attestation.pki.profiles import ProfileName
from tests.unit.pki.certificate_kit import ALGORITHMS, ca_of

ROUNDS = 300


def milliseconds(piece: Callable[[], object]) -> float:
    """Return the CPU time of one round."""
    begin = time.process_time()
    for _ in range(ROUNDS):
        piece()
    return 1000 * (time.process_time() - begin) / ROUNDS


def measure(algorithm: Algorithm) -> dict[str, float]:
    """Return milliseconds of each piece for a machine's certificate."""
    ca = ca_of(algorithm)
    content = ca.content_of(ProfileName.NODE_CLIENT)
    rehearsed, signed = rehearse(content, algorithm), ca.issue(content)
    pieces: dict[str, Callable[[], object]] = {
        "rehearse": lambda: rehearse(content, algorithm),
        "lint": lambda: lint(rehearsed, content, ca.certificate),
        "sign": lambda: make_certificate(content, ca.key),
        "verify": lambda: check_signed(signed, rehearsed=rehearsed, issuer=ca.key.public_key()),
    }
    found = {name: milliseconds(piece) for name, piece in pieces.items()}
    return found | {"all": sum(found.values())}


def main() -> None:
    """Print a line for each algorithm."""
    for algorithm in ALGORITHMS:
        found = measure(algorithm)
        print(f"{algorithm:10}", *(f"{name} {value:.2f} ms" for name, value in found.items()), sep="  ")


if __name__ == "__main__":
    main()
