"""A zoo of EK certificates: vendor × template × quirk, and every defect that must be refused (TPM.md §2.2-2.5, §9).

Each vendor has CAs of its own, made up, in the shape of the real hierarchy: roots with intermediates, anchors that
are not self-signed, two anchors of one name with keys of different kinds, intermediates that only one TPM has.
Everything follows from the seed, to the last byte; RSA keys alone are the same in every zoo, because making them
takes long (`ek_zoo_keys.json`). Their private halves are published here: trust nothing of this anywhere.
"""

# Longer than 500 lines: a table of quirks, one certificate each.
from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from attestation.endorsements.vendors import VENDOR_NAMES
from attestation.tpm.constants import Alg, Attr
from attestation.tpm.public import Public, parse_tpmt_public
from attestation.tpm.templates import EK_TEMPLATES, EKTemplate
from attestation_testing.certificates import (
    CAOptions,
    CertificateAuthority,
    Defect,
    EKCertificateOptions,
    PrivateKey,
    Quirk,
)
from attestation_testing.software_keys import with_key

AT: Final = datetime(2025, 1, 1, tzinfo=UTC)
"""The certificates of a zoo are made as of this day, and are good for a hundred years from it."""
FORMAT: Final = "itl-ek-zoo/1"

TEMPLATES: Final[Mapping[str, EKTemplate]] = {t.name: t for t in EK_TEMPLATES if t.supported}

_CURVES: Final[Mapping[int, ec.EllipticCurve]] = {
    256: ec.SECP256R1(),
    384: ec.SECP384R1(),
    521: ec.SECP521R1(),
}
_CURVE_WORDS: Final = frozenset({"p256", "p384", "p521"})
_CURVE_BITS: Final = {3: 256, 4: 384, 5: 521}
_VALIDITY: Final = (AT - timedelta(days=1), AT + timedelta(days=36500))
_BEGAN: Final = datetime(2016, 1, 1, tzinfo=UTC)
_MANUFACTURERS: Final = {name: manufacturer for manufacturer, name in VENDOR_NAMES.items()}


class CAQuirk(StrEnum):
    """Something met in certificates of CAs that must be accepted; the issuer of the EK certificate has it."""

    NULL_PARAMETERS = "ca-null-parameters"
    UNSORTED_RDN = "ca-unsorted-rdn"
    ZERO_PADDED_SERIAL = "ca-zero-padded-serial"
    SERIAL_NEGATIVE = "ca-serial-negative"
    SERIAL_ZERO = "ca-serial-zero"
    PADDING = "ca-padding"
    LONG_NAME = "ca-long-name"
    NO_EXPIRY = "ca-no-expiry"
    NO_KEY_USAGE = "ca-no-key-usage"
    PSS = "ca-pss"
    OTHER_STRINGS = "ca-other-strings"
    OTHER_NAME = "ca-other-name"
    NAMESAKE = "ca-namesake"
    SHA1_ALLOWED = "ca-sha1-allowed"


class CADefect(StrEnum):
    """A path that must be refused; the EK certificate itself is good."""

    NOT_CA = "issuer-not-ca"
    NO_CERTIFICATE_SIGNING = "issuer-without-key-cert-sign"
    OVER_PATH_LENGTH = "issuer-over-path-length"
    EXPIRED = "issuer-expired"
    NOT_YET_VALID = "issuer-not-yet-valid"
    UNKNOWN_CRITICAL = "issuer-unknown-critical"
    SHA1 = "issuer-sha1"
    WEAK_KEY = "issuer-weak-key"
    SIGNATURE_BROKEN = "issuer-signature-broken"
    IMPOSTOR_ROOT = "impostor-root"
    MISSING = "issuer-missing"
    LOOP = "loop"
    TOO_DEEP = "too-deep"
    THOUSAND = "thousand-issuers"


class EKDefect(StrEnum):
    """The EK, or its certificate, is wrong in a way that `Defect` has no word for."""

    TEMPLATE_ATTRIBUTES = "template-attributes"
    TEMPLATE_POLICY = "template-policy"
    TEMPLATE_NAME_ALGORITHM = "template-name-algorithm"
    TEMPLATE_SYMMETRIC = "template-symmetric"
    SELF_SIGNED = "self-signed"
    OTHER_VENDOR = "other-vendor"
    UNKNOWN_VENDOR = "unknown-vendor"
    SIMULATOR = "simulator"


