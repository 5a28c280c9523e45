"""What the agent remembers between runs. Nothing in it is secret.

machine.json          which machine this TPM is to the service
service-keys.json     the keys of the service, pinned at the first activation
status                what the service last said in a statement, for other programs on the node
pending-config.json   a sealed configuration that was not applied yet; only this TPM opens it
applied.json          the configurations that were applied, by their token ids: none is applied twice
newest.json           when the newest configuration was made or sent, by file or network: no older file follows it
wipe.json             an order to wipe that was verified and is not carried out yet

Where the directory is lost at a reboot, an order to wipe is kept in a second one, too, once that can be made: the
service does not ask again for what was acknowledged (ADR 210).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from attestation.api import ConfigEnvelope
from attestation.clock import rfc3339
from attestation.keys import JWSRejected, thumbprints
from attestation_agent.exits import ServiceKeysChanged, StateNotKept, UsageError
from attestation_agent.files import remove, write_atomically

_MACHINE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_FINGERPRINT = re.compile(r"[0-9a-f]{96}\Z")
_MAX_FILE_BYTES = 4 << 20
_MAX_APPLIED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAs:
    """Who this TPM is to the service.

    Args:
        machine_id: UUID text.
        ek_fingerprint: SHA-384 of the EK's SPKI DER, 96 hex: another TPM is another machine.
    """

    machine_id: str
    ek_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeOrder:
    """A verified directive to wipe.

    Args:
        directive: Compact JWS.
        acknowledged: The service has our acknowledgement, so the command may run.
    """

    directive: str
    acknowledged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingConfig:
    """A configuration that was fetched under a verified directive and not applied yet.

    Args:
        envelope: Sealed; only this TPM opens it.
        directive: Compact JWS, for the acknowledgement.
        acknowledged: The service heard of a failure already, and hears nothing more.
    """

    envelope: ConfigEnvelope
    directive: str
    acknowledged: bool


class State:
    """The agent's directory.

    Args:
        directory: Made where absent, mode 0700.
        wipe_orders: Where an order to wipe is kept, too; made where absent and its parent is there.

    Raises:
        UsageError: The first of them cannot be used.
    """

    def __init__(self, directory: Path, *, wipe_orders: Path | None = None) -> None:
        self.directory = directory
        self._wipe_orders = wipe_orders
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                raise UsageError(f"state directory {directory} may not be written")
        except OSError as e:
            raise UsageError(f"state directory {directory}: {e.strerror}") from e

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the directory: two agents on one TPM would spend each other's challenges.

        Raises:
            UsageError: Another agent holds it.
        """
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                raise UsageError(f"another agent uses {self.directory}") from e
            yield

    # Who we are

    def known_as(self) -> KnownAs | None:
        """Return who we are to the service; None where we do not know, which introducing ourselves repairs."""
        known = self._read_json("machine.json")
        if not isinstance(known, dict):
            return None
        machine_id, fingerprint = known.get("machine_id"), known.get("ek_fingerprint")
        if not isinstance(machine_id, str) or not isinstance(fingerprint, str):
            return None
        if not _MACHINE_ID.match(machine_id) or not _FINGERPRINT.match(fingerprint):
            return None
        return KnownAs(machine_id=machine_id, ek_fingerprint=fingerprint)

    def remember(self, known: KnownAs, *, at: datetime) -> None:
        """Keep who we are, since the activation at *at*."""
        members = {"machine_id": known.machine_id, "ek_fingerprint": known.ek_fingerprint}
        self._write_json("machine.json", {**members, "activated_at": rfc3339(at)})

    def activated_at(self) -> str | None:
        """Return when the AK was activated last, as it is written: to tell one activation from the next."""
        known = self._read_json("machine.json")
        at = known.get("activated_at") if isinstance(known, dict) else None
        return at if isinstance(at, str) else None

    # Whom we believe

    def service_keys(self) -> dict[str, Any] | None:
        """Return the pinned JWK set, or None before the first use.

        Raises:
            ServiceKeysChanged: The file is there and cannot be read as keys. It is not pinned anew: whoever can
                damage a file must not thereby choose whom we obey.
        """
        if not (self.directory / "service-keys.json").exists():
            return None
        keys = self._read_json("service-keys.json")
        try:
            thumbprints(keys if isinstance(keys, dict) else {})
        except JWSRejected as e:
            file = self.directory / "service-keys.json"
            raise ServiceKeysChanged(f"{file} holds no keys; restore or remove it") from e
        found: dict[str, Any] = keys
        return found

    def pin(self, keys: Mapping[str, Any]) -> None:
        """Pin the keys of the service: at the first activation, and what a key that is pinned names next.

        Raises:
            ServiceKeysChanged: There are none.
        """
        try:
            thumbprints(keys)
        except JWSRejected as e:
            raise ServiceKeysChanged(f"the service shows no keys: {e}") from e
        self._write_json("service-keys.json", {"keys": keys["keys"]})

    # What we were told

    def status(self) -> str | None:
        """Return what the service last said in a statement, or a word of ours for what of it could not be done."""
        try:
            return (self.directory / "status").read_text(encoding="ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def set_status(self, status: str | None) -> None:
        """Keep it, or forget it; written only when it changes."""
        if status is None:
            self._remove("status")
        elif status != self.status():
            self._write("status", f"{status}\n".encode("ascii"))

    def pending_config(self) -> PendingConfig | None:
        """Return the sealed configuration that was fetched and not applied yet."""
        pending = self._read_json("pending-config.json")
        if not isinstance(pending, dict) or not isinstance(pending.get("directive"), str):
            return None
        try:
            envelope = ConfigEnvelope.model_validate(pending.get("envelope"))
        except ValidationError:
            return None
        return PendingConfig(
            envelope=envelope,
            directive=pending["directive"],
            acknowledged=pending.get("acknowledged") is not False,
        )

    def set_pending_config(self, pending: PendingConfig | None) -> None:
        """Keep or forget the sealed configuration."""
        if pending is None:
            self._remove("pending-config.json")
            return
        self._write_json(
            "pending-config.json",
            {
                "envelope": pending.envelope.model_dump(),
                "directive": pending.directive,
                "acknowledged": pending.acknowledged,
            },
        )

    def applied(self) -> list[str]:
        """Return the token ids of the configurations that were applied, the newest last."""
        found = self._read_json("applied.json")
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def add_applied(self, token_id: str) -> None:
        """Note that this configuration was applied."""
        self._write_json("applied.json", [*self.applied(), token_id][-_MAX_APPLIED:])

    def newest_config(self) -> int:
        """Return when the newest configuration was made or sent, in seconds since 1970; 0 where none was."""
        found = self._read_json("newest.json")
        made_at = found.get("made_at") if isinstance(found, dict) else None
        return made_at if isinstance(made_at, int) else 0

    def add_newest_config(self, made_at: int) -> None:
        """Note one of *made_at*; what is newest only rises."""
        self._write_json("newest.json", {"made_at": max(made_at, self.newest_config())})

    def wipe_order(self) -> WipeOrder | None:
        """Return the order to wipe that is not carried out yet."""
        for directory in (self.directory, self._wipe_orders):
            order = _read_json(directory / "wipe.json") if directory is not None else None
            if isinstance(order, dict) and isinstance(order.get("directive"), str):
                return WipeOrder(directive=order["directive"], acknowledged=order.get("acknowledged") is True)
        return None

    def set_wipe_order(self, order: WipeOrder | None) -> None:
        """Keep or forget the order to wipe; what lasts first, so that it never knows less than the other.

        Raises:
            StateNotKept: It cannot be kept where it could be.
        """
        with self._kept():
            for directory in (self._lasting(), self.directory):
                if directory is None:
                    continue
                if order is None:
                    remove(directory / "wipe.json")
                    continue
                said = {"directive": order.directive, "acknowledged": order.acknowledged}
                write_atomically(directory / "wipe.json", json.dumps(said, sort_keys=True).encode("ascii"))

    def _lasting(self) -> Path | None:
        """Return the second directory; None where there is none, or no disk yet on which it would be.

        Raises:
            OSError: It is there, and cannot be used.
        """
        if self._wipe_orders is None:
            return None
        try:
            self._wipe_orders.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.EROFS):
                return None
            raise
        return self._wipe_orders

    def _read_json(self, name: str) -> Any:
        return _read_json(self.directory / name)

    def _write_json(self, name: str, content: Mapping[str, Any] | list[str]) -> None:
        self._write(name, json.dumps(content, sort_keys=True).encode("ascii"))

    def _write(self, name: str, content: bytes) -> None:
        with self._kept():
            write_atomically(self.directory / name, content)

    def _remove(self, name: str) -> None:
        path = self.directory / name
        with self._kept():
            if path.exists():
                remove(path)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StateNotKept(f"state directory {self.directory}: {e.strerror}") from e


def _read_json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
