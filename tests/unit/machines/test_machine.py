"""What a machine's last result is worth, and the words of its events."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from attestation.errors import TPMRequired
from attestation.machines import Anchor, Machine, NodeEvent, Status, Trust
from attestation.machines.machine import EPHEMERAL
from attestation.results import Assurance, Verdict
from tests.vectors import forge

AT = datetime(2026, 11, 21, tzinfo=UTC)


def machine(verdict: Verdict | None, expires_at: datetime | None) -> Machine:
    """Return an attested machine with that last result."""
    return Machine(
        machine_id="7a0e3c1e-6a43-4c5b-9d0a-000000000001",
        version=1,
        status=Status.ATTESTED,
        role=None,
        cluster_id="c1",
        anchor=Anchor(
            ek_fingerprint="ab" * 48,
            ek_public=forge.ek_public("L-1"),
            ek_source="nv",
            ek_template="L-1",
            ek_certificate=None,
            ek_chain_ok=False,
            ek_allow_listed=False,
            ak_public=None,
            ak_name=None,
            ak_activated_at=None,
        ),
        assurance=Assurance.TOFU,
        hw_uuid="",
        hw_mac="",
        hw_serial="",
        hw_product="",
        desired_role=None,
        hostname=None,
        assigned_ip=None,
        registered_from=None,
        registered_at=AT,
        attested_at=None,
        locked_at=None,
        revoked_at=None,
        rejected_at=None,
        wipe_pending=False,
        wiped_at=None,
        config_owed_since=None,
        clock=None,
        last_verdict=verdict,
        last_result_at=None,
        last_policy=None,
        last_failed=None,
        last_result_key=None,
        trust_expires_at=expires_at,
        directive_sha256=None,
    )


LATER, EARLIER = AT + timedelta(microseconds=1), AT - timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("verdict", "expires_at", "trust"),
    [
        (None, None, Trust.UNKNOWN),
        (None, LATER, Trust.UNKNOWN),
        (Verdict.INDETERMINATE, LATER, Trust.UNKNOWN),
        (Verdict.FAILED, None, Trust.FAILED),
        (Verdict.FAILED, LATER, Trust.FAILED),
        (Verdict.FAILED, EARLIER, Trust.FAILED),
        (Verdict.VERIFIED, None, Trust.STALE),
        (Verdict.VERIFIED, EARLIER, Trust.STALE),
        (Verdict.VERIFIED, AT, Trust.STALE),
        (Verdict.VERIFIED, LATER, Trust.VERIFIED),
    ],
)
def test_trust(verdict: Verdict | None, expires_at: datetime | None, trust: Trust) -> None:
    """Only a Verified result inside its lease is verified; at the very end of the lease it is stale."""
    assert machine(verdict, expires_at).trust(AT) is trust


def test_age_never_raises_trust() -> None:
    """Waiting makes nothing better."""
    order = [Trust.VERIFIED, Trust.STALE]
    young = machine(Verdict.VERIFIED, AT)
    found = [order.index(young.trust(AT + timedelta(seconds=s))) for s in range(-3, 4)]
    assert found == sorted(found)


def test_events_are_api() -> None:
    """The words that extensions receive."""
    assert {e.value.removeprefix("node.") for e in NodeEvent} == {
        "registered", "configured", "image_created", "provisioned", "online", "decommissioned",
        "heartbeat_missed", "role_changed", "cert_renewed", "attestation_failed", "locked", "unlocked",
        "rejected", "wiped", "firmware_changed", "rebooted", "approval_vote", "alarm",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "template", "tee", "ephemeral"),
    [
        ("nv", "L-1", None, False),
        ("nv", EPHEMERAL, None, False),
        ("sev-snp", "", "sev-snp", False),
        ("tdx", EPHEMERAL, "tdx", True),
    ],
)
def test_what_a_machine_is_known_by(source: str, template: str, tee: str | None, ephemeral: bool) -> None:
    """Its TPM, or its hardware: then nothing of a TPM is to be had of it."""
    known = machine(None, None)
    known = replace(known, anchor=replace(known.anchor, ek_source=source, ek_template=template))
    assert (known.tee, known.ephemeral) == (tee, ephemeral)
    if tee is None:
        assert known.tpm == known.anchor
    else:
        with pytest.raises(TPMRequired):
            known.tpm  # noqa: B018 -- to ask is to fail


def test_hardware_counts_where_it_is_better() -> None:
    """And never less than what else vouches for the machine."""
    known = machine(None, None)
    assert known.vouched_as is Assurance.TOFU
    assert replace(known, vouched_by_hardware=True).vouched_as is Assurance.TEE
    assert (
        replace(known, vouched_by_hardware=True, assurance=Assurance.EK_ALLOWLIST).vouched_as
        is Assurance.EK_ALLOWLIST
    )


@pytest.mark.parametrize(
    ("ek_source", "ek_public", "expected"),
    [("pub", b"", True), ("pub", b"x", False), ("sev-snp", b"", False)],
)
def test_what_a_receipt_alone_tells_of(ek_source: str, ek_public: bytes, *, expected: bool) -> None:
    """It has no key yet; a confidential guest never has an EK."""
    found = machine(None, None)
    anchor = replace(found.anchor, ek_source=ek_source, ek_public=ek_public)
    assert replace(found, anchor=anchor).expected is expected
