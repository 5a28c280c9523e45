"""Rows to store: valid, distinguishable, nothing in them by accident; and what somebody does beside the store."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from attestation.machines import Anchor, ClockState, EKCertificateInfo, Machine, Role, SeenHardware, Status
from attestation.results import (
    Assurance,
    AttestationResult,
    Failed,
    Flagged,
    Passed,
    Reported,
    Subject,
    Undecided,
    Verdict,
)
from attestation.store import AllowListRow, ApprovalRule, Challenge, ConfigToken, RegistrationToken

NOW = datetime(2026, 11, 21, 3, 42, 0, 123456, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def a_machine(number: int = 1, **changes: Any) -> Machine:
    """Return a pending machine; another number is another machine in every identity."""
    fields: dict[str, Any] = {
        "machine_id": f"{number:08x}-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        "version": 1,
        "status": Status.PENDING_APPROVAL,
        "role": None,
        "cluster_id": "default",
        "ek_fingerprint": f"{number:096x}",
        "ek_public": b"ek" + number.to_bytes(8),
        "ek_source": "pub",
        "ek_template": "L-1",
        "ek_certificate": None,
        "assurance": Assurance.TOFU,
        "ek_chain_ok": False,
        "ek_allow_listed": False,
        "hw_uuid": f"uuid-{number}",
        "hw_mac": f"mac-{number}",
        "hw_serial": f"serial-{number}",
        "hw_product": "product",
        "desired_role": None,
        "hostname": None,
        "assigned_ip": None,
        "registered_from": "192.0.2.1",
        "registered_at": NOW,
        "attested_at": None,
        "locked_at": None,
        "revoked_at": None,
        "rejected_at": None,
        "wipe_pending": False,
        "wiped_at": None,
        "config_owed_since": None,
        "ak_public": b"ak" + number.to_bytes(8),
        "ak_name": b"\x00\x0b" + number.to_bytes(32),
        "ak_activated_at": NOW,
        "clock": None,
        "last_verdict": None,
        "last_result_at": None,
        "last_policy": None,
        "last_failed": None,
        "last_result_key": None,
        "trust_expires_at": None,
        "directive_sha256": None,
        "desired_cluster_id": "default",
    }
    fields |= changes
    tpm = Anchor(**{each.name: fields.pop(each.name) for each in dataclasses.fields(Anchor)})
    return Machine(**fields, anchor=tpm)


def a_full_machine(number: int = 1) -> Machine:
    """Return a machine in which every field has a value that no other field has."""
    return a_machine(
        number,
        version=7,
        status=Status.LOCKED,
        role=Role.CONTROLPLANE,
        cluster_id="cluster-x",
        ek_source="cert",
        ek_certificate=EKCertificateInfo(
            subject="CN=Größe", manufacturer="id:00001014", model="m", firmware="f", sha256="ab" * 32
        ),
        assurance=Assurance.EK_ALLOWLIST,
        ek_chain_ok=True,
        ek_allow_listed=True,
        desired_role=Role.WORKER_APP,
        hostname="cp-1",
        assigned_ip="10.0.0.11/24",
        attested_at=NOW + 1 * MINUTE,
        locked_at=NOW + 2 * MINUTE,
        revoked_at=NOW + 3 * MINUTE,
        rejected_at=NOW + 4 * MINUTE,
        wipe_pending=True,
        wiped_at=NOW + 5 * MINUTE,
        config_owed_since=NOW + 20 * MINUTE,
        config_failure="no base configuration",
        ak_activated_at=NOW + 6 * MINUTE,
        clock=ClockState(
            clock_ms=(1 << 64) - 1,
            reset_count=(1 << 32) - 1,
            restart_count=(1 << 32) - 2,
            safe=True,
            firmware_version=(1 << 64) - 2,
        ),
        last_verdict=Verdict.FAILED,
        last_result_at=NOW + 7 * MINUTE,
        last_policy="workers@3",
        last_failed="pcr7",
        last_result_key="key",
        trust_expires_at=NOW + 8 * MINUTE,
        event_log_sha256="cd" * 32,
        hardware=SeenHardware(kind="sev_snp", chip=b"\x07" * 64, guest=b"\x01" * 32, csp_id="CN=a"),
        vouched_by_hardware=True,
        heartbeat_missed_at=NOW + 9 * MINUTE,
        firmware_attested=(1 << 64) - 3,
        firmware_blocked="CVE-2017-15361",
        desired_cluster_id="cluster-y",
        alarm="two of it",
        unlock_pending=True,
        pinned_keys=b"\x0b" * 32,
        last_result_from="2001:db8::9",
        shares_names=True,
        directive_sha256=b"d" * 32,
    )


def a_challenge(number: int = 1, **changes: Any) -> Challenge:
    """Return an unredeemed attest challenge for machine 1."""
    fields: dict[str, Any] = {
        "challenge_id": f"{number:032x}",
        "purpose": "attest",
        "machine_id": a_machine().machine_id,
        "ek_fingerprint": a_machine().tpm.ek_fingerprint,
        "nonce": number.to_bytes(32),
        "pcr_selection": '{"sha256":[0,1]}',
        "policy_ref": "workers@3",
        "issued_at": NOW,
        "expires_at": NOW + MINUTE,
    }
    return Challenge(**(fields | changes))


def an_approval_rule(**changes: Any) -> ApprovalRule:
    """Return a rule that two people made and nobody has enabled."""
    fields: dict[str, Any] = {
        "name": "rack-4",
        "expression": "true",
        "role": Role.WORKER_APP,
        "cluster_id": "default",
        "hostname": None,
        "minimum_assurance": Assurance.EK_CHAIN,
        "max_count": 2,
        "used": 0,
        "priority": 100,
        "enabled": False,
        "created_at": NOW,
        "created_by": "alice",
        "changed_at": NOW,
        "changed_by": "alice",
    }
    return ApprovalRule(**(fields | changes))


def a_registration_token(number: int = 1, **changes: Any) -> RegistrationToken:
    """Return an unused token of two uses for any cluster."""
    fields: dict[str, Any] = {
        "token_id": f"{number:016x}",
        "token_sha256": number.to_bytes(32),
        "role": Role.WORKER_INFRA,
        "hostname": "w-1",
        "assigned_ip": "10.0.0.12/24",
        "cluster_id": None,
        "uses": 2,
        "uses_left": 2,
        "created_at": NOW,
        "created_by": "alice",
        "expires_at": NOW + 60 * MINUTE,
    }
    return RegistrationToken(**(fields | changes))


def a_config_token(number: int = 1, **changes: Any) -> ConfigToken:
    """Return an unused config token of machine 1."""
    fields: dict[str, Any] = {
        "token_id": f"{number:016x}",
        "token_sha256": number.to_bytes(32),
        "machine_id": a_machine().machine_id,
        "ak_name": a_machine().tpm.ak_name,
        "issued_at": NOW,
        "expires_at": NOW + 60 * MINUTE,
    }
    return ConfigToken(**(fields | changes))


def an_allow_list_row(number: int = 1, **changes: Any) -> AllowListRow:
    """Return an entry for the EK of machine *number*."""
    fields: dict[str, Any] = {
        "ek_fingerprint": f"{number:096x}",
        "role": Role.GENERIC,
        "hostname": "h",
        "assigned_ip": "10.0.0.13/24",
        "cluster_id": "c",
        "note": "rack 1",
        "created_at": NOW,
        "created_by": "bob",
    }
    return AllowListRow(**(fields | changes))


def a_result(number: int = 1) -> AttestationResult:
    """Return a failed result with an outcome of every kind."""
    return AttestationResult(
        verdict=Verdict.FAILED,
        at=NOW + number * MINUTE,
        policy=f"workers@{number}",
        outcomes=(
            Passed("signature", "ES256"),
            Failed("pcr7", "aa", "bb"),
            Flagged("clock", "not safe"),
            Reported("pcr4", "aa", "cc"),
            Undecided("event-log", "absent"),
        ),
        boot_state_appraised=(Subject.FIRMWARE, Subject.KERNEL),
        pcr_digest=f"{number:064x}",
    )


def by_hand(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements of the database's own language beside the store, commit, and return the rows of the last."""
    connecting: Any = psycopg.connect(url) if url.startswith("postgresql:") else None
    with closing(connecting or sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        return list(cursor.fetchall()) if cursor.description else []
