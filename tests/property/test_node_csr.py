"""Requests of nodes: no changed bit is approved, and what was built is what is parsed."""

from __future__ import annotations

import base64
from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from attestation.appraisal.node_csr import Decision
from attestation.evidence import node_csr
from attestation.evidence.node_csr import UnverifiedContainer, VMIdentity
from attestation.node_csr import verify_csr
from tests.unit.appraisal.node_csr_kit import AT
from tests.vectors import node_csr as vectors

APPROVED = [name for name in vectors.names() if vectors.expected(name) == "TpmAttested"]
PARTS = [
    field.name for field in fields(UnverifiedContainer) if field.name not in ("event_log", "ak_certificate")
]
"""What a decision rests on. No rule of these cases reads a log, and a certificate is judged before its case is made."""


@given(st.sampled_from(APPROVED), st.sampled_from(PARTS), st.integers(0), st.integers(0, 7))
def test_no_flipped_bit_is_approved(name: str, part: str, where: int, bit: int) -> None:
    """In any part of any good container, a single bit changed is one that nobody vouched for."""
    container = node_csr.parse(vectors.fixture(name))
    value = getattr(container, part)
    if not isinstance(value, bytes):
        return
    changed = bytearray(value)
    changed[where % len(changed)] ^= 1 << bit
    fields_of: dict[str, Any] = {part: bytes(changed)}
    data = replace(container, **fields_of).serialise()
    assert verify_csr(data, vectors.case_of(name), AT).decision is not Decision.APPROVE


@given(st.sampled_from(APPROVED), st.integers(0), st.binary(min_size=1, max_size=3))
def test_no_other_text_is_another_container(name: str, where: int, inserted: bytes) -> None:
    """Bytes put anywhere into the text make it unreadable, or are ends of lines that say nothing, or are denied."""
    data = vectors.fixture(name)
    at = where % (len(data) + 1)
    changed = data[:at] + inserted + data[at:]
    result = verify_csr(changed, vectors.case_of(name), AT)
    if result.decision is Decision.APPROVE:
        assert node_csr.parse(changed) == node_csr.parse(data)


@given(
    st.text(max_size=40),
    st.integers(0, (1 << 64) - 1),
    st.text(max_size=40),
    st.binary(max_size=1200),
)
def test_what_is_written_is_what_is_read(zone: str, number: int, name: str, certificate: bytes) -> None:
    """Of every identity and every certificate; of an itl-v1 container with every log."""
    vm = VMIdentity(zone=zone, id=number, name=name, project_id=number, project_name=zone)
    container = node_csr.parse(vectors.fixture("gke-activated"))
    container = replace(container, vm_identity=vm, ak_certificate=certificate or None)
    assert node_csr.parse(container.serialise()) == container
    logged = replace(node_csr.parse(vectors.fixture("good")), event_log=certificate or None)
    assert node_csr.parse(logged.serialise()) == logged
    if certificate:
        assert base64.b64encode(certificate)[:40] in logged.serialise().replace(b"\n", b"")
