"""Intel-like platforms in software: provisioning certificates, collateral, quotes 3 to 5 (CONFIDENTIAL.md §§9, 15).

Everything is written from the tables of the specification, apart from the readers that judge it.
"""

# Longer than 500 lines: one platform, and each thing of it that a test can ask to be wrong.
from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.intel import Collateral, Endorsements
from attestation.wire import pem, tlv
from attestation_testing.tee import x509
from attestation_testing.tee.x509 import extension, integer, octets, sequence

ISSUED: Final = datetime(2026, 11, 10, tzinfo=UTC)
"""When collateral was made; it holds for 30 days."""
VENDOR: Final = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
QE_MRSIGNER: Final = bytes.fromhex("dc9e2a7c6f948f17474e34a7fc43ed030f7c1563f1babddf6340c82e0e54a8c5")
FMSPC: Final = "90C06F000000"
SEPT_VE_DISABLE: Final = 1 << 28
_SGX: Final = "1.2.840.113741.1.13.1"
_POINT: Final = "https://certificates.example/IntelSGXRootCA.der"
_P256: Final = ec.SECP256R1()


def names(common_name: str) -> x509.Names:
    """Return a name as Intel writes it, with who made it beside it."""
    return (
        (x509.COMMON_NAME, common_name),
        (x509.ORGANIZATION, "Intel Corporation"),
        (x509.UNIT, "TEST ONLY"),
        (x509.LOCALITY, "Santa Clara"),
        (x509.STATE, "CA"),
        (x509.COUNTRY, "US"),
    )


def raw_signature(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """Return 64 bytes R ‖ S, big-endian."""
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32) + s.to_bytes(32)


