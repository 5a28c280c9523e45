"""The fixtures of HSM-AND-KUBERNETES §24, made by a software TPM: each comes to the reason that is listed for it."""

from __future__ import annotations

import pytest

from attestation.appraisal.node_csr import MAX_MESSAGE_BYTES, Decision
from attestation.node_csr import verify_csr
from tests.unit.appraisal.node_csr_kit import AT, RESULT_ID
from tests.vectors import node_csr as vectors


@pytest.mark.parametrize("name", vectors.names())
def test_each_fixture(name: str) -> None:
    """Denied with exactly the reason listed; row h and the good ones are approved. Row k: the message."""
    result = verify_csr(vectors.fixture(name), vectors.case_of(name), AT)
    assert result.reason == vectors.expected(name), (result.check, result.outcomes[-1])
    assert (result.decision is Decision.APPROVE) == (result.reason == "TpmAttested")
    assert 1 <= len(result.message.encode("ascii")) <= MAX_MESSAGE_BYTES
    assert RESULT_ID in result.message
