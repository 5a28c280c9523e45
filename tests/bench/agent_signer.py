"""The agent's signer over its socket, and what attesting feels of it: quotes while four programs ask all the time."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from attestation.device import KeyType, NodeTPM
from attestation.tpm import PCRSelection
from attestation.tpm.key_file import encode_key_file
from attestation_agent.logs import configure
from attestation_agent.offered import BUNDLE, CERTIFICATE, CHAIN, KEY, Offered
from attestation_agent.shared_tpm import SharedTPM
from attestation_agent.signer import Signer, ask, serving
from attestation_testing import SoftwareTPM
from tests.bench.report import Measurement
from tests.fixtures.operator_pki import OperatorCA

_SECONDS = 4.0
_QUOTES = 60
_GREEDY = 4
_SELECTION = PCRSelection.from_names({"sha256": list(range(8))})


def measure() -> Iterator[Measurement]:
    """Measure signatures with a P-384 key, then the median quote with and without them."""
    with tempfile.TemporaryDirectory() as name, SoftwareTPM(Path(name) / "tpm") as tpm:
        shared = SharedTPM(lambda: NodeTPM.open(tpm.uri)).open()
        key = shared.keys.create_signing_key(KeyType.ECC_P384)
        ca = OperatorCA(datetime.now(UTC).replace(microsecond=0))
        pem = ca.issue("node").pem
        offered = Offered(Path(name) / "tls")
        files = {KEY: encode_key_file(key), CERTIFICATE: pem, CHAIN: b"", BUNDLE: ca.pem}
        offered.replace("client", files, {})
        path = Path(name) / "s" / "sock"
        alone = _quote_ms(shared)
        floor = _rate(lambda: shared.keys.sign(key, os.urandom(48)))
        with serving(Signer(path, offered=offered, tpm=shared.keys, log=configure("error"))):

            def sign() -> None:
                ask(path, kind="client", algorithm="ecdsa-sha384", digest=os.urandom(48))

            rate = _rate(sign)
            greedy = [threading.Thread(target=_rate, args=(sign,)) for _ in range(_GREEDY)]
            for thread in greedy:
                thread.start()
            time.sleep(0.3)
            busy = _quote_ms(shared)
            for thread in greedy:
                thread.join()
        shared.close()
    yield Measurement(
        name="agent-sign",
        value=rate,
        unit="/s",
        floor=floor,
        ratio=rate / floor,
        bar=">= 20 /s",
        ok=rate >= 20,
        note="P-384 through the socket and swtpm, one connection each; floor: the same TPM calls without the socket",
    )
    yield Measurement(
        name="agent-quote-busy",
        value=busy,
        unit="ms",
        floor=alone,
        ratio=busy / alone,
        bar="<= 100 ms",
        ok=busy <= 100,
        note=f"median quote of eight PCRs while {_GREEDY} programs use the signer; floor: nobody does",
    )


def _rate(work: Callable[[], object]) -> float:
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < _SECONDS:
        work()
        count += 1
    return count / (time.perf_counter() - begun)


def _quote_ms(shared: SharedTPM) -> float:
    taken = []
    for _ in range(_QUOTES):
        begun = time.perf_counter()
        shared.quote(os.urandom(32), _SELECTION)
        taken.append((time.perf_counter() - begun) * 1000)
        time.sleep(0.02)
    return statistics.median(taken)
