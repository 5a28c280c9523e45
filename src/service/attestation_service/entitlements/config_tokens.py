"""Issuing config tokens: the right to one delivery, given by a proof and never by an approval (PROTOCOL §5)."""

# Algorithms for: bearer-secret
from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from attestation.machines import Machine
from attestation.store import ConfigToken, Tx
from attestation_service.settings import Settings

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token as the node gets it: once."""

    token: str
    url: str


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A token that nobody can use before it is stored."""

    issued: IssuedToken
    stored: ConfigToken


def issue(tx: Tx, machine: Machine, settings: Settings, at: datetime) -> IssuedToken:
    """Issue a config token to the activated AK of *machine*; the tokens before it lose their right."""
    made = make(machine, settings, at)
    store(tx, made, at)
    return made.issued


def make(machine: Machine, settings: Settings, at: datetime) -> MadeToken:
    """Make a config token for the activated AK of *machine*."""
    assert machine.key_name is not None
    token = secrets.token_urlsafe(TOKEN_BYTES)
    return MadeToken(
        IssuedToken(token, f"{settings.service_url}/api/v1/config/{token}"),
        ConfigToken(
            token_id=secrets.token_hex(8),
            token_sha256=sha256(token),
            machine_id=machine.machine_id,
            ak_name=machine.key_name,
            issued_at=at,
            expires_at=at + timedelta(seconds=settings.config_token_ttl_seconds),
        ),
    )


def store(tx: Tx, made: MadeToken, at: datetime) -> None:
    """Give a token that was made its right; the tokens before it lose theirs."""
    tx.config_tokens.withdraw(made.stored.machine_id, at)
    tx.config_tokens.issue(made.stored)


def failed(tx: Tx, machine_id: str, why: str) -> None:
    """Note *why* a machine that is owed its configuration has none: once, not at each of its attempts."""
    machine = tx.machines.by_id(machine_id)
    if machine is not None and machine.config_owed_since is not None and machine.config_failure != why:
        tx.machines.update(machine, config_failure=why)


def sha256(token: str) -> bytes:
    """Return the form in which tokens are stored, 32 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
