"""Reading a policy document member by member (TPM.md §4.6): format `itl-policy/2`, or `itl-tpm-policy/1`.

Format 2 has common members and one block per kind of evidence. A document of format 1 is its common members and its
`tpm` block in one object; both read the same (`flattened`).

A policy is judged when it is written, not when it is used: what this version cannot evaluate is refused by
name, so no rule is ever skipped silently. `attestation.reference.schema` says the same as data;
a test holds the two together.

What was read is a flat table: `pcrs.7`, `secure_boot.dbx_min`, `max_age_seconds` … -> `Stated`. Composition
merges such tables (`attestation.reference.compose`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from attestation.endorsements.vendors import VENDOR_NAMES
from attestation.errors import MalformedEvidence, PolicyInvalid
from attestation.reference.blocks import BLOCKS, COMMON_BLOCKS, Block
from attestation.reference.patterns import (
    MAX_PATTERN,
    MAX_STARS,
    CommandPattern,
    Glob,
    parse_command_pattern,
    parse_glob,
)
from attestation.reference.rules import PCRRule, Source, Stated
from attestation.results import Assurance, Flagged, Passed
from attestation.results.tpm_checks import PCR
from attestation.tpm import bank_alg, digest_size
from attestation.tpm.unmeasured import unmeasured_values
from attestation.wire import canonical_json, hexdecode, named_once

FORMAT: Final = "itl-tpm-policy/1"
FORMAT_2: Final = "itl-policy/2"
TPM: Final = "tpm"
IDENTITY_ONLY_NAME: Final = "identity-only"
MAX_POLICY_BYTES: Final = 65_536
MAX_VALUES: Final = 256
"""Values of `any_of`."""
MAX_DIGESTS: Final = 1024
"""Digests of one list, patterns of one list."""
MAX_TEXT: Final = 256
"""Characters of a reason."""
MAX_DESCRIPTION: Final = 1024
MAX_VERSION: Final = 999_999_999
BANKS: Final = ("sha256", "sha384", "sha512")
MAX_AGE: Final = (30, 604_800)
REATTEST: Final = (5, 86_400)

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_VERSION_WORDS: Final = re.compile(r"(?:0|[1-9][0-9]{0,4})(?:\.(?:0|[1-9][0-9]{0,4})){0,3}\Z")
_REQUIRED: Final = frozenset({"format", "name", "version", "bank", "pcrs"})
COMMON: Final = frozenset(
    {
        "format",
        "name",
        "version",
        "mode",
        "description",
        "assurance",
        "max_age_seconds",
        "reattest_seconds",
    }
)
"""What a policy says whatever the kind of evidence."""
_INDEX_TEXTS: Final = frozenset(str(i) for i in range(24))
_RESETTABLE: Final = frozenset({16, 23})
_BOOT: Final = frozenset(range(16))
_KINDS: Final = frozenset({"any_of", "events", "empty", "ignore"})
VENDORS: Final = frozenset(VENDOR_NAMES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A policy document as read.

    Args:
        name: Its name.
        version: Its version, from 1.
        ref: `name@version`.
        bank: Name of the PCR bank.
        report: Its mode is `report`.
        members: What it states.
        written: The whole document, canonical JSON.
    """

    name: str
    version: int
    ref: str
    bank: str
    report: bool
    members: Mapping[str, Stated]
    written: bytes


def load(data: bytes) -> Mapping[str, object]:
    """Read JSON of at most 64 KiB that is one object and names no member twice, at any depth.

    Raises:
        PolicyInvalid: It is not.
    """
    if len(data) > MAX_POLICY_BYTES:
        refuse(f"longer than {MAX_POLICY_BYTES} bytes")
    try:
        document = json.loads(data, object_pairs_hook=named_once)
    except (ValueError, RecursionError) as e:
        raise PolicyInvalid("policy is not JSON, or names a member twice") from e
    if not isinstance(document, dict):
        refuse("policy is not a JSON object")
    return document