NUMBERS: Final[Mapping[Defect | CADefect | EKDefect, str]] = {
    EKDefect.TEMPLATE_ATTRIBUTES: "N47",
    EKDefect.TEMPLATE_POLICY: "N47",
    EKDefect.TEMPLATE_NAME_ALGORITHM: "N47",
    EKDefect.TEMPLATE_SYMMETRIC: "N47",
    Defect.OTHER_KEY: "N48",
    EKDefect.SELF_SIGNED: "N49",
    Defect.ISSUER_IS_SUBJECT: "N49",
    Defect.EXPIRED: "N50",
    CADefect.EXPIRED: "N50",
    Defect.NOT_YET_VALID: "N51",
    CADefect.NOT_YET_VALID: "N51",
    Defect.CA_TRUE: "N52",
    Defect.BASIC_CONSTRAINTS_MISSING: "N52",
    Defect.BASIC_CONSTRAINTS_NOT_CRITICAL: "N52",
    Defect.KEY_USAGE_MISSING: "N53",
    Defect.KEY_USAGE_WRONG: "N53",
    Defect.KEY_USAGE_NOT_CRITICAL: "N53",
    Defect.EKU_OTHER: "N53",
    Defect.EKU_CRITICAL: "N53",
    Defect.SAN_MISSING: "N54",
    Defect.SAN_TWO_DIRECTORY_NAMES: "N54",
    Defect.SAN_EXTRA_ATTRIBUTE: "N54",
    Defect.SAN_WITHOUT_MANUFACTURER: "N54",
    Defect.SAN_WITHOUT_MODEL: "N54",
    Defect.SAN_MANUFACTURER_MALFORMED: "N54",
    Defect.SAN_NOT_CRITICAL: "N54",
    EKDefect.OTHER_VENDOR: "N55",
    EKDefect.UNKNOWN_VENDOR: "N55",
    EKDefect.SIMULATOR: "N55",
    CADefect.NOT_CA: "N56",
    CADefect.NO_CERTIFICATE_SIGNING: "N56",
    CADefect.OVER_PATH_LENGTH: "N56",
    CADefect.LOOP: "N57",
    CADefect.TOO_DEEP: "N57",
    CADefect.THOUSAND: "N57",
    Defect.SHA1: "N59",
    CADefect.SHA1: "N59",
    Defect.UNKNOWN_CRITICAL: "N60",
    CADefect.UNKNOWN_CRITICAL: "N60",
}
"""Number in the negative matrix (TPM.md §9); N58 is one bit of the signed part, once per quirk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooCA:
    """One CA that a verifier holds.

    Args:
        name: Words for a file.
        vendor: Registered name of the vendor.
        role: `anchor` or `intermediate`.
        der: Its certificate.
    """

    name: str
    vendor: str
    role: str
    der: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One TPM as it would introduce itself, and what must come of it.

    Args:
        name: Words for a file; no two entries share one.
        vendor: Registered name of the vendor.
        template: TCG name, L-1 to H-7.
        quirk: What is odd, or None.
        defect: What is wrong, or None.
        number: Of the negative matrix, N47 to N60, or None.
        ek_public: TPM2B_PUBLIC of the EK.
        certificate: What stands in NV, with wrapper and padding.
        chain: The certificates that come with it.
        sha1_allowed: SHA-256, hex, of those that may be signed over SHA-1.
        accepted: What must come of it.
        refused_by: `template`, `certificate`, `path` or `vendor`, whatever must notice first; `any` where any may;
            empty where it is accepted.
    """

    name: str
    vendor: str
    template: str
    quirk: str | None = None
    defect: str | None = None
    number: str | None = None
    ek_public: bytes
    certificate: bytes
    chain: tuple[bytes, ...] = ()
    sha1_allowed: tuple[str, ...] = ()
    accepted: bool = True
    refused_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """The CAs of one vendor.

    Args:
        name: Registered name.
        held: What a verifier holds.
        rsa: Issues certificates of RSA EKs.
        ecc: Issues those of ECC EKs.
        sent: What comes with them, below what is held; anchor side first.
    """

    name: str
    held: tuple[ZooCA, ...]
    rsa: CertificateAuthority
    ecc: CertificateAuthority
    sent: tuple[CertificateAuthority, ...] = ()

    def issuer(self, ek: Public) -> CertificateAuthority:
        """Return who certifies *ek*."""
        return self.rsa if ek.type == Alg.RSA else self.ecc


