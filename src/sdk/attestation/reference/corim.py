"""Reference values of AMD SEV-SNP in a CoRIM (draft-ietf-rats-corim-10, `tag:amd.com,2024:snp-corim-profile`).

Read strictly: an unsigned CoRIM (CBOR tag 501) of CoMIDs (tag 506) under that profile, in CBOR that is written in the
one shortest way, so that no key stands twice and nothing follows. Only reference triples are taken; endorsed values,
keys and all other triples are none of a policy's. What a policy has no member for is named and left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from attestation.errors import MalformedEvidence
from attestation.wire import cbor_tags

MAX_CORIM_BYTES: Final = 1 << 20
MAX_VALUES: Final = 1024
PROFILE: Final = "tag:amd.com,2024:snp-corim-profile"
CLASS_OID: Final = bytes.fromhex("2b060104019c780301")
"""1.3.6.1.4.1.3704.3.1, contents octets."""
_CORIM, _COMID, _SIGNED = 501, 506, 18
_OID, _URI, _BYTES, _SVN, _MIN_SVN = 111, 32, 560, 552, 553
_SHARING: Final = frozenset({25, 28, 29, 256})
"""Tags by which a value stands in more than one place."""
_SHA384: Final = 7
_DIGEST_BYTES: Final = 48


class _Field(NamedTuple):
    """A field of a report that a measurement names.

    Attributes:
        name: Of the field.
        member: Of block `sev_snp`, a list; empty where a policy has none.
        size: In bytes.
    """

    name: str
    member: str = ""
    size: int = 0


_FIELDS: Final[Mapping[int, _Field]] = {
    0: _Field("VERSION"),
    1: _Field("GUEST_SVN", "min_guest_svn"),
    2: _Field("POLICY"),
    3: _Field("FAMILY_ID", "id_block.family_id", 16),
    4: _Field("IMAGE_ID", "id_block.image_id", 16),
    5: _Field("VMPL"),
    6: _Field("CURRENT_TCB"),
    7: _Field("PLATFORM_INFO"),
    640: _Field("REPORT_DATA"),
    641: _Field("MEASUREMENT", "measurement", _DIGEST_BYTES),
    642: _Field("HOST_DATA", "host_data", 32),
    643: _Field("ID_KEY_DIGEST", "id_block.id_key_digests", _DIGEST_BYTES),
    644: _Field("AUTHOR_KEY_DIGEST", "id_block.author_key_digests", _DIGEST_BYTES),
    645: _Field("REPORT_ID"),
    646: _Field("REPORT_ID_MA"),
    647: _Field("REPORTED_TCB"),
    3328: _Field("CHIP_ID"),
    3329: _Field("COMMITTED_TCB"),
    3330: _Field("CURRENT_VERSION"),
    3936: _Field("COMMITTED_VERSION"),
    3968: _Field("LAUNCH_TCB"),
}
"""Key of a measurement -> field. AMD's profile numbers fields by their place in the report."""


class ReferenceValues(NamedTuple):
    """What a CoRIM says that a policy can demand.

    Attributes:
        corim_id: What it calls itself.
        values: Path of a member of block `sev_snp` -> values, hex, in order; of `min_guest_svn` one number.
        left_out: What stands there and no policy demands, in words.
    """

    corim_id: str
    values: Mapping[str, tuple[str, ...] | int]
    left_out: tuple[str, ...]

    @property
    def block(self) -> dict[str, Any]:
        """The block `sev_snp` of a policy that demands it."""
        block: dict[str, Any] = {}
        for path, value in self.values.items():
            *above, last = path.split(".")
            place = block
            for name in above:
                place = place.setdefault(name, {})
            place[last] = value if isinstance(value, int) else list(value)
        return block


def parse_corim(data: bytes) -> ReferenceValues:
    """Read the reference values of a CoRIM, at most 1 MiB.

    Raises:
        MalformedEvidence: The only way to fail: no CoRIM, signed, of another profile, without a reference value.
    """
    if len(data) > MAX_CORIM_BYTES:
        raise MalformedEvidence(f"CoRIM: longer than {MAX_CORIM_BYTES} bytes")
    corim = _cbor(data, "CoRIM")
    if _tag(corim) == _SIGNED:
        raise MalformedEvidence(
            "CoRIM: signed; its signature is not verified here: take out and check what it signs"
        )
    body = _map(_tagged(corim, _CORIM, "CoRIM"), "CoRIM")
    if _tagged(body.get(3), _URI, "CoRIM: profile") != PROFILE:
        raise MalformedEvidence(f"CoRIM: another profile than {PROFILE}")
    found, left_out = _Values(), dict[str, None]()
    for tagged in _list(body.get(1), "CoRIM: tags"):
        comid = _map(_cbor(_bytes(_tagged(tagged, _COMID, "CoRIM: tag"), "CoMID"), "CoMID"), "CoMID")
        triples = _map(comid.get(4), "CoMID: triples")
        for kind, listed in triples.items():
            if kind == 0:
                for triple in _list(listed, "CoMID: reference triples"):
                    _triple(triple, found, left_out)
            else:
                left_out[f"triples of kind {_shown(kind)}"] = None
    if not found.references:
        raise MalformedEvidence("CoRIM: no measurement and no digest of an identity key to compare with")
    return ReferenceValues(_id(body.get(0)), found.told(), tuple(left_out))