def read(document: Mapping[str, object]) -> Document:
    """Judge every member of *document*.

    Raises:
        PolicyInvalid: With the member and the rule of the format that it breaks.
    """
    if document.get("format", FORMAT) not in (FORMAT, FORMAT_2):
        refuse(f"format is neither {FORMAT} nor {FORMAT_2}")
    original, blocks = document, frozenset[str]()
    if document.get("format") == FORMAT_2:
        blocks = frozenset(all_blocks()) & frozenset(document)
        _judge_blocks(document, blocks)
        document = {"bank": "sha256", "pcrs": {}, **flattened(document)}
    names = frozenset(document) - blocks
    _no_stranger(names, _REQUIRED | frozenset(_READERS) | {"mode"}, "")
    if _REQUIRED - names:
        refuse(f"member {min(_REQUIRED - names)} is missing")
    name, bank, pcrs = document["name"], document["bank"], document["pcrs"]
    if not isinstance(name, str) or not _NAME.match(name):
        refuse("name is not 1 to 63 lower-case letters, digits and hyphens")
    version = _integer(document["version"], "version", 1, MAX_VERSION)
    if bank not in BANKS:
        refuse("bank is not sha256, sha384 or sha512")
    assert isinstance(bank, str)
    source = Source(
        policy=f"{name}@{version}",
        report=_word(document.get("mode", "enforce"), "mode", "enforce", "report") == "report",
    )
    alg = bank_alg(bank)
    size = digest_size(alg)
    if not isinstance(pcrs, Mapping):
        refuse("pcrs is not an object")
    members: dict[str, Stated] = {}
    for index, rule in pcrs.items():
        read_rule = _pcr_rule(index, rule, alg, report=source.report)
        members[f"pcrs.{read_rule.index}"] = Stated(read_rule, rule, source)
    for member, reader in _READERS.items():
        if member in document:
            for path, value, written in reader(member, document[member], size):
                members[path] = Stated(value, written, source)
    for name_of_block in sorted(blocks):
        for member, (value, as_written) in all_blocks()[name_of_block].read(document[name_of_block]).items():
            members[f"{name_of_block}.{member}"] = Stated(value, as_written, source)
    # Every member was judged by now: what is written holds no number that JSON could not carry.
    written = canonical_json(original)
    if len(written) > MAX_POLICY_BYTES:
        refuse(f"longer than {MAX_POLICY_BYTES} bytes")
    return Document(
        name=name,
        version=version,
        ref=source.policy,
        bank=bank,
        report=source.report,
        members=members,
        written=written,
    )


def _judge_blocks(document: Mapping[str, object], blocks: frozenset[str]) -> None:
    """Refuse what is neither a common member nor the block of a kind, and what stands in another place."""
    _no_stranger(frozenset(document), COMMON | blocks | {TPM}, "")
    if TPM in document:
        tpm = document[TPM]
        if not isinstance(tpm, Mapping) or not tpm:
            refuse(f"{TPM} is not an object that states something")
        _no_stranger(frozenset(tpm), (_REQUIRED | frozenset(_READERS)) - COMMON, f"{TPM}: ")
        for name in ("bank", "pcrs"):
            if name not in tpm:
                refuse(f"member {TPM}.{name} is missing")


def all_blocks() -> Mapping[str, Block]:
    """Return every block beside `tpm`, by name."""
    return BLOCKS | COMMON_BLOCKS


def flattened(document: Mapping[str, object]) -> Mapping[str, object]:
    """Return *document* with the members of its `tpm` block beside the common ones, as in format 1."""
    tpm = document.get(TPM) if document.get("format") == FORMAT_2 else None
    common = {name: value for name, value in document.items() if name != TPM}
    return {**common, **tpm} if isinstance(tpm, Mapping) else common


def nested(members: Mapping[str, object]) -> dict[str, object]:
    """Return the document of format 2 with *members*, which stand as in format 1, and blocks of other kinds."""
    beside = COMMON | all_blocks().keys()
    common = {name: value for name, value in members.items() if name in beside}
    return {**common, "format": FORMAT_2, TPM: {n: v for n, v in members.items() if n not in beside}}


def with_blocks(
    document: Mapping[str, object], blocks: Mapping[str, Mapping[str, object]]
) -> dict[str, object]:
    """Return *document*, of either format, as one of format 2 with the members of *blocks* in place of its own."""
    found = dict(document)
    if document.get("format") != FORMAT_2 and "bank" in document:
        found = nested(document)
    for name, members in blocks.items():
        before = found.get(name)
        found[name] = {**before, **members} if isinstance(before, Mapping) else dict(members)
    return {**found, "format": FORMAT_2}


def refuse(message: str) -> NoReturn:
    """Raise `PolicyInvalid`."""
    raise PolicyInvalid(message)


# ---------------------------------------------------------------- PCRs


