"""Collateral by name: what vouches for hardware and is kept, exported and asked for (CONFIDENTIAL.md §13).

A name is a path in an export. What is kept under it is verified before it is stored, and again when it is loaded:
neither a cache nor a database nor an export is believed, only the pinned anchors are.

    vcek/<product>/<hwid>/<tcb>.der    the certificate of a chip's key at a TCB
    crl/amd-<product>.der              AMD's list of withdrawn intermediates
    crl/intel-root.der                 Intel's list of withdrawn CAs
    crl/intel-<ca>.json                Intel's list of withdrawn platforms, with the chain of its issuer
    <tee>/<fmspc>/tcb-info.json        TCB levels of a kind of platform, with the chain of their signer
    <tee>/qe-identity.json             the quoting enclave, likewise
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from attestation.endorsements import amd, intel
from attestation.endorsements.amd import TCB, Lines, Product, VEKKey
from attestation.endorsements.amd.vek import MAX_VEK_BYTES, crl_path
from attestation.endorsements.certificate import Certificate
from attestation.endorsements.intel import Collateral, CollateralKey
from attestation.endorsements.revocation import CRL, CRLStore, parse_crl
from attestation.errors import CollateralInvalid, MalformedEvidence, SignatureInvalid
from attestation.wire import canonical_json, named_once

MAX_ITEM_BYTES: Final = 1 << 20
_NAME: Final = re.compile(
    r"vcek/(?P<product>Milan|Genoa|Turin)/(?P<hwid>[0-9a-f]{16}|[0-9a-f]{128})/(?P<tcb>[0-9]{1,3}(?:-[0-9]{1,3}){3,4})\.der"
    r"|crl/amd-(?P<amd>Milan|Genoa|Turin)\.der"
    r"|crl/intel-(?P<root>root)\.der"
    r"|crl/intel-(?P<ca>processor|platform)\.json"
    r"|(?P<tee>tdx|sgx)/(?P<fmspc>[0-9A-F]{12})/tcb-info\.json"
    r"|(?P<qe>tdx|sgx)/qe-identity\.json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """The anchors by which collateral is verified.

    Args:
        lines: AMD's pinned lines.
        intel_root: Intel's pinned root.
    """

    lines: Lines
    intel_root: Certificate


class Item(NamedTuple):
    """One piece of collateral that was verified.

    Args:
        name: As above.
        data: As it is kept.
        begins: Since when it holds, UTC.
        expires: Until when, UTC.
        says: What it is, in words.
    """

    name: str
    data: bytes
    begins: datetime
    expires: datetime
    says: str

    def is_current(self, at: datetime) -> bool:
        """Return whether it holds at *at*."""
        return self.begins <= at <= self.expires


class Source(NamedTuple):
    """Where a vendor has it.

    Args:
        vendor: `amd` or `intel`.
        path: Path and query.
        chain_header: The header of the answer in which the chain of the signer stands; empty where there is none.
    """

    vendor: str
    path: str
    chain_header: str = ""


def parse_name(name: str) -> Mapping[str, str]:
    """Return the parts of a name.

    Raises:
        CollateralInvalid: It is no name of collateral.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise CollateralInvalid(f"{name[:80]!r} is no name of collateral")
    return {part: value for part, value in found.groupdict().items() if value is not None}


def source_of(name: str) -> Source:
    """Return where its vendor has it.

    Raises:
        CollateralInvalid: It is no name of collateral.
    """
    parts = parse_name(name)
    if "product" in parts:
        return Source("amd", _vek_key(parts).path)
    if "amd" in parts:
        return Source("amd", crl_path(Product(parts["amd"])))
    if "root" in parts:
        return Source("intel", intel.ROOT_CRL_PATH)
    if "ca" in parts:
        return Source("intel", intel.pck_crl_path(parts["ca"]), intel.PCK_CRL_CHAIN)
    if "fmspc" in parts:
        return Source(
            "intel", intel.tcb_info_path(parts["tee"].upper(), parts["fmspc"]), intel.TCB_INFO_CHAIN
        )
    return Source("intel", intel.identity_path(parts["qe"].upper()), intel.IDENTITY_CHAIN)


def kept_form(name: str, answer: bytes, chain: str) -> bytes:
    """Return what is kept of an answer of its vendor.

    Args:
        name: What was asked for.
        answer: The body.
        chain: The header with the chain of its signer, percent-encoded; empty where there is none.

    Raises:
        CollateralInvalid: It cannot be read.
    """
    try:
        if not name.endswith(".json"):
            return intel.crl_of_answer(answer) if name.startswith("crl/") else answer
        text = intel.crl_of_answer(answer).hex() if name.startswith("crl/") else answer.decode("ascii")
        return canonical_json({"answer": text, "issuer_chain": intel.chain_of_header(chain).decode("ascii")})
    except (MalformedEvidence, UnicodeDecodeError) as e:
        raise CollateralInvalid(f"{name}: {e}") from e


