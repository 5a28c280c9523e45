"""Firmware of TPMs that nobody should rely on: published advisories by vendor and version (TPM.md §7).

The list is a data file, `firmware-blocklist.json`, in the format `itl-firmware-blocklist/1`
(docs/evidence/firmware.md); operators may add entries of their own in a file of the same format. Vendor and
version must be trusted before they come here: the vendor from a verified certificate, the version from a
verified attest. What a TPM says of itself as a property is neither.
"""

# Algorithms for: ek-certificate
from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final, TypeVar

from attestation.endorsements.vendors import VENDOR_NAMES
from attestation.errors import BundleInvalid
from attestation.results import Outcome
from attestation.results.tpm_checks import FIRMWARE_BLOCKLIST, FIRMWARE_NOTE
from attestation.tpm.roca import is_roca_weak

FORMAT: Final = "itl-firmware-blocklist/1"
MAX_BYTES: Final = 1 << 20
MAX_ENTRIES: Final = 10_000
_WORDS: Final = 4
"""A version has four u16, most significant first: TPM_PT_FIRMWARE_VERSION_1 ‖ _2."""
_MEMBERS: Final = frozenset({"vendor", "match", "advisory", "affects", "severity", "action"})
_OPTIONAL: Final = frozenset({"fixed", "note"})
_VERSION: Final = re.compile(r"\d{1,5}(\.\d{1,5}){0,3}", re.ASCII)

_Word = TypeVar("_Word", bound=StrEnum)

ROCA: Final = "CVE-2017-15361"


class Affects(StrEnum):
    """What an advisory makes unsafe."""

    RSA_KEYS = "rsa-keys"
    """RSA keys made in the TPM. A machine without any is warned of."""
    ECDSA = "ecdsa"
    """Signing with ECC keys. A machine whose AK is an RSA key is warned of."""
    MEMORY = "memory"
    PHYSICAL = "physical"