def _pcr_rule(index_text: object, rule: object, bank: int, *, report: bool) -> PCRRule:
    if not isinstance(index_text, str) or index_text not in _INDEX_TEXTS:
        refuse(f"PCR {str(index_text)[:8]!r} is not a decimal number from 0 to 23")
    index = int(index_text)
    if index in _RESETTABLE:
        refuse(f"PCR {index} can be reset by software and satisfies no rule")
    if index not in _BOOT:
        refuse(f"PCR {index} belongs to a dynamic root of trust, which this version does not appraise")
    what = f"PCR {index}"
    check = PCR[index]
    size = digest_size(bank)
    kinds = frozenset(rule) & _KINDS if isinstance(rule, Mapping) else frozenset()
    if not isinstance(rule, Mapping) or len(kinds) != 1:
        refuse(f"{what} must have exactly one rule: any_of, events, empty or ignore")
    kind = min(kinds)
    _no_stranger(
        frozenset(rule), frozenset({"events", "digests"} if kind == "events" else {kind}), f"{what}: "
    )
    any_of = approved = reason = None
    expected = "anything"
    held: Passed | Flagged = check.passed()
    if kind == "any_of":
        any_of = _digests(rule["any_of"], f"{what}: any_of", size, MAX_VALUES)
        expected = " or ".join(sorted(v.hex() for v in any_of))
    elif kind == "events":
        _word(rule["events"], f"{what}: events", "approved-digests")
        approved = _digests(rule.get("digests"), f"{what}: digests", size, MAX_DIGESTS)
        expected = "only approved events"
    elif kind == "empty":
        if rule["empty"] is not True:
            refuse(f"{what}: empty can only be true")
        any_of = unmeasured_values(bank)
        expected, held = "no measurement", check.passed("no measurement, as expected")
    else:
        reason = _printable(rule["ignore"], f"{what}: ignore must give a reason", MAX_TEXT)
        held = check.flagged(f"ignored: {reason}")
    return PCRRule(
        index=index,
        any_of=any_of,
        approved=approved,
        ignore=reason,
        expected=expected,
        held=held,
        report=report,
    )


# ---------------------------------------------------------------- other members

_Flat = list[tuple[str, object, object]]
"""Path, value as read, value as written."""
_Reader = Callable[[str, object, int], _Flat]


def _object(readers: Mapping[str, _Reader], *required: str) -> _Reader:
    def reader(member: str, value: object, size: int) -> _Flat:
        if not isinstance(value, Mapping) or not value:
            refuse(f"{member} is not an object that states something")
        _no_stranger(frozenset(value), frozenset(readers), f"{member}: ")
        flat = [
            found
            for name in readers
            if name in value
            for found in readers[name](f"{member}.{name}", value[name], size)
        ]
        for name in required:
            if name not in value:
                refuse(f"member {member}.{name} is missing")
        return flat

    return reader


def _clock(member: str, value: object, size: int) -> _Flat:
    # An empty clock is older than the rule that an object says something.
    return [] if value == {} else _object({"safe": _words("required", "flag")})(member, value, size)


def _words(*words: str) -> _Reader:
    def reader(path: str, value: object, _size: int) -> _Flat:
        return [(path, _word(value, path, *words), value)]

    return reader


def _level(path: str, value: object, _size: int) -> _Flat:
    word = _word(value, path, *(level.value for level in Assurance))
    return [(path, Assurance(word), value)]


def _bool(path: str, value: object, _size: int) -> _Flat:
    if not isinstance(value, bool):
        refuse(f"{path} is not true or false")
    return [(path, value, value)]


def _number(low: int, high: int) -> _Reader:
    def reader(path: str, value: object, _size: int) -> _Flat:
        return [(path, _integer(value, path, low, high), value)]

    return reader


def _description(path: str, value: object, _size: int) -> _Flat:
    return [(path, _printable(value, path + " is not text", MAX_DESCRIPTION), value)]


def _sha256_list(path: str, value: object, _size: int) -> _Flat:
    return [(path, frozenset(d.hex() for d in _digests(value, path, 32, MAX_DIGESTS)), value)]


def _bank_list(path: str, value: object, size: int) -> _Flat:
    return [(path, _digests(value, path, size, MAX_DIGESTS), value)]


def _file_list(path: str, value: object, _size: int) -> _Flat:
    texts = _texts(value, path, MAX_DIGESTS)
    if not all(_FILE_DIGEST.match(text) for text in texts):
        refuse(f"{path} lists something that is no SHA-256, SHA-384 or SHA-512 in lower-case hex")
    return [(path, frozenset(texts), value)]


