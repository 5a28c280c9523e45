"""What was read at a machine, held against what is known of it."""

from __future__ import annotations

import pytest

from attestation.client.comparing import is_this_tpm
from attestation.errors import RequestInvalid

EK = "0123456789abcdef" * 6


@pytest.mark.parametrize(
    "read", [EK, EK[:16], EK[:17].upper(), " 01:23:45:67:89:AB:CD:EF ", "0123 4567 89ab cdef"]
)
def test_the_beginning_is_enough_however_it_is_written(read: str) -> None:
    """Case, colons and blanks do not matter."""
    assert is_this_tpm(EK, read)


@pytest.mark.parametrize("read", ["1" + EK[1:16], EK[1:17], EK[:15] + "0"])
def test_another_one_is_another_one(read: str) -> None:
    """From the first digit on."""
    assert not is_this_tpm(EK, read)


@pytest.mark.parametrize("read", ["", EK[:15], EK + "0", "g" * 16])
def test_what_tells_no_machines_apart_is_refused(read: str) -> None:
    """Too short, too long, or no hex."""
    with pytest.raises(RequestInvalid):
        is_this_tpm(EK, read)
