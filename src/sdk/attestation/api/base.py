"""The base of all wire schemas, and the field types they share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from attestation.errors import RequestInvalid
from attestation.machines.names import canonical_hostname, canonical_interface


def spelled(canonical: Callable[[str], str], text: str) -> str:
    """Return *text* in its one spelling; what has none is refused as a value is."""
    try:
        return canonical(text)
    except RequestInvalid as e:
        raise ValueError(str(e)) from None


CLUSTER_ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
NODE_NONCE_PATTERN = r"^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$"
HOSTNAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$"


class Wire(BaseModel):
    """A JSON object of the API: immutable, unknown members refused.

    Attributes:
        SHOWN_ONCE: It holds a secret that only the first answer shows: nobody keeps it.
    """

    SHOWN_ONCE: ClassVar[bool] = False

    model_config = ConfigDict(extra="forbid", frozen=True)


def _date_first(value: object) -> object:
    if not isinstance(value, datetime) and not (isinstance(value, str) and value[4:5] == "-"):
        raise ValueError("a number is no instant: it is a date and a time, as in 2026-03-09T12:00:00Z")
    return value


Instant = Annotated[AwareDatetime, BeforeValidator(_date_first)]
"""What somebody sends: RFC 3339 §5.6. Seconds since 1970 are refused: pydantic takes them, no schema says so."""

ClusterId = Annotated[str, Field(pattern=CLUSTER_ID_PATTERN, examples=["default"])]
Hostname = Annotated[
    str,
    Field(pattern=HOSTNAME_PATTERN, max_length=253, examples=["cp-1"]),
    AfterValidator(lambda text: spelled(canonical_hostname, text)),
]
ConfirmName = Annotated[
    str,
    Field(
        max_length=253,
        description="What who asks typed to confirm it. Refuse with 409 unless the machine of the path is called so: "
        "its host name, or where it has none the first eight characters of its id",
        examples=["w-1"],
    ),
]
AssignedIP = Annotated[
    str,
    Field(max_length=49, description="Address with prefix length (CIDR)", examples=["10.0.0.11/24"]),
    AfterValidator(lambda text: spelled(canonical_interface, text)),
]
HardwareText = Annotated[
    str,
    Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$", description="A hint for operators; never identity"),
]
Base64 = Annotated[str, Field(max_length=1_400_000, description="Standard base64 with padding")]
Fingerprint = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-fA-F]{64}([0-9a-fA-F]{32})?$",
        description="SHA-384 of the EK's SubjectPublicKeyInfo DER, 96 hex; compared only",
    ),
]
MACHINE_IDS = r"^[0-9a-f-]{36}(,[0-9a-f-]{36}){0,49}$"
"""Ids of machines with commas between, 50 at most."""

MachineId = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        description="UUID, lower case",
        examples=["7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"],
    ),
]
ChallengeId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="16 random bytes, hex")]
Reason = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]*$")]
NodeNonce = Annotated[
    str,
    Field(
        pattern=NODE_NONCE_PATTERN,
        description="32 random bytes that the machine chose for this request, base64; every statement carries them",
    ),
]