_FILE_DIGEST: Final = re.compile(r"(?:[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128})\Z")


def _patterns(path: str, value: object, _size: int) -> _Flat:
    patterns: list[CommandPattern] = []
    for text in _texts(value, path, MAX_DIGESTS):
        pattern = parse_command_pattern(text)
        if pattern is None:
            refuse(
                f"{path}: {text[:40]!r} is not a pattern: words with one space between two, at most "
                f"{MAX_PATTERN} printable characters and {MAX_STARS} stars in a word"
            )
        patterns.append(pattern)
    return [(path, tuple(patterns), value)]


def _globs(path: str, value: object, _size: int) -> _Flat:
    globs: list[Glob] = []
    for text in _texts(value, path, MAX_DIGESTS):
        glob = parse_glob(text)
        if glob is None or not text.startswith("/"):
            refuse(
                f"{path}: {text[:40]!r} is not a pattern of a path: from /, at most {MAX_PATTERN} printable "
                f"characters and {MAX_STARS} stars"
            )
        globs.append(glob)
    return [(path, tuple(globs), value)]


def _minima(path: str, value: object, _size: int) -> _Flat:
    if not isinstance(value, Mapping) or not value:
        refuse(f"{path} is not an object of vendors and versions")
    flat: _Flat = []
    for vendor, text in value.items():
        if vendor not in VENDORS:
            refuse(f"{path}: {str(vendor)[:8]!r} is not a registered vendor name")
        if not isinstance(text, str) or not _VERSION_WORDS.match(text):
            refuse(f"{path}.{vendor} is not a version of one to four decimal numbers, like 7.63")
        numbers = [int(word) for word in text.split(".")]
        if max(numbers) > 0xFFFF:
            refuse(f"{path}.{vendor}: a number is larger than 65535")
        flat.append((f"{path}.{vendor}", tuple(numbers + [0] * (4 - len(numbers))), text))
    return flat


_READERS: Final[Mapping[str, _Reader]] = {
    "description": _description,
    "secure_boot": _object(
        {
            "required": _bool,
            "db_sha256": _sha256_list,
            "dbx_min": _sha256_list,
            "authorities": _sha256_list,
            "debug": _words("forbid", "flag"),
            "empty_variable": _words("refuse", "off"),
        }
    ),
    "boot": _object(
        {
            "loaders": _bank_list,
            "kernels": _bank_list,
            "initrds": _bank_list,
            "command_lines": _patterns,
        }
    ),
    "ima": _object({"allow": _file_list, "exclude": _globs, "violations": _words("fail", "flag")}, "allow"),
    "event_log": _words("required", "accepted"),
    "log_padding": _words("accepted", "refused"),
    "clock": _clock,
    "firmware": _object({"on_blocklist": _words("fail", "warn"), "min": _minima}),
    "ek_key_attestation": _words("required", "accepted"),
    "assurance": _object({"minimum": _level}),
    "max_age_seconds": _number(*MAX_AGE),
    "reattest_seconds": _number(*REATTEST),
}


# ---------------------------------------------------------------- words, numbers, lists


def _no_stranger(names: frozenset[object], known: frozenset[str], where: str) -> None:
    strangers = sorted(str(name) for name in names - known)
    if strangers:
        refuse(f"{where}unknown member {strangers[0][:40]!r}")


def _word(value: object, what: str, *words: str) -> str:
    if not isinstance(value, str) or value not in words:
        refuse(f"{what} is not {' or '.join(words)}")
    return value


def _integer(value: object, what: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        refuse(f"{what} is not a whole number from {low} to {high}")
    return value


def _printable(value: object, what: str, longest: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        refuse(f"{what} of 1 to {longest} printable characters")
    return value


def _texts(value: object, what: str, most: int) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= most:
        refuse(f"{what} must list 1 to {most} values")
    if not all(isinstance(text, str) for text in value):
        refuse(f"{what} lists something that is not text")
    return value


def _digests(value: object, what: str, size: int, most: int) -> frozenset[bytes]:
    """Return the digests of *size* bytes each; a number of 64 decimal digits is none."""
    try:
        return frozenset(hexdecode(text, what, size_bytes=size) for text in _texts(value, what, most))
    except MalformedEvidence as e:
        raise PolicyInvalid(str(e)) from e