def point(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return X ‖ Y, big-endian."""
    numbers = key.public_key().public_numbers()
    return numbers.x.to_bytes(32) + numbers.y.to_bytes(32)


class Pki:
    """A root, and what it certifies.

    Args:
        seed: Another seed is another root.
    """

    def __init__(self, seed: str = "intel") -> None:
        def key(what: str) -> ec.EllipticCurvePrivateKey:
            return x509.ec_key(_P256, f"{seed} {what}")

        self.root_key, self.platform_key, self.processor_key, self.tcb_key = map(
            key, ("root", "platform", "processor", "tcb")
        )

    @cached_property
    def root(self) -> bytes:
        """The root, DER: what a service would pin."""
        return self.certificate(
            "Intel SGX Root CA", self.root_key, self.root_key, "Intel SGX Root CA", 1, ca=1
        )

    @cached_property
    def platform_ca(self) -> bytes:
        """Intel SGX PCK Platform CA, DER."""
        return self.certificate(
            "Intel SGX PCK Platform CA", self.platform_key, self.root_key, "Intel SGX Root CA", 2, ca=0
        )

    @cached_property
    def processor_ca(self) -> bytes:
        """Intel SGX PCK Processor CA, DER."""
        return self.certificate(
            "Intel SGX PCK Processor CA", self.processor_key, self.root_key, "Intel SGX Root CA", 3, ca=0
        )

    @cached_property
    def tcb_signing(self) -> bytes:
        """Intel SGX TCB Signing, DER."""
        return self.certificate("Intel SGX TCB Signing", self.tcb_key, self.root_key, "Intel SGX Root CA", 4)

    def certificate(
        self,
        subject: str,
        key: ec.EllipticCurvePrivateKey,
        signer: ec.EllipticCurvePrivateKey,
        issuer: str,
        serial: int,
        *,
        ca: int | None = None,
        more: Sequence[bytes] = (),
        **changed: Any,
    ) -> bytes:
        """Return a certificate of Intel's profile; *ca* is its path length where it is one."""
        if ca is not None:
            kind = x509.ca_extensions(ca)
        else:
            kind = [
                extension(x509.KEY_USAGE, tlv(3, b"\x06\xc0"), critical=True),
                extension(x509.BASIC_CONSTRAINTS, sequence(), critical=True),
            ]
        fields: dict[str, Any] = {
            "subject": names(subject),
            "issuer": names(issuer),
            "key": key,
            "signer": signer,
            "serial": serial,
            "extensions": [*x509.key_identifiers(key, signer), x509.crl_point(_POINT), *kind, *more],
        }
        return x509.certificate(**(fields | changed))

    def chain(self, *certificates: bytes) -> bytes:
        """Return a chain of PEM that ends in the root."""
        return "".join(pem("CERTIFICATE", each) for each in (*certificates, self.root)).encode()

    def crl(self, ca: str = "root", *serials: int, at: datetime = ISSUED, days: int = 30) -> bytes:
        """Return the list of `root`, `platform` or `processor`, DER."""
        issuer, key = {
            "root": ("Intel SGX Root CA", self.root_key),
            "platform": ("Intel SGX PCK Platform CA", self.platform_key),
            "processor": ("Intel SGX PCK Processor CA", self.processor_key),
        }[ca]
        return x509.crl(
            issuer=names(issuer),
            signer=key,
            revoked=serials,
            this_update=at,
            next_update=at + timedelta(days=days),
        )


@cache
def shared_pki(seed: str = "intel") -> Pki:
    """Return the PKI of *seed*, made once."""
    return Pki(seed)


def stamp(at: datetime) -> str:
    """Return an instant as collateral has it."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def components(values: Sequence[int]) -> list[dict[str, int]]:
    """Return 16 components, what is not given 0."""
    return [{"svn": value} for value in (*values, *[0] * (16 - len(values)))]


def platform_level(
    sgx: Sequence[int] = (2, 2),
    tdx: Sequence[int] = (5, 0, 6),
    pcesvn: int = 11,
    status: str = "UpToDate",
    date: str = "2025-08-13T00:00:00Z",
    advisories: Sequence[str] = (),
) -> dict[str, Any]:
    """Return one of `tcbLevels` of TCB info."""
    found: dict[str, Any] = {
        "tcb": {
            "sgxtcbcomponents": components(sgx),
            "pcesvn": pcesvn,
            "tdxtcbcomponents": components(tdx),
        },
        "tcbDate": date,
        "tcbStatus": status,
    }
    return found | ({"advisoryIDs": list(advisories)} if advisories else {})


def level(
    isvsvn: int, status: str = "UpToDate", date: str = "2025-08-13T00:00:00Z", advisories: Sequence[str] = ()
) -> dict[str, Any]:
    """Return one of `tcbLevels` of an identity or module."""
    found: dict[str, Any] = {"tcb": {"isvsvn": isvsvn}, "tcbDate": date, "tcbStatus": status}
    return found | ({"advisoryIDs": list(advisories)} if advisories else {})


def module(name: str = "TDX_03", levels: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return one of `tdxModuleIdentities`."""
    return {
        "id": name,
        "mrsigner": "00" * 48,
        "attributes": "00" * 8,
        "attributesMask": "FF" * 8,
        "tcbLevels": list(levels or (level(5),)),
    }


def tcb_info(
    tee: str = "TDX", *, issued: datetime = ISSUED, days: int = 30, **changed: Any
) -> dict[str, Any]:
    """Return TCB info of version 3 under which the default platform is up to date."""
    found: dict[str, Any] = {
        "id": tee,
        "version": 3,
        "issueDate": stamp(issued),
        "nextUpdate": stamp(issued + timedelta(days=days)),
        "fmspc": FMSPC,
        "pceId": "0000",
        "tcbType": 0,
        "tcbEvaluationDataNumber": 20,
    }
    if tee == "TDX":
        found["tdxModule"] = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8}
        found["tdxModuleIdentities"] = [module()]
    found["tcbLevels"] = [platform_level()]
    if tee == "SGX":
        for each in found["tcbLevels"]:
            del each["tcb"]["tdxtcbcomponents"]
    return found | changed


