"""Requests and answers of the vault's routes (ITL-REFERENCE §9). No answer has a value in it but a sealed one."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from attestation.extension import Rule, Wire
from attestation_extensions.secret_vault.sealing import MAX_VALUE_BYTES

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
MOST_MACHINES = 500

Name = Annotated[str, Field(pattern=NAME_PATTERN, description="Letters, digits, `.`, `_` and `-`")]
Description = Annotated[str, Field(max_length=512)]
Expression = Annotated[
    str,
    Field(
        min_length=1, max_length=Rule.MAX_CHARACTERS, description="CEL over `machine`, `vector` and `quote`"
    ),
]
Text = Annotated[str, Field(min_length=1, max_length=(MAX_VALUE_BYTES + 2) // 3 * 4)]
MachineIds = Annotated[list[str], Field(min_length=1, max_length=MOST_MACHINES)]


class _Valued(Wire):
    value: Text | None = Field(default=None, repr=False)
    encoding: Literal["utf-8", "base64"] = Field(
        default="utf-8", description="How `value` is written; machines get the bytes"
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if self.value is not None and not 0 < len(self._bytes()) <= MAX_VALUE_BYTES:
            raise ValueError(f"a value has 1 to {MAX_VALUE_BYTES} bytes")
        return self

    def _bytes(self) -> bytes:
        assert self.value is not None
        if self.encoding == "utf-8":
            return self.value.encode()
        try:
            return base64.b64decode(self.value, validate=True)
        except binascii.Error:
            raise ValueError("a value in base64 is expected") from None

    def content(self) -> bytes | None:
        """Return the value."""
        return None if self.value is None else self._bytes()


class _Created(_Valued):
    name: Name
    value: Text = Field(repr=False)
    description: Description | None = None
    rule: Expression | None = None
    expires_at: datetime | None = None


class CreateSecret(_Created):
    """A secret of one machine."""


class CreateSharedSecret(_Created):
    """A secret that several machines may have."""


class ChangeSecret(_Valued):
    """What changes; members that are left out stay, and null takes a rule, a description or an end away."""

    description: Description | None = None
    rule: Expression | None = None
    expires_at: datetime | None = None


class _Shown(Wire):
    name: str
    version: int
    description: str | None
    rule: str | None
    encryption_key_id: str | None = Field(description="Name of the key-encryption key of its newest value")
    created_at: datetime
    created_by: str
    last_rotated_at: datetime | None
    expires_at: datetime | None
    last_accessed_at: datetime | None
    access_count: int


class SecretResponse(_Shown):
    """A secret of one machine, without its value."""

    secret_id: str
    machine_id: str


class SecretList(Wire):
    """Secrets of one machine, by name."""

    secrets: list[SecretResponse]
    total: int


class SharedSecretResponse(_Shown):
    """A shared secret, without its value."""

    shared_secret_id: str
    authorized_machine_count: int


class SharedSecretList(Wire):
    """Shared secrets, by name."""

    secrets: list[SharedSecretResponse]
    total: int


class SecretVersion(Wire):
    """A value that is kept, without what it is."""

    version: int
    token_id: str = Field(description="16 hex; the `token_id` of the envelopes that it went out in")
    encryption_key_id: str
    created_at: datetime
    created_by: str


class SecretVersions(Wire):
    """The values that are kept, the newest first; a secret can be set back to them."""

    secret_id: str
    versions: list[SecretVersion]


class RestoreSecret(Wire):
    """Which value becomes the newest again."""

    version: int = Field(ge=1, le=(1 << 31) - 1)


class Machines(Wire):
    """Machines, by id."""

    machine_ids: MachineIds


class Granted(Wire):
    """Machines that may have it now and could not before."""

    granted: int
    machine_ids: list[str]


class Revoked(Wire):
    """Machines that may have it no more."""

    revoked: int
    machine_ids: list[str]


class AccessGrant(Wire):
    """A machine that may have a shared secret."""

    shared_secret_id: str
    machine_id: str
    granted_at: datetime
    granted_by: str
    last_accessed_at: datetime | None
    access_count: int


class AccessGrants(Wire):
    """Who may have it, by id."""

    access_grants: list[AccessGrant]
    total: int


class Reached(Wire):
    """A machine, and whether it would get the value if it asked with the evidence that it showed last."""

    machine_id: str
    hostname: str | None
    released: bool
    why: str | None = Field(description="Why not")


class Preview(Wire):
    """What a release rule means for the fleet as it is."""

    machines: list[Reached] = Field(description="The first 500")
    released: int
    refused: int


class Rewrapped(Wire):
    """How many data keys lie under the newest key-encryption key now, and did not before."""

    rewrapped: int
    unreachable: int = Field(
        description="Those under a key-encryption key that is not set, or that does not open them"
    )