def verify_item(name: str, data: bytes, trusted: Trusted) -> Item:
    """Verify one piece under the anchors; whether it is current is asked of the result.

    Raises:
        CollateralInvalid: With its name and what is wrong.
    """
    if len(data) > MAX_ITEM_BYTES:
        raise CollateralInvalid(f"{name[:160]}: {len(data)} bytes, at most {MAX_ITEM_BYTES} allowed")
    parts = parse_name(name)
    try:
        begins, expires, says = _verified(parts, data, trusted)
    except (MalformedEvidence, SignatureInvalid, intel.Refused) as e:
        raise CollateralInvalid(f"{name}: {e}") from e
    return Item(name, data, begins, expires, says)


def _verified(parts: Mapping[str, str], data: bytes, trusted: Trusted) -> tuple[datetime, datetime, str]:
    if "product" in parts:
        return _vek(parts, data, trusted)
    if "amd" in parts:
        line = trusted.lines.get(Product(parts["amd"]))
        if line is None:
            raise MalformedEvidence(f"no certificates of {parts['amd']} are pinned")
        return _list(parse_crl(data), line.ark, f"revocation list of AMD {parts['amd']}")
    if "root" in parts:
        crl = intel.verify_crl(data, trusted.intel_root)
        return _list(crl, trusted.intel_root, "revocation list of Intel's CAs")
    answer, chain = _signed(data)
    if "ca" in parts:
        crl, ca = intel.verify_pck_crl(intel.crl_of_answer(answer), chain, trusted.intel_root)
        if ca != parts["ca"]:
            raise MalformedEvidence(f"it is the list of the {ca} CA")
        return _list(crl, None, f"revocation list of Intel's platforms, {ca} CA")
    body, signature = intel.split_signed(answer, "tcbInfo" if "fmspc" in parts else "enclaveIdentity")
    tee = parts.get("tee", parts.get("qe", ""))
    if "fmspc" in parts:
        info = intel.verify_tcb_info(body, signature, chain, trusted.intel_root).value
        if (info.tee.lower(), info.fmspc.hex().upper()) != (tee, parts["fmspc"]):
            raise MalformedEvidence(f"it is TCB info of {info.tee} {info.fmspc.hex().upper()}")
        return info.issued, info.next_update, f"TCB info of {info.tee} {parts['fmspc']}"
    identity = intel.verify_identity(body, signature, chain, trusted.intel_root).value
    if identity.tee.lower() != tee:
        raise MalformedEvidence(f"it is the identity of the quoting enclave of {identity.tee}")
    return identity.issued, identity.next_update, f"identity of the quoting enclave of {identity.tee}"


def _vek(parts: Mapping[str, str], data: bytes, trusted: Trusted) -> tuple[datetime, datetime, str]:
    key = _vek_key(parts)
    if len(data) > MAX_VEK_BYTES:
        raise MalformedEvidence(f"a VEK of {len(data)} bytes")
    vek = amd.parse_vek(data)
    hwid = vek.hwid.hex() if vek.hwid is not None else ""
    if (vek.product, hwid, vek.tcb) != key:
        raise MalformedEvidence(f"it is the VEK of {vek.product} {hwid[:16]} at {vek.tcb}")
    line = trusted.lines.get(vek.product)
    if line is None:
        raise MalformedEvidence(f"no certificates of {vek.product} are pinned")
    certificate = vek.certificate
    # Judged in the middle of its time: that it is over is no reason to call it forged.
    middle = certificate.not_before + (certificate.not_after - certificate.not_before) / 2
    refusal = amd.verify_vek(vek, line, middle)
    if refusal is not None:
        raise SignatureInvalid(refusal)
    return certificate.not_before, certificate.not_after, f"VCEK of {vek.product} {hwid[:16]}… at {vek.tcb}"


def _vek_key(parts: Mapping[str, str]) -> VEKKey:
    product = Product(parts["product"])
    levels = [int(each) for each in parts["tcb"].split("-")]
    turin = product is Product.TURIN
    if len(levels) != (5 if turin else 4) or len(parts["hwid"]) != 2 * product.hwid_bytes:
        raise CollateralInvalid(f"vcek/{parts['product']}: chip or TCB of another line")
    return VEKKey(product, parts["hwid"], TCB(*(levels if turin else [None, *levels])))


