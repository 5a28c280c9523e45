"""Signatures by SoftHSM: bare, and through the worker that everybody shares."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pkcs11
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from pkcs11 import Attribute, Mechanism, ObjectClass

from attestation.keys.open import Algorithm, create_key
from tests.bench.report import Measurement
from tests.fixtures import softhsm

SIGNATURES = {"ecdsa-p384": 1000, "rsa-4096": 200}
THREADS = 4
DIGEST = bytes(48)


def measure() -> Iterator[Measurement]:
    """Measure each algorithm that SoftHSM has."""
    before = os.environ.get("SOFTHSM2_CONF")
    try:
        with tempfile.TemporaryDirectory(prefix="itl-bench-") as folder:
            hsm = softhsm.make(Path(folder) / "softhsm")
            yield _of("ecdsa-p384", hsm)
            yield _of("rsa-4096", hsm)
    finally:
        os.environ.pop("SOFTHSM2_CONF", None)
        if before is not None:
            os.environ["SOFTHSM2_CONF"] = before


def _of(algorithm: Algorithm, hsm: softhsm.SoftHSM) -> Measurement:
    key = create_key(hsm.uri(algorithm), algorithm, hsm.options)
    private, count = key.private_key, SIGNATURES[algorithm]

    def sign() -> None:
        if isinstance(private, ec.EllipticCurvePrivateKey):
            private.sign(b"x", ec.ECDSA(hashes.SHA384()))
        elif isinstance(private, rsa.RSAPrivateKey):
            private.sign(b"x", padding.PKCS1v15(), hashes.SHA384())

    one = count / _seconds(sign, count, 1)
    several = count / _seconds(sign, count, THREADS)
    key.close()
    floor = _bare(algorithm, hsm, count)
    return Measurement(
        name=f"sign-softhsm-{algorithm}",
        value=several,
        unit="/s",
        floor=floor,
        ratio=several / floor,
        bar="none: what SoftHSM does",
        ok=True,
        note=f"{count} signatures of {THREADS} threads; of one: {one:.0f}/s; floor: python-pkcs11 alone, one thread",
    )


def _seconds(work: Callable[[], None], count: int, threads: int) -> float:
    def some() -> None:
        for _ in range(count // threads):
            work()

    work()
    started = [threading.Thread(target=some) for _ in range(threads)]
    start = time.perf_counter()
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return time.perf_counter() - start


def _bare(algorithm: str, hsm: softhsm.SoftHSM, count: int) -> float:
    library = pkcs11.lib(str(hsm.module))
    session = library.get_token(token_label="hsm").open(user_pin=softhsm.PIN)
    wanted = {Attribute.CLASS: ObjectClass.PRIVATE_KEY, Attribute.LABEL: algorithm}
    (key,) = session.get_objects(wanted)
    assert isinstance(key, pkcs11.SignMixin)
    mechanism = Mechanism.ECDSA if algorithm == "ecdsa-p384" else Mechanism.RSA_PKCS
    seconds = _seconds(lambda: _ignore(key.sign(DIGEST, mechanism=mechanism)), count, 1)
    session.close()
    library.finalize()
    return count / seconds


def _ignore(_: bytes) -> None:
    pass
