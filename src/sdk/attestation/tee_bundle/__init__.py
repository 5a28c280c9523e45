"""The certificates of vendors of confidential hardware that are pinned, and no others (CONFIDENTIAL.md §17).

Beside this file lie the data, one DER a file; NOTICE says whose they are.
"""

# Algorithms for: trust-bundle
from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Final, NamedTuple

from attestation.endorsements.amd import Lines, Product, parse_line
from attestation.errors import BundleInvalid

PINS: Final = {
    "amd/genoa-ark.der": "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1",
    "amd/genoa-ask.der": "5464738c1546aed5f2cecf1dc98c5c960a92e8913238a61711bc90ec6e828521",
    "amd/genoa-asvk.der": "197e610743a917d6b9bb982a5a9226ccc0a15b611be0619e626aca9151457372",
    "amd/milan-ark.der": "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd",
    "amd/milan-ask.der": "67d303bd3905fd38db8b20e0793699870e7fa612eaad5dec358293fd8c0bac1b",
    "amd/milan-asvk.der": "c5e081f59b7efab1fe2f8b505e159704e72f29cab7ef7cf628a05a42439082f5",
    "amd/turin-ark.der": "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a",
    "amd/turin-ask.der": "5b77ef5fe7a7a004fd9032668fba9d0fda22f88c4442069a479636a6ae3b3185",
    "amd/turin-asvk.der": "104e10a8bd060a3c20a434261a57d0588fd65a88915b4f65b08bdecaf8df1a3c",
    "intel/sgx-root-ca.der": "44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3",
    "nvidia/device-identity-ca.der": "102bf659d5419614c9d8e6aecebc80454eb26b1df6a769ac720b9a690b167b48",
}
"""File -> SHA-256 of its bytes, hex."""


class Anchors(NamedTuple):
    """What is pinned of each vendor.

    Args:
        amd: The certificates of each line of processors.
        intel: Intel SGX Root CA, DER.
        nvidia: NVIDIA Device Identity CA, DER.
    """

    amd: Lines
    intel: bytes
    nvidia: bytes


@lru_cache(maxsize=1)
def load() -> Anchors:
    """Return what is shipped, read once; every file is held against its pin.

    Raises:
        BundleInvalid: The installation is damaged, with the file.
    """
    lines = {
        product: parse_line(
            product, **{name: _read(f"amd/{product.lower()}-{name}.der") for name in ("ark", "ask", "asvk")}
        )
        for product in Product
    }
    return Anchors(lines, _read("intel/sgx-root-ca.der"), _read("nvidia/device-identity-ca.der"))


def _read(name: str) -> bytes:
    try:
        data = files(__name__).joinpath(name).read_bytes()
    except OSError as e:
        raise BundleInvalid(f"tee_bundle: {name} cannot be read") from e
    if hashlib.sha256(data).hexdigest() != PINS[name]:
        raise BundleInvalid(f"tee_bundle: {name} is not the file that is pinned")
    return data