def _list(crl: CRL, issuer: Certificate | None, says: str) -> tuple[datetime, datetime, str]:
    if issuer is not None:
        if crl.issuer_name.key != issuer.subject_key or crl.unusable is not None:
            raise MalformedEvidence(f"a list of {crl.issuer_name.text}, or one of a kind that is not read")
        crl.verify_issued_by(issuer)
    if crl.next_update is None:
        raise MalformedEvidence("a list that does not say until when it holds")
    return crl.this_update, crl.next_update, says


def _signed(data: bytes) -> tuple[bytes, bytes]:
    """Return the answer and the chain of its signer from what is kept."""
    try:
        found = json.loads(data.decode("ascii"), object_pairs_hook=named_once)
    except (ValueError, RecursionError) as e:
        raise MalformedEvidence("not JSON") from e
    if not isinstance(found, dict) or found.keys() != {"answer", "issuer_chain"}:
        raise MalformedEvidence("its members are answer and issuer_chain")
    answer, chain = found["answer"], found["issuer_chain"]
    if not isinstance(answer, str) or not isinstance(chain, str):
        raise MalformedEvidence("answer and issuer_chain are texts")
    return answer.encode("ascii", "replace"), chain.encode("ascii", "replace")


Read = Callable[[str], Item | None]
"""From a name to what is kept under it; None where nothing is."""


def for_amd(lines: Lines, product: Product | None, key: VEKKey | None, read: Read) -> amd.Endorsements:
    """Return what is at hand for a report.

    Args:
        lines: What is pinned.
        product: The line of the processor; None where the report does not say.
        key: What names its VCEK, where it should come from what is kept.
        read: Looks it up.
    """
    vek = read(key.file) if key is not None else None
    named = [product] if product is not None else list(lines)
    lists = [read(f"crl/amd-{each}.der") for each in named]
    return amd.Endorsements(
        lines=lines,
        vek=vek.data if vek is not None else None,
        source="kept" if vek is not None else "",
        crls=_lists(tuple(each.data for each in lists if each is not None)),
    )


@lru_cache(maxsize=64)
def _lists(found: tuple[bytes, ...]) -> CRLStore:
    """Return lists read; a function of their bytes, so read once."""
    return CRLStore([parse_crl(each) for each in found])


def needed_by_amd(product: Product | None, key: VEKKey | None) -> tuple[str, ...]:
    """Return the names of what a report needs, beside what came with it."""
    names = (key.file,) if key is not None else ()
    return (*names, f"crl/amd-{product}.der") if product is not None else names


def for_intel(root: Certificate, key: CollateralKey | None, read: Read) -> intel.Endorsements:
    """Return what is at hand for a quote; *key* None: of a platform that nobody vouches for."""
    if key is None:
        return intel.Endorsements(root=root, collateral=None)
    info, identity, pck, ca_list = (read(name) for name in needed_by_intel(key))
    return intel.Endorsements(root=root, collateral=_together(info, identity, pck, ca_list))


@lru_cache(maxsize=256)
def _together(info: Item | None, identity: Item | None, pck: Item | None, ca_list: Item | None) -> Collateral:
    """Return pieces as one; a function of their bytes, so made once."""
    found: dict[str, bytes] = {}
    for item, member, name in ((info, "tcbInfo", "tcb_info"), (identity, "enclaveIdentity", "qe_identity")):
        if item is not None:
            answer, chain = _signed(item.data)
            body, signature = intel.split_signed(answer, member)
            found |= {name: body, f"{name}_signature": signature, f"{name}_issuer_chain": chain}
    if pck is not None:
        answer, chain = _signed(pck.data)
        found |= {"pck_crl": intel.crl_of_answer(answer), "pck_crl_issuer_chain": chain}
    if ca_list is not None:
        found["root_ca_crl"] = ca_list.data
    return Collateral(**found)


def needed_by_intel(key: CollateralKey) -> tuple[str, str, str, str]:
    """Return the names of what a quote needs: TCB info, identity, list of its platforms, list of CAs."""
    tee = key.tee.lower()
    return (
        f"{tee}/{key.fmspc}/tcb-info.json",
        f"{tee}/qe-identity.json",
        f"crl/intel-{key.ca}.json",
        "crl/intel-root.der",
    )


def soonest(items: Iterable[Item]) -> datetime | None:
    """Return when the first of *items* expires; None where there are none."""
    return min((item.expires for item in items), default=None)
