"""The program: `attestation-operator`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import version


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(prog="attestation-operator", description=__doc__)
    parser.add_argument("--version", action="version", version=version("itl-attestation-operator"))
    parser.parse_args(argv)
    return 0