class Severity(StrEnum):
    """How bad it is, in the words of CVSS."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Action(StrEnum):
    """What follows for a machine that an advisory applies to."""

    FAIL = "fail"
    WARN = "warn"
    FLAG = "flag"
    """It is told, and changes no verdict and no claim."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from `low` to `high`, both included, as u64.

    Written `7.0-7.61` or `73.4`: words that are left out are any, so `7.61` includes 7.61.65535.65535.
    """

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __str__(self) -> str:
        low, high = (version_words(each).split(".") for each in (self.low, self.high))
        while len(low) > 1 and (low[-1], high[-1]) == ("0", "65535"):
            del low[-1], high[-1]
        return ".".join(low) if low == high else f"{'.'.join(low)}-{'.'.join(high)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """One entry.

    Args:
        vendor: Registered name, e.g. `IFX`.
        match: Versions that it applies to.
        advisory: Its name, e.g. `CVE-2017-15361`.
        affects, severity, action: As the classes.
        fixed: The first version without the fault, for people; None where there is none.
    """

    vendor: str
    match: tuple[VersionRange, ...]
    advisory: str
    affects: Affects
    severity: Severity
    action: Action
    fixed: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocklist:
    """Advisories by vendor.

    Args:
        by_vendor: Registered name -> its advisories.
        sha256: Names this list, hex: of the file, or of the digests of the files it was joined from.
    """

    by_vendor: Mapping[str, tuple[Advisory, ...]]
    sha256: str

    def __len__(self) -> int:
        return sum(map(len, self.by_vendor.values()))

    def joined(self, more: Blocklist) -> Blocklist:
        """Return this list with the entries of *more* after its own."""
        vendors = dict.fromkeys([*self.by_vendor, *more.by_vendor])
        return Blocklist(
            by_vendor={v: self.by_vendor.get(v, ()) + more.by_vendor.get(v, ()) for v in vendors},
            sha256=hashlib.sha256(bytes.fromhex(self.sha256 + more.sha256)).hexdigest(),
        )

    def judge(
        self, *, vendor: str | None, version: int | None, ak_is_ecc: bool, rsa_moduli: Sequence[int]
    ) -> list[Outcome]:
        """Return what published advisories say of a TPM (check 8, `ek-weak`): at most one failure, warning and note.

        Args:
            vendor: Registered name of the manufacturer, from a verified EK certificate or its anchor; None where
                nobody vouches for one.
            version: u64 firmwareVersion of a verified attest under the endorsement hierarchy; None without one.
            ak_is_ecc: The attestation key is an ECC key.
            rsa_moduli: Moduli of EK and AK, where they are RSA keys.
        """
        failed: list[str] = []
        warned: list[str] = []
        noted: list[str] = []
        # 1. By the modulus, whoever made it and whatever the version says: its private half may be known.
        if any(map(is_roca_weak, rsa_moduli)):
            failed.append(f"{ROCA} (an RSA modulus has its fingerprint)")
        # 2. By vendor and version, where both are vouched for. A machine that could choose either would choose well.
        if vendor is not None and version is not None:
            for advisory in self.by_vendor.get(vendor, ()):
                if any(version in versions for versions in advisory.match):
                    told = {Action.FAIL: failed, Action.WARN: warned, Action.FLAG: noted}
                    action = _action(advisory, ak_is_ecc=ak_is_ecc, has_rsa=bool(rsa_moduli))
                    told[action].append(_words(advisory))
        found = f"{vendor} {version_words(version)}: " if vendor is not None and version is not None else ""
        outcomes: list[Outcome] = []
        if failed:
            outcomes.append(
                FIRMWARE_BLOCKLIST.failed("no advisory that rules it out", found + ", ".join(failed))
            )
        if warned:
            outcomes.append(FIRMWARE_BLOCKLIST.flagged(found + ", ".join(warned)))
        if noted:
            outcomes.append(FIRMWARE_NOTE.flagged(found + ", ".join(noted)))
        if found and not failed and not warned:
            outcomes.append(FIRMWARE_BLOCKLIST.passed(found.removesuffix(": ")))
        return outcomes


def _action(advisory: Advisory, *, ak_is_ecc: bool, has_rsa: bool) -> Action:
    """Return what follows: a failure becomes a warning where the machine uses no key of the affected kind."""
    used = {Affects.RSA_KEYS: has_rsa, Affects.ECDSA: ak_is_ecc}.get(advisory.affects, True)
    return Action.WARN if advisory.action is Action.FAIL and not used else advisory.action


def _words(advisory: Advisory) -> str:
    fixed = f", fixed in {advisory.fixed}" if advisory.fixed else ""
    return f"{advisory.advisory} ({advisory.affects}, {advisory.severity}{fixed})"


def version_words(version: int) -> str:
    """Return a u64 firmware version as four decimal words, e.g. `7.61.2785.0`."""
    return ".".join(str(version >> shift & 0xFFFF) for shift in (48, 32, 16, 0))


@cache
def shipped_blocklist() -> Blocklist:
    """Return the list that comes with this package.

    Raises:
        BundleInvalid: The installation is broken.
    """
    return parse_blocklist(files("attestation.endorsements").joinpath("firmware-blocklist.json").read_bytes())


def parse_blocklist(data: bytes) -> Blocklist:
    """Parse a list: JSON, at most 1 MiB and 10 000 entries; a member that is not known is refused.

    Raises:
        BundleInvalid: The only way to fail; it names the entry.
    """
    if len(data) > MAX_BYTES:
        raise BundleInvalid(f"a firmware blocklist of {len(data)} bytes, at most {MAX_BYTES} allowed")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise BundleInvalid("the firmware blocklist is not JSON") from e
    if not isinstance(document, dict) or set(document) != {"format", "entries"}:
        raise BundleInvalid("a firmware blocklist has two members: format and entries")
    entries = document["entries"]
    if document["format"] != FORMAT:
        raise BundleInvalid(f"format is not {FORMAT}")
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise BundleInvalid(f"entries is no list of at most {MAX_ENTRIES}")
    by_vendor: dict[str, tuple[Advisory, ...]] = {}
    for number, entry in enumerate(entries, 1):
        advisory = _parse_entry(entry, f"entry {number}")
        by_vendor[advisory.vendor] = (*by_vendor.get(advisory.vendor, ()), advisory)
    return Blocklist(by_vendor=by_vendor, sha256=hashlib.sha256(data).hexdigest())


def _parse_entry(entry: object, where: str) -> Advisory:
    if not isinstance(entry, dict) or not _MEMBERS <= set(entry) <= _MEMBERS | _OPTIONAL:
        raise BundleInvalid(
            f"{where}: the members are {', '.join(sorted(_MEMBERS))}, and {', '.join(sorted(_OPTIONAL))} if wanted"
        )
    vendor = entry["vendor"]
    # A misspelt vendor would match no TPM, in silence.
    if vendor not in VENDOR_NAMES.values():
        raise BundleInvalid(f"{where}: vendor is not in the TCG registry")
    match = entry["match"]
    if not isinstance(match, list) or not match:
        raise BundleInvalid(f"{where}: match is no list of versions")
    for name in ("advisory", *sorted(_OPTIONAL & set(entry))):
        if not isinstance(entry[name], str) or not entry[name]:
            raise BundleInvalid(f"{where}: {name} is no text")
    return Advisory(
        vendor=vendor,
        match=tuple(_parse_range(text, where) for text in match),
        advisory=entry["advisory"],
        affects=_word(Affects, entry["affects"], where),
        severity=_word(Severity, entry["severity"], where),
        action=_word(Action, entry["action"], where),
        fixed=entry.get("fixed"),
    )


def _word(kind: type[_Word], value: str, where: str) -> _Word:
    try:
        return kind(value)
    except ValueError:
        raise BundleInvalid(f"{where}: expected one of {', '.join(kind)}") from None


def _parse_range(text: object, where: str) -> VersionRange:
    low, dash, high = text.partition("-") if isinstance(text, str) else ("", "", "")
    found = VersionRange(_parse_version(low, 0, where), _parse_version(high if dash else low, 0xFFFF, where))
    if found.low > found.high:
        raise BundleInvalid(f"{where}: a range of versions ends before it begins")
    return found


def _parse_version(text: str, fill: int, where: str) -> int:
    words = [int(word) for word in text.split(".")] if _VERSION.fullmatch(text) else [1 << 16]
    if max(words) > 0xFFFF:
        raise BundleInvalid(f"{where}: a version has one to four numbers up to 65535 joined by dots")
    words += [fill] * (_WORDS - len(words))
    return int.from_bytes(b"".join(word.to_bytes(2) for word in words))
