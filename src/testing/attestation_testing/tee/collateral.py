"""Collateral of the test kit under its names, as `attestation collateral export` writes it, and the anchors for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from attestation.endorsements.collateral import kept_form
from attestation.wire import pem
from attestation_testing.tee.amd import Pki as AMDPki
from attestation_testing.tee.intel import Pki as IntelPki
from attestation_testing.tee.intel import exact, qe_identity, raw_signature, tcb_info

MANIFEST = "manifest.json"


def signed(pki: IntelPki, value: Mapping[str, Any], member: str, signature: bytes | None = None) -> bytes:
    """Return what is kept of TCB info or an identity; *signature* is another than the right one."""
    body = exact(value)
    made = raw_signature(pki.tcb_key, body) if signature is None else signature
    answer = b'{"%s":%s,"signature":"%s"}' % (member.encode(), body, made.hex().encode())
    return kept_form("tdx/qe-identity.json", answer, pki.chain(pki.tcb_signing).decode())


def platforms_list(pki: IntelPki, ca: str, at: datetime) -> bytes:
    """Return what is kept of a list of platforms."""
    issuer = pki.platform_ca if ca == "platform" else pki.processor_ca
    chain = pki.chain(issuer).decode().replace("\n", "%0A")
    return kept_form(f"crl/intel-{ca}.json", pki.crl(ca, at=at), chain)


def of_intel(
    pki: IntelPki, at: datetime, *, tdx: Mapping[str, Any] | None = None, sgx: Mapping[str, Any] | None = None
) -> dict[str, bytes]:
    """Return what vouches for platforms, made at *at*; TCB info may be another."""
    described = {
        "tdx": tdx or tcb_info("TDX", issued=at),
        "sgx": sgx or tcb_info("SGX", issued=at),
    }
    found = {"crl/intel-root.der": pki.crl(at=at)}
    for ca in ("platform", "processor"):
        found[f"crl/intel-{ca}.json"] = platforms_list(pki, ca, at)
    for tee, info in described.items():
        found[f"{tee}/{info['fmspc']}/tcb-info.json"] = signed(pki, info, "tcbInfo")
        found[f"{tee}/qe-identity.json"] = signed(pki, qe_identity(tee.upper(), issued=at), "enclaveIdentity")
    return found


def of_amd(*pkis: AMDPki) -> dict[str, bytes]:
    """Return the lists of withdrawn intermediates; VEKs come with reports."""
    return {f"crl/amd-{pki.product}.der": pki.crl() for pki in pkis}


def write_export(folder: Path, items: Mapping[str, bytes]) -> None:
    """Write *items* as `attestation collateral export` does."""
    sums = {}
    for name, data in items.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        sums[name] = hashlib.sha256(data).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(sums, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write_anchors(path: Path, intel: IntelPki, amd: Iterable[AMDPki]) -> Path:
    """Write anchors as ITL_TEE_TEST_ANCHORS wants them; return *path*."""
    made = [intel.root]
    for pki in amd:
        made += [pki.ark, pki.ask, pki.asvk]
    path.write_text("".join(pem("CERTIFICATE", each) for each in made), encoding="ascii")
    return path