class Zoo:
    """Vendors, their CAs and all entries. The same seed is the same zoo.

    Args:
        seed: Makes ECC keys, serial numbers and filling.

    Attributes:
        seed: As given.
        vendors: By registered name.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._eks = {name: self._ek(template) for name, template in TEMPLATES.items()}
        makers = (self._amd, self._ifx, self._intc, self._msft, self._nsg, self._ntc, self._stm)
        self.vendors: Mapping[str, Vendor] = {v.name: v for v in (make() for make in makers)}

    @property
    def held(self) -> tuple[ZooCA, ...]:
        """Every CA that a verifier holds."""
        return tuple(ca for vendor in self.vendors.values() for ca in vendor.held)

    def ek(self, template: str) -> tuple[Public, PrivateKey]:
        """Return the EK of *template*, with its private half; every vendor's TPM has the same."""
        return self._eks[template]

    def entries(
        self,
        *,
        vendors: Collection[str] | None = None,
        templates: Collection[str] | None = None,
        defects: bool = True,
    ) -> Iterator[ZooEntry]:
        """Yield every entry.

        Args:
            vendors: Only of these; None for all.
            templates: Only of these; None for all.
            defects: Also those that must be refused.
        """
        for vendor in self.vendors.values():
            for template in TEMPLATES:
                if vendors is not None and vendor.name not in vendors:
                    continue
                if templates is not None and template not in templates:
                    continue
                yield from self._good(vendor, template)
                # Defects do not depend on the size of a key: one RSA and one ECC template each.
                if defects and template in ("L-1", "L-2"):
                    yield from self._bad(vendor, template)

    # ------------------------------------------------------------ keys

    def _ecc_key(self, label: str, bits: int) -> ec.EllipticCurvePrivateKey:
        material = hashlib.shake_256(f"ek zoo {self.seed} {label}".encode()).digest(72)
        curve = _CURVES[bits]
        return ec.derive_private_key(int.from_bytes(material) % (curve.group_order - 1) + 1, curve)

    def _ek(self, template: EKTemplate) -> tuple[Public, PrivateKey]:
        bare = template.public
        key: PrivateKey = (
            _rsa_key(f"ek-{bare.key_bits}")
            if bare.type == Alg.RSA
            else self._ecc_key(f"EK {template.name}", _CURVE_BITS[bare.curve])
        )
        return with_key(bare, key), key

    def _ca(
        self,
        name: str,
        kind: str,
        parent: CertificateAuthority | None = None,
        *,
        path_length: int | None = None,
        ca: bool = True,
        options: CAOptions | None = None,
    ) -> CertificateAuthority:
        """Make a CA; *kind* is a label of an RSA key, or `p256`, `p384`, `p521`."""
        key: PrivateKey = self._ecc_key(name, int(kind[1:])) if kind in _CURVE_WORDS else _rsa_key(kind)
        return CertificateAuthority(
            f"Zoo {name}",
            seed=self.seed,
            parent=parent,
            path_length=path_length,
            ca=ca,
            at=_BEGAN,
            key=key,
            options=options,
        )

    # ------------------------------------------------------------ vendors, each in the shape of the real one

    def _amd(self) -> Vendor:
        """Two roots of one name, RSA and P-256; a third anchor whose issuer nobody has."""
        name = (
            ("2.5.4.11", "Engineering"),
            ("2.5.4.6", "US"),
            ("2.5.4.10", "Zoo Micro"),
            ("2.5.4.3", "Zoo TPM"),
        )
        rsa_root = self._ca("AMD RSA root", "amd-root", options=CAOptions(attributes=name))
        ecc_root = self._ca("AMD ECC root", "p256", options=CAOptions(attributes=name))
        absent = self._ca("AMD ultimate root", "p384")
        factory = self._ca("AMD factory CA", "p384", absent, path_length=1)
        rsa_ca = self._ca("AMD PRG-ZOO RSA", "amd-ca", rsa_root, path_length=0)
        ecc_ca = self._ca("AMD PRG-ZOO ECC", "p256", ecc_root, path_length=0)
        held = _anchors("AMD", rsa_root, ecc_root, factory) + _intermediates("AMD", rsa_ca, ecc_ca)
        return Vendor(name="AMD", held=held, rsa=rsa_ca, ecc=ecc_ca)

    def _ifx(self) -> Vendor:
        """An RSA-4096 and a P-521 root, a row of issuing CAs below each."""
        rsa_root = self._ca("IFX RSA root", "ifx-root")
        ecc_root = self._ca("IFX ECC root", "p521")
        rsa_cas = [
            self._ca(f"IFX RSA manufacturing CA {i:03}", f"ifx-ca-{i}", rsa_root, path_length=0)
            for i in (1, 2)
        ]
        ecc_cas = [
            self._ca(f"IFX ECC manufacturing CA {i:03}", kind, ecc_root, path_length=0)
            for i, kind in ((1, "p384"), (2, "p256"))
        ]
        held = _anchors("IFX", rsa_root, ecc_root) + _intermediates("IFX", *rsa_cas, *ecc_cas)
        return Vendor(name="IFX", held=held, rsa=rsa_cas[1], ecc=ecc_cas[1])

    def _intc(self) -> Vendor:
        """A root with NULL parameters; below the platform CA three intermediates of this one TPM, kept in its NV."""
        null = CAOptions(null_parameters=True)
        root = self._ca("INTC OnDie root", "p384", options=null)
        platform = self._ca("INTC platform CA", "p384", root, options=null)
        kernel = self._ca("INTC kernel CA 7f3a", "p384", platform, path_length=2)
        rom = self._ca("INTC ROM CA 7f3a", "p384", kernel, path_length=1)
        ptt = self._ca("INTC PTT CA 7f3a", "p384", rom, path_length=0)
        held = _anchors("INTC", root) + _intermediates("INTC", platform)
        return Vendor(name="INTC", held=held, rsa=ptt, ecc=ptt, sent=(kernel, rom, ptt))

    def _msft(self) -> Vendor:
        """An RSA-4096 root, an intermediate that is held, one that is sent."""
        root = self._ca("MSFT RSA root", "msft-root")
        held_ca = self._ca("MSFT security processor CA", "msft-ca", root, path_length=1)
        sent = self._ca("MSFT security processor CA 0042", "msft-own", held_ca, path_length=0)
        held = _anchors("MSFT", root) + _intermediates("MSFT", held_ca)
        return Vendor(name="MSFT", held=held, rsa=sent, ecc=sent, sent=(sent,))

    def _nsg(self) -> Vendor:
        """One root each for RSA and ECC, without path lengths."""
        rsa_root, ecc_root = self._ca("NSG RSA root", "nsg-root"), self._ca("NSG ECC root", "p256")
        rsa_ca = self._ca("NSG RSA EK CA", "nsg-ca", rsa_root)
        ecc_ca = self._ca("NSG ECC EK CA", "p256", ecc_root)
        held = _anchors("NSG", rsa_root, ecc_root) + _intermediates("NSG", rsa_ca, ecc_ca)
        return Vendor(name="NSG", held=held, rsa=rsa_ca, ecc=ecc_ca)

    def _ntc(self) -> Vendor:
        """Roots that issue EK certificates themselves, their name one unsorted RDN."""
        rsa_root, ecc_root = (
            self._ca(
                f"NTC {word} root",
                kind,
                options=CAOptions(
                    attributes=(
                        ("2.5.4.3", f"Zoo NTC root {word}"),
                        ("2.5.4.10", "Zoo NTC"),
                        ("2.5.4.6", "TW"),
                    ),
                    one_rdn=True,
                ),
            )
            for word, kind in (("2111", "ntc-root"), ("2112", "p256"))
        )
        return Vendor(name="NTC", held=_anchors("NTC", rsa_root, ecc_root), rsa=rsa_root, ecc=ecc_root)

    def _stm(self) -> Vendor:
        """An anchor signed by a root that nobody has; intermediates that write its name in another string type."""
        absent = self._ca("STM ultimate root", "stm-ultimate")
        name = (("2.5.4.6", "CH"), ("2.5.4.10", "Zoo STM"), ("2.5.4.3", "Zoo STM TPM ECC root CA 01"))
        rsa_root = self._ca("STM RSA root", "stm-root", absent)
        ecc_root = self._ca("STM ECC root", "p384", absent, options=CAOptions(attributes=name))
        padded = CAOptions(serial=b"\0\0\x40" + hashlib.sha256(b"%d" % self.seed).digest()[:4])
        otherwise = CAOptions(issuer=ecc_root.written_otherwise())
        rsa_ca = self._ca("STM RSA intermediate CA 10", "stm-ca", rsa_root, path_length=0, options=padded)
        ecc_ca = self._ca("STM ECC intermediate CA 01", "p256", ecc_root, path_length=0, options=otherwise)
        held = _anchors("STM", rsa_root, ecc_root) + _intermediates("STM", rsa_ca, ecc_ca)
        return Vendor(name="STM", held=held, rsa=rsa_ca, ecc=ecc_ca)

    # ------------------------------------------------------------ entries

    def _entry(self, vendor: Vendor, template: str, *words: str) -> ZooEntry:
        """Return an entry without a certificate."""
        name = "-".join((vendor.name.lower(), template.lower(), *words))
        chain = tuple(ca.certificate for ca in vendor.sent)
        public, _ = self._eks[template]
        return ZooEntry(
            name=name,
            vendor=vendor.name,
            template=template,
            ek_public=public.tpm2b(),
            certificate=b"",
            chain=chain,
        )

    def _options(self, entry: ZooEntry, **more: object) -> EKCertificateOptions:
        """Return what its certificate says."""
        plain = EKCertificateOptions(
            manufacturer=_MANUFACTURERS[entry.vendor],
            model=f"ZOO-{entry.template}",
            version="id:00070002",
            validity=_VALIDITY,
            seed=int.from_bytes(hashlib.sha256(f"{self.seed} {entry.name}".encode()).digest()),
        )
        return replace(plain, **more)  # type: ignore[arg-type]  # passed on

    def _good(self, vendor: Vendor, template: str) -> Iterator[ZooEntry]:
        public, _ = self._eks[template]
        issuer = vendor.issuer(public)
        entry = self._entry(vendor, template)
        options = self._options(entry)
        yield replace(entry, certificate=issuer.issue_ek_certificate(public, at=AT, options=options))
        for quirk in Quirk:
            if quirk is Quirk.OAEP_SPKI and public.type != Alg.RSA:
                continue
            if quirk is Quirk.NULL_ECDSA_PARAMETERS and not issuer.signs_ecdsa:
                continue
            entry = self._entry(vendor, template, quirk)
            options = self._options(entry, quirks=frozenset({quirk}))
            certificate = issuer.issue_ek_certificate(public, at=AT, options=options)
            yield replace(entry, quirk=quirk, certificate=certificate)
        for ca_quirk in CAQuirk:
            yield self._odd_issuer(vendor, template, ca_quirk)

    def _odd_issuer(self, vendor: Vendor, template: str, quirk: CAQuirk) -> ZooEntry:
        """Return an entry whose certificate was issued by one more intermediate, which has *quirk*."""
        above = self._above(vendor, template)
        entry = self._entry(vendor, template, quirk)
        plain = CAOptions()
        options = {
            CAQuirk.NULL_PARAMETERS: CAOptions(null_parameters=True),
            CAQuirk.UNSORTED_RDN: CAOptions(
                attributes=(("2.5.4.3", f"Zoo {vendor.name} odd"), ("2.5.4.6", "TW")), one_rdn=True
            ),
            CAQuirk.ZERO_PADDED_SERIAL: CAOptions(serial=b"\0\0\x17\x01"),
            CAQuirk.SERIAL_NEGATIVE: CAOptions(serial=b"\x85\x01"),
            CAQuirk.SERIAL_ZERO: CAOptions(serial=b"\0"),
            CAQuirk.PADDING: CAOptions(padding=bytes(100)),
            CAQuirk.LONG_NAME: CAOptions(attributes=(("2.5.4.3", f"Zoo {vendor.name} {'long ' * 20}"),)),
            CAQuirk.NO_EXPIRY: CAOptions(validity=(_BEGAN, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))),
            CAQuirk.NO_KEY_USAGE: CAOptions(key_usage=b""),
            CAQuirk.PSS: CAOptions(pss=True),
            CAQuirk.OTHER_STRINGS: CAOptions(issuer=above.written_otherwise()),
            # Only the key identifier leads on.
            CAQuirk.OTHER_NAME: CAOptions(issuer=self._ca("of another name", "p256").subject),
            CAQuirk.SHA1_ALLOWED: CAOptions(sha1=True),
        }.get(quirk, plain)
        kind = f"{vendor.name.lower()}-odd" if quirk is CAQuirk.PSS else "p256"
        issuer = self._ca(f"{vendor.name} odd CA", kind, above, options=options)
        chain = [issuer.certificate]
        if quirk is CAQuirk.NAMESAKE:
            # Several of one name and one key identifier stand before the right one.
            chain[:0] = [self._namesake(issuer, above, i).certificate for i in range(4)]
        allowed = (_sha256(issuer.certificate),) if quirk is CAQuirk.SHA1_ALLOWED else ()
        public, _ = self._eks[template]
        certificate = issuer.issue_ek_certificate(public, at=AT, options=self._options(entry))
        return replace(entry, quirk=quirk, certificate=certificate, chain=tuple(chain), sha1_allowed=allowed)

    def _namesake(
        self, issuer: CertificateAuthority, parent: CertificateAuthority, i: int
    ) -> CertificateAuthority:
        key = self._ecc_key(f"namesake {i}", 256)
        options = CAOptions(key_identifier=issuer.key_identifier)
        return CertificateAuthority(
            issuer.name, seed=self.seed + 1 + i, parent=parent, at=_BEGAN, key=key, options=options
        )

    def _above(self, vendor: Vendor, template: str) -> CertificateAuthority:
        """Return a CA that is held and may have other CAs below it."""
        public, _ = self._eks[template]
        found = vendor.issuer(public)
        while found.parent is not None and found.path_length is not None:
            found = found.parent
        return found

    def _bad(self, vendor: Vendor, template: str) -> Iterator[ZooEntry]:
        public, _ = self._eks[template]
        issuer = vendor.issuer(public)
        for defect in Defect:
            entry = self._entry(vendor, template, defect)
            more: dict[str, object] = {"defect": defect}
            if defect is Defect.EXPIRED:
                more["validity"] = (AT - timedelta(days=800), AT - timedelta(days=1))
            if defect is Defect.NOT_YET_VALID:
                more["validity"] = (AT + timedelta(days=30000), AT + timedelta(days=36500))
            certificate = issuer.issue_ek_certificate(public, at=AT, options=self._options(entry, **more))
            at_path = defect in (Defect.SHA1, Defect.SIGNATURE_BROKEN, Defect.ISSUER_IS_SUBJECT)
            yield replace(
                _refused(entry, defect, "path" if at_path else "certificate"), certificate=certificate
            )
        for ek_defect in EKDefect:
            yield self._bad_ek(vendor, template, ek_defect)
        for ca_defect in CADefect:
            if ca_defect is CADefect.THOUSAND and (vendor.name, template) != ("NSG", "L-2"):
                continue  # once is enough: they fill a folder
            yield self._bad_path(vendor, template, ca_defect)
        yield from self._bits(vendor, template)

    def _bad_ek(self, vendor: Vendor, template: str, defect: EKDefect) -> ZooEntry:
        public, key = self._eks[template]
        issuer = vendor.issuer(public)
        entry = self._entry(vendor, template, defect)
        changed, by = public, "template"
        more: dict[str, object] = {}
        match defect:
            case EKDefect.TEMPLATE_ATTRIBUTES:
                changed = replace(public, attributes=public.attributes & ~int(Attr.FIXED_TPM))
            case EKDefect.TEMPLATE_POLICY:
                changed = replace(public, auth_policy=bytes(len(public.auth_policy)))
            case EKDefect.TEMPLATE_NAME_ALGORITHM:
                changed = replace(public, name_alg=Alg.SHA384, auth_policy=b"")
            case EKDefect.TEMPLATE_SYMMETRIC:
                assert public.symmetric is not None
                changed = replace(public, symmetric=replace(public.symmetric, key_bits=256))
            case EKDefect.SELF_SIGNED:
                by = "path"
                issuer = CertificateAuthority("Zoo TPM itself", seed=self.seed, at=_BEGAN, key=key)
            case EKDefect.OTHER_VENDOR:
                by = "vendor"
                more["manufacturer"] = _MANUFACTURERS["ATML"]
            case EKDefect.UNKNOWN_VENDOR:
                by = "certificate"
                more["manufacturer"] = "id:5A4F4F00"
            case EKDefect.SIMULATOR:
                by = "certificate"
                more["manufacturer"] = "id:00001014"
        certificate = issuer.issue_ek_certificate(public, at=AT, options=self._options(entry, **more))
        area = parse_tpmt_public(changed.serialise()).tpm2b()
        return replace(_refused(entry, defect, by), certificate=certificate, ek_public=area)

    def _bad_path(self, vendor: Vendor, template: str, defect: CADefect) -> ZooEntry:
        """Return an entry whose certificate was issued by one more intermediate that spoils the path."""
        above = self._above(vendor, template)
        entry = _refused(self._entry(vendor, template, defect), defect, "path")
        maker = vendor.name
        between: list[CertificateAuthority] = []
        match defect:
            case CADefect.OVER_PATH_LENGTH:
                between = [self._ca(f"{maker} narrow CA", "p256", above, path_length=0)]
            case CADefect.IMPOSTOR_ROOT:
                copied = CAOptions(attributes=above.attributes)
                between = [self._ca(f"{maker} impostor", "p256", options=copied)]
            case CADefect.LOOP:
                # Each of the two certifies the other.
                second = self._ca(f"{maker} loop two", "p256", self._ca(f"{maker} loop one", "p256"))
                between = [self._ca(f"{maker} loop one", "p256", second), second]
            case CADefect.TOO_DEEP:
                between = self._tower(vendor, above, 6)
            case CADefect.THOUSAND:
                between = self._tower(vendor, above, 1000)
            case _:
                pass
        options = {
            CADefect.NOT_CA: CAOptions(key_usage=b"\x01\x06"),
            CADefect.NO_CERTIFICATE_SIGNING: CAOptions(key_usage=b"\x01\x02"),
            CADefect.EXPIRED: CAOptions(validity=(_BEGAN, AT - timedelta(days=1))),
            CADefect.NOT_YET_VALID: CAOptions(
                validity=(AT + timedelta(days=30000), AT + timedelta(days=36500))
            ),
            CADefect.UNKNOWN_CRITICAL: CAOptions(unknown_critical=True),
            CADefect.SHA1: CAOptions(sha1=True),
        }.get(defect)
        issuer = self._ca(
            f"{maker} bad CA",
            "ca-1024" if defect is CADefect.WEAK_KEY else "p256",
            between[-1] if between else above,
            ca=defect is not CADefect.NOT_CA,
            options=options,
        )
        last = issuer.certificate
        if defect is CADefect.SIGNATURE_BROKEN:
            last = last[:-1] + bytes([last[-1] ^ 1])
        chain = [*(ca.certificate for ca in between), last]
        if defect is CADefect.MISSING:
            chain = []
        public, _ = self._eks[template]
        certificate = issuer.issue_ek_certificate(public, at=AT, options=self._options(entry))
        return replace(entry, certificate=certificate, chain=tuple(chain))

    def _tower(self, vendor: Vendor, above: CertificateAuthority, height: int) -> list[CertificateAuthority]:
        """Return CAs, each certified by the one before."""
        built = [self._ca(f"{vendor.name} storey 0", "p256", above)]
        for i in range(1, height):
            built.append(self._ca(f"{vendor.name} storey {i}", "p256", built[-1]))
        return built

    def _bits(self, vendor: Vendor, template: str) -> Iterator[ZooEntry]:
        """Yield every quirk with one bit of the signed part changed (N58)."""
        for good in self._good(vendor, template):
            if good.quirk is None:
                continue
            rng = random.Random(f"{self.seed} {good.name}")
            nv = bytearray(good.certificate)
            # The signed part is the first value in the certificate, behind 4 bytes each of two headers.
            begins = nv.index(b"\x30\x82") + 8
            size = int.from_bytes(nv[begins - 2 : begins])
            nv[begins + rng.randrange(size)] ^= 1 << rng.randrange(8)
            yield replace(
                good,
                name=f"{good.name}-bit",
                defect="bit",
                number="N58",
                certificate=bytes(nv),
                accepted=False,
                refused_by="any",
            )


