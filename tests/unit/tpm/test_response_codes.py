"""Response codes in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.tpm import response_codes


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0x000, "SUCCESS"),
        (0x100, "INITIALIZE:"),
        (0x101, "FAILURE:"),
        (0x902, "OBJECT_MEMORY:"),
        (0x903, "SESSION_MEMORY:"),
        (0x921, "LOCKOUT:"),
        (0x922, "RETRY:"),
        (0x90A, "TESTING:"),
        (0x0E1, "RESERVED_BITS:"),
        (0x1DF, "parameter 1: INTEGRITY:"),
        (0x2C2, "parameter 2: ATTRIBUTES:"),
        (0x12F, "AUTH_UNAVAILABLE:"),
        (0x182, "handle 1: ATTRIBUTES:"),
        (0xA9D, "session 2: POLICY_FAIL:"),
        (0x98E, "session 1: AUTH_FAIL:"),
        (0x3E0, "parameter 3: TICKET:"),
        (0x18B, "handle 1: HANDLE:"),
        (0x08B, "HANDLE:"),
        (0x500, "vendor-specific"),
        (0x01E, "response code of TPM 1.2"),
        (0x17F, "unknown response code"),
        (0x0BF, "unknown error"),
        (0xB0922, "response code of layer 11: RETRY:"),
    ],
)
def test_codes_are_put_into_words(code: int, text: str) -> None:
    """A code of either format names the error and the parameter, session or handle that it is about."""
    assert response_codes.describe(code).startswith(text)


def test_position_is_taken_off_format_one_only() -> None:
    """What can be compared with a constant is the code without the number of the handle."""
    assert response_codes.without_position(0x18B) == 0x08B
    assert response_codes.without_position(0x9A2) == 0x0A2
    assert response_codes.without_position(0x1C4) == 0x084
    assert response_codes.without_position(0x922) == response_codes.RETRY


def test_only_codes_that_changed_nothing_are_resubmitted() -> None:
    """RETRY, YIELDED and TESTING are sent again, lockout and everything else is not."""
    assert {0x922, 0x908, 0x90A} == response_codes.RESUBMIT
    assert response_codes.LOCKOUT not in response_codes.RESUBMIT


@given(st.integers(0, 0xFFFFFFFF))
def test_every_code_has_words(code: int) -> None:
    """No response code of 32 bits makes describing it fail."""
    assert response_codes.describe(code)