def qe_identity(
    tee: str = "TDX", *, issued: datetime = ISSUED, days: int = 30, **changed: Any
) -> dict[str, Any]:
    """Return the identity of a quoting enclave, version 2."""
    found: dict[str, Any] = {
        "id": "TD_QE" if tee == "TDX" else "QE",
        "version": 2,
        "issueDate": stamp(issued),
        "nextUpdate": stamp(issued + timedelta(days=days)),
        "tcbEvaluationDataNumber": 20,
        "miscselect": "00000000",
        "miscselectMask": "FFFFFFFF",
        "attributes": "11000000000000000000000000000000",
        "attributesMask": "FBFFFFFFFFFFFFFF0000000000000000",
        "mrsigner": QE_MRSIGNER.hex().upper(),
        "isvprodid": 2 if tee == "TDX" else 1,
        "tcbLevels": [level(8)],
    }
    return found | changed


def exact(value: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One platform: what its PCK certificate says, and the keys of its quoting enclave.

    Args:
        pki: Who vouches for it.
        seed: Another seed is another platform.
        ca: `platform` or `processor`: who signs its PCK certificate.
        components: SVNs as of its certificate, and of its CPUSVN.
        pcesvn: u16.
        fmspc: 12 hex digits.
        pce_id: 4 hex digits.
        configuration: dynamic platform, cached keys, SMT; None where the certificate does not say.
        serial: Of its certificate.
        qe_svn: ISVSVN of its quoting enclave.
    """

    pki: Pki = field(default_factory=shared_pki)
    seed: str = "platform"
    ca: str = "platform"
    components: tuple[int, ...] = (2, 2, *[0] * 14)
    pcesvn: int = 11
    fmspc: str = FMSPC
    pce_id: str = "0000"
    configuration: tuple[bool, bool, bool] | None = (False, True, False)
    serial: int = 77
    qe_svn: int = 8

    @property
    def ppid(self) -> bytes:
        """16 bytes."""
        return hashlib.sha256(f"ppid {self.seed}".encode()).digest()[:16]

    @cached_property
    def pck_key(self) -> ec.EllipticCurvePrivateKey:
        """The key of its certificate."""
        return x509.ec_key(_P256, f"pck {self.seed}")

    @cached_property
    def attestation_key(self) -> ec.EllipticCurvePrivateKey:
        """The key that signs quotes."""
        return x509.ec_key(_P256, f"attestation {self.seed}")

    def sgx_extension(self) -> bytes:
        """Return the extension of the PCK certificate (§9.1)."""

        def item(arc: str, value: bytes) -> bytes:
            return sequence(x509.oid(f"{_SGX}.{arc}"), value)

        tcb = [item(f"2.{i}", integer(value)) for i, value in enumerate(self.components, 1)]
        tcb += [item("2.17", integer(self.pcesvn)), item("2.18", octets(bytes(self.components)))]
        found = [
            item("1", octets(self.ppid)),
            item("2", sequence(*tcb)),
            item("3", octets(bytes.fromhex(self.pce_id))),
            item("4", octets(bytes.fromhex(self.fmspc))),
            item("5", tlv(10, b"\x01")),
        ]
        if self.configuration is not None:
            flags = [
                item(f"7.{i}", tlv(1, b"\xff" if value else b"\x00"))
                for i, value in enumerate(self.configuration, 1)
            ]
            found += [item("6", octets(bytes(16))), item("7", sequence(*flags))]
        return extension(_SGX, sequence(*found))

    @cached_property
    def pck(self) -> bytes:
        """Its certificate, DER."""
        return self.certificate()

    def certificate(self, **changed: Any) -> bytes:
        """Return its certificate with anything of it wrong."""
        ca = self.ca.capitalize()
        key = self.pki.platform_key if self.ca == "platform" else self.pki.processor_key
        return self.pki.certificate(
            "Intel SGX PCK Certificate",
            self.pck_key,
            key,
            f"Intel SGX PCK {ca} CA",
            self.serial,
            more=[self.sgx_extension()],
            **changed,
        )

    @property
    def chain(self) -> bytes:
        """The chain that a quote carries, PEM."""
        ca = self.pki.platform_ca if self.ca == "platform" else self.pki.processor_ca
        return self.pki.chain(self.pck, ca)

    def qe_report(self, auth_data: bytes, **changed: bytes) -> bytes:
        """Return the report of the quoting enclave, 384 bytes; *changed*: offset as `at_16` -> bytes."""
        return enclave_report(
            {
                0: bytes(self.components),
                48: bytes.fromhex("11000000000000000000000000000000"),
                128: QE_MRSIGNER,
                256: (2).to_bytes(2, "little"),
                258: self.qe_svn.to_bytes(2, "little"),
                320: hashlib.sha256(point(self.attestation_key) + auth_data).digest(),
            }
            | {int(name.removeprefix("at_")): value for name, value in changed.items()}
        )

    def signature_data(
        self,
        signed: bytes,
        version: int,
        *,
        qe: Mapping[str, bytes] | None = None,
        chain: bytes | None = None,
    ) -> bytes:
        """Return what follows the body: signature, key, report of the quoting enclave, its signature, chain."""
        auth_data = bytes(range(32))
        report = self.qe_report(auth_data, **(qe or {}))
        inner = report + raw_signature(self.pck_key, report)
        inner += len(auth_data).to_bytes(2, "little") + auth_data
        certificates = self.chain if chain is None else chain
        inner += (5).to_bytes(2, "little") + len(certificates).to_bytes(4, "little") + certificates
        found = raw_signature(self.attestation_key, signed) + point(self.attestation_key)
        if version >= 4:
            found += (6).to_bytes(2, "little") + len(inner).to_bytes(4, "little")
        return found + inner

    def quote(
        self,
        body: bytes,
        *,
        version: int = 4,
        tee: str = "TDX",
        qe: Mapping[str, bytes] | None = None,
        chain: bytes | None = None,
        header: Mapping[int, bytes] | None = None,
        key_of: Platform | None = None,
    ) -> bytes:
        """Return a quote over *body*.

        Args:
            body: Of `td_report` or `enclave_report`.
            version: 3 (SGX), 4 or 5.
            tee: `TDX` or `SGX`.
            qe: Bytes of the report of the quoting enclave that are others, as of `qe_report`.
            chain: Another chain, PEM.
            header: Offset -> bytes of the header that are others.
            key_of: Whose quoting enclave signs.
        """
        start = bytearray(48)
        start[0:2] = version.to_bytes(2, "little")
        start[2:4] = (2).to_bytes(2, "little")
        start[4:8] = (0x81 if tee == "TDX" else 0).to_bytes(4, "little")
        start[12:28] = VENDOR
        for at, value in (header or {}).items():
            start[at : at + len(value)] = value
        signed = bytes(start)
        if version == 5:
            kind = 1 if tee == "SGX" else 2 if len(body) == 584 else 3
            signed += kind.to_bytes(2, "little") + len(body).to_bytes(4, "little")
        signed += body
        enclave = {"at_256": (1).to_bytes(2, "little")} if tee == "SGX" else {}
        data = (key_of or self).signature_data(signed, version, qe=enclave | dict(qe or {}), chain=chain)
        return signed + len(data).to_bytes(4, "little") + data

    def collateral(
        self,
        tee: str = "TDX",
        *,
        info: Mapping[str, Any] | None = None,
        identity: Mapping[str, Any] | None = None,
        revoked_pck: Sequence[int] = (),
        revoked_ca: Sequence[int] = (),
    ) -> Collateral:
        """Return collateral under which it is up to date, or other TCB info, identity or lists."""
        described = exact(tcb_info(tee) if info is None else info)
        quoting = exact(qe_identity(tee) if identity is None else identity)
        signing = self.pki.chain(self.pki.tcb_signing)
        ca = self.pki.platform_ca if self.ca == "platform" else self.pki.processor_ca
        return Collateral(
            tcb_info=described,
            tcb_info_signature=raw_signature(self.pki.tcb_key, described),
            tcb_info_issuer_chain=signing,
            qe_identity=quoting,
            qe_identity_signature=raw_signature(self.pki.tcb_key, quoting),
            qe_identity_issuer_chain=signing,
            pck_crl=self.pki.crl(self.ca, *revoked_pck),
            pck_crl_issuer_chain=self.pki.chain(ca),
            root_ca_crl=self.pki.crl("root", *revoked_ca),
        )

    def endorsements(self, collateral: Collateral | None) -> Endorsements:
        """Return what a service would judge by."""
        return Endorsements(root=parse_certificate(self.pki.root), collateral=collateral)


def collateral_json(collateral: Collateral) -> bytes:
    """Return collateral as it comes with evidence: JSON."""
    found: dict[str, str] = {}
    for name in collateral.__slots__:
        value = getattr(collateral, name)
        if value is not None:
            found[name] = value.hex() if name.endswith(("_signature", "_crl")) else value.decode("ascii")
    return json.dumps(found).encode("ascii")


def enclave_report(fields: Mapping[int, bytes]) -> bytes:
    """Return 384 bytes: offset -> what stands there."""
    data = bytearray(384)
    for at, value in fields.items():
        data[at : at + len(value)] = value
    return bytes(data)


_TD: Final = {
    "tee_tcb_svn": (0x00, 16),
    "mrseam": (0x10, 48),
    "mrsignerseam": (0x40, 48),
    "seam_attributes": (0x70, 8),
    "td_attributes": (0x78, 8),
    "xfam": (0x80, 8),
    "mrtd": (0x88, 48),
    "mrconfigid": (0xB8, 48),
    "mrowner": (0xE8, 48),
    "mrownerconfig": (0x118, 48),
    "rtmr0": (0x148, 48),
    "rtmr1": (0x178, 48),
    "rtmr2": (0x1A8, 48),
    "rtmr3": (0x1D8, 48),
    "report_data": (0x208, 64),
    "tee_tcb_svn2": (0x248, 16),
    "mrservicetd": (0x258, 48),
}
MRTD: Final = bytes(range(48))
GOOD_TD: Final[Mapping[str, bytes]] = {
    "tee_tcb_svn": bytes([5, 3, 6]) + bytes(13),
    "td_attributes": SEPT_VE_DISABLE.to_bytes(8, "little"),
    "xfam": bytes.fromhex("e702060000000000"),
    "mrtd": MRTD,
    "mrseam": b"\x5e" * 48,
}


def td_report(report_data: bytes, *, size: int = 584, **changed: bytes) -> bytes:
    """Return a TD report of 584 (TD 1.0) or 648 bytes (1.5); fields by the names of §9.1."""
    data = bytearray(size)
    fields = {**GOOD_TD, "report_data": report_data}
    if size == 648:
        fields["tee_tcb_svn2"] = fields["tee_tcb_svn"]
    for name, value in (fields | changed).items():
        at, length = _TD[name]
        assert len(value) == length or name == "tee_tcb_svn", name
        data[at : at + len(value)] = value
    return bytes(data)


def changed_copy(value: Mapping[str, Any], path: str, new: Any) -> dict[str, Any]:
    """Return a copy of collateral with one member replaced: `tcbLevels.0.tcbStatus`."""
    found: Any = copy.deepcopy(dict(value))
    at = found
    *parts, last = path.split(".")
    for part in parts:
        at = at[int(part)] if isinstance(at, list) else at[part]
    at[int(last) if isinstance(at, list) else last] = new
    return dict(found)


def other(platform: Platform, seed: str) -> Platform:
    """Return another platform of the same kind."""
    return replace(platform, seed=seed)