@cache
def _rsa_key(label: str) -> rsa.RSAPrivateKey:
    primes = json.loads(files("attestation_testing").joinpath("ek_zoo_keys.json").read_text(encoding="utf-8"))
    p, q = (int(prime, 16) for prime in primes[label])
    d = pow(65537, -1, (p - 1) * (q - 1))
    numbers = rsa.RSAPrivateNumbers(
        p=p,
        q=q,
        d=d,
        dmp1=d % (p - 1),
        dmq1=d % (q - 1),
        iqmp=pow(q, -1, p),
        public_numbers=rsa.RSAPublicNumbers(65537, p * q),
    )
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)  # ours; the check takes 0.3 s


def _anchors(vendor: str, *cas: CertificateAuthority) -> tuple[ZooCA, ...]:
    return tuple(_held(vendor, "anchor", ca) for ca in cas)


def _intermediates(vendor: str, *cas: CertificateAuthority) -> tuple[ZooCA, ...]:
    return tuple(_held(vendor, "intermediate", ca) for ca in cas)


def _held(vendor: str, role: str, ca: CertificateAuthority) -> ZooCA:
    words = ca.name.removeprefix("Zoo ").lower().replace(" ", "-")
    return ZooCA(name=words, vendor=vendor, role=role, der=ca.certificate)