class _Values:
    """What was found, by member."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, None]] = {}
        self._svn: int | None = None

    @property
    def references(self) -> bool:
        return bool(self._lists.keys() & {"measurement", "id_block.id_key_digests"})

    def add(self, member: str, value: bytes) -> None:
        values = self._lists.setdefault(member, {})
        values[value.hex()] = None
        if len(values) > MAX_VALUES:
            raise MalformedEvidence(f"CoRIM: more than {MAX_VALUES} values of {member}")

    def svn(self, value: int) -> None:
        # Each triple holds for its own measurement, a policy for all: only the lowest refuses none of them.
        self._svn = value if self._svn is None else min(self._svn, value)

    def told(self) -> dict[str, tuple[str, ...] | int]:
        lists: dict[str, tuple[str, ...] | int] = {path: tuple(v) for path, v in self._lists.items()}
        return lists if self._svn is None else lists | {"min_guest_svn": self._svn}


def _triple(triple: object, found: _Values, left_out: dict[str, None]) -> None:
    """Read a reference triple: an environment of SEV-SNP, and its measurements."""
    environment, measurements = _pair(triple, "CoMID: reference triple")
    environment = _map(environment, "CoMID: environment")
    class_id = _map(environment.get(0), "CoMID: class").get(0)
    if _bytes(_tagged(class_id, _OID, "CoMID: class"), "CoMID: class") != CLASS_OID:
        raise MalformedEvidence("CoMID: another class than AMD SEV-SNP")
    for measurement in _list(measurements, "CoMID: measurements"):
        read = _map(measurement, "CoMID: measurement")
        key, value = read.get(0), _map(read.get(1), "CoMID: measurement value")
        field = _FIELDS.get(key) if isinstance(key, int) and not isinstance(key, bool) else None
        if field is None:
            raise MalformedEvidence(f"CoMID: measurement {_shown(key)} is no field of a report")
        taken = _take(field, value, found)
        if not taken:
            left_out[field.name] = None


def _take(field: _Field, value: Mapping[Any, Any], found: _Values) -> bool:
    """Take over what a policy has a member for; return whether it has one."""
    what = f"CoMID: {field.name}"
    if field.member == "min_guest_svn":
        svn: Any = value.get(1)
        if _tag(svn) not in (_SVN, _MIN_SVN) or not _is_number(svn.value, 0xFFFF_FFFF):
            raise MalformedEvidence(f"{what}: not a security version number")
        if svn.tag == _SVN:
            # That it is exactly so is more than a policy can say.
            return False
        found.svn(svn.value)
        return True
    if not field.member:
        return False
    if field.member == "measurement":
        for digest in _list(value.get(2), f"{what}: digests"):
            algorithm, octets = _pair(digest, f"{what}: digest")
            if algorithm != _SHA384:
                raise MalformedEvidence(f"{what}: digest by another algorithm than SHA-384")
            found.add(field.member, _sized(octets, field.size, what))
        return True
    octets = _sized(_tagged(value.get(4), _BYTES, what), field.size, what)
    if any(octets):
        # Zeros say that a guest has none; a policy that demands nothing says the same.
        found.add(field.member, octets)
    return any(octets)


# ---------------------------------------------------------------- CBOR


def _cbor(data: bytes, what: str) -> Any:
    """Read CBOR that is written as its reader would write it: shortest, definite, no key twice, nothing behind."""
    # In the extra `tee`: only who imports needs it.
    try:
        import cbor2
    except ImportError as error:
        raise MalformedEvidence("CoRIM: reading one needs the extra `tee` of itl-attestation-sdk") from error
    if _SHARING & cbor_tags(data):
        raise MalformedEvidence(f"{what}: a value that stands in more than one place")
    try:
        value = cbor2.loads(data)
        same = cbor2.dumps(value) == data
    except Exception as error:
        # Whatever its decoders of single tags raise.
        raise MalformedEvidence(f"{what}: no CBOR") from error
    if not same:
        raise MalformedEvidence(f"{what}: CBOR in another than its shortest form, or bytes behind it")
    return value


def _tag(value: object) -> int | None:
    tag = getattr(value, "tag", None)
    return tag if isinstance(tag, int) else None


def _tagged(value: Any, tag: int, what: str) -> Any:
    if _tag(value) != tag:
        raise MalformedEvidence(f"{what}: not tagged {tag}")
    return value.value


def _map(value: object, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise MalformedEvidence(f"{what}: not a map")
    return value


def _list(value: object, what: str) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)) or not value:
        raise MalformedEvidence(f"{what}: not a list of at least one")
    return value


def _pair(value: object, what: str) -> tuple[Any, Any]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise MalformedEvidence(f"{what}: not a pair")
    return value[0], value[1]


def _bytes(value: object, what: str) -> bytes:
    if not isinstance(value, bytes):
        raise MalformedEvidence(f"{what}: not bytes")
    return value


def _sized(value: object, size: int, what: str) -> bytes:
    octets = _bytes(value, what)
    if len(octets) != size:
        raise MalformedEvidence(f"{what}: {len(octets)} bytes, expected {size}")
    return octets


def _is_number(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _shown(value: object) -> str:
    # A number may have more digits than Python writes.
    told = isinstance(value, str | bool) or _is_number(value, 0xFFFF_FFFF)
    return str(value)[:40] if told else type(value).__name__


_ID: Final = re.compile(r"[ -~]{1,128}")


def _id(value: object) -> str:
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    if isinstance(value, bytes) and len(value) == 16:
        return value.hex()
    if isinstance(value, UUID):
        return str(value)
    raise MalformedEvidence("CoRIM: id is neither text of 1 to 128 printable characters nor a UUID")
