"""Make one machine's configuration: rendered for its version of Talos, judged by its schema, sealed to its TPM."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from attestation.envelope import seal
from attestation.machines import Role
from attestation.talos.rendering import render
from attestation.talos.versions import Generation
from attestation.tpm import parse_public
from tests.bench.report import Measurement
from tests.property.test_configurations import base_of, own_of
from tests.vectors import forge

BAR_MS: Final = 25.0
ROUNDS: Final = 100
SYSCTLS: Final = 60
"""Lines of a patch, so that it is as long as those of a real cluster: about 4 KB."""


def measure() -> Iterator[Measurement]:
    """Measure a control plane's, which has most members, with a patch of its own."""
    for generation in Generation:
        value = _milliseconds(_delivery(generation))
        yield Measurement(
            name=f"configuration-from-1.{generation.value.first_minor}",
            value=value,
            unit="ms",
            bar=f"<= {BAR_MS:.0f} ms CPU",
            ok=value <= BAR_MS,
            note="rendered with a patch of 4 KB, linted, sealed to an RSA-2048 EK; the base was read before",
        )


def _delivery(generation: Generation) -> Callable[[], None]:
    base = base_of(Role.CONTROLPLANE, generation).encode()
    lines = "".join(
        f'    net.example.setting_{number:02}: "{number}"  # said so\n' for number in range(SYSCTLS)
    )
    patch = f"version: v1alpha1\nmachine:\n  sysctls:\n{lines}".encode()
    own = own_of("cp-1", "10.0.0.7/24", None, generation)
    ek = parse_public(forge.ek_public("L-1"))
    name = forge.AKS["p256"].name

    def deliver() -> None:
        rendered = render(base, patch, own, Role.CONTROLPLANE, generation)
        if rendered.errors:
            raise AssertionError(rendered.errors)
        seal(rendered.text, ek=ek, ak_name=name, machine_id=own.machine_id, token_id="0011223344556677")

    return deliver


def _milliseconds(work: Callable[[], None]) -> float:
    """Return the CPU time of one round, all threads, after one that reads schema and base."""
    work()
    begin = time.process_time()
    for _ in range(ROUNDS):
        work()
    return 1000 * (time.process_time() - begin) / ROUNDS