def _refused(entry: ZooEntry, defect: Defect | CADefect | EKDefect, by: str) -> ZooEntry:
    return replace(entry, defect=defect, number=NUMBERS.get(defect), accepted=False, refused_by=by)


def write(zoo: Zoo, entries: Collection[ZooEntry], directory: Path) -> None:
    """Write *entries* and what a verifier needs beside them: DER files, `expected.json`, `README.md`.

    Raises:
        OSError: A file cannot be written.
    """
    cas, chains, members = [], {}, []
    for ca in zoo.held:
        place = f"{ca.role}s/{ca.vendor}/{ca.name}.der"
        _put(directory / place, ca.der)
        cas.append({"file": place, "role": ca.role, "vendor": ca.vendor, "sha256": _sha256(ca.der)})
    for entry in entries:
        _put(directory / f"ek/{entry.name}.nv", entry.certificate)
        _put(directory / f"ek/{entry.name}.tpm2b_public", entry.ek_public)
        for der in entry.chain:
            chains[_sha256(der)] = der
        members.append(
            {
                "name": entry.name,
                "vendor": entry.vendor,
                "template": entry.template,
                "quirk": entry.quirk,
                "defect": entry.defect,
                "number": entry.number,
                "certificate": f"ek/{entry.name}.nv",
                "ek_public": f"ek/{entry.name}.tpm2b_public",
                "chain": [f"chain/{_sha256(der)[:16]}.der" for der in entry.chain],
                "sha1_allowed": list(entry.sha1_allowed),
                "accepted": entry.accepted,
                "refused_by": entry.refused_by or None,
            }
        )
    for sha256, der in chains.items():
        _put(directory / f"chain/{sha256[:16]}.der", der)
    document = {
        "format": FORMAT,
        "seed": zoo.seed,
        "at": AT.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "authorities": cas,
        "entries": members,
    }
    _put(directory / "expected.json", (json.dumps(document, indent=1) + "\n").encode())
    _put(directory / "README.md", _README.format(seed=zoo.seed, count=len(members)).encode())


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_README: Final = """# EK certificate zoo

{count} made-up EK certificates with the CAs that issued them, for testing verifiers. Seed {seed}; the same seed
writes the same bytes. The private keys are published: never trust a certificate of this folder outside a test.

| | |
|---|---|
| `anchors/`, `intermediates/` | what a verifier holds, by vendor (DER) |
| `ek/NAME.nv` | what stands in the NV index of the TPM: the certificate, sometimes wrapped or padded |
| `ek/NAME.tpm2b_public` | public area of the EK (TPM2B_PUBLIC) |
| `chain/` | certificates that the TPM brings along (DER), by the beginning of their SHA-256 |
| `expected.json` | every entry: its files, what is odd or wrong, and what must come of it |

Members of an entry: `quirk` is what is odd, `defect` what is wrong, `number` its number in the negative matrix.
`accepted`: a verifier that knows the quirks of published certificates takes it. `refused_by` says what must notice:
`template` (the EK is none), `certificate` (the profile, or the key is another), `path` (no way to an anchor),
`vendor` (the manufacturer in the certificate is not the anchor's), `any`. `sha1_allowed`: the SHA-256 of certificates
that may be signed over SHA-1; no others may. Judge at any instant from `at` on, for the next eighty years.
"""
