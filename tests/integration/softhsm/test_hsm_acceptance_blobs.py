"""K9 of HSM-AND-KUBERNETES §15: whatever is wrong with a wrapped key, one reason, and nothing comes in."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from attestation.errors import UnwrapFailed
from attestation.keys.wrapping import REFUSED
from tests.fixtures.softhsm import SoftHSM, softhsm
from tests.integration.softhsm.test_provision import Place, ca_key

__all__ = ["softhsm"]

pytestmark = pytest.mark.softhsm


def test_k9_each_byte_of_a_wrapped_key(softhsm: SoftHSM) -> None:
    """Each of the 584 bytes changed, a block less, another key that wraps: the same words."""
    place = Place(softhsm)
    blob = place.blob()
    assert len(blob) == 584
    before = place.objects()
    bad = [blob[:at] + bytes((blob[at] ^ 0x01,)) + blob[at + 1 :] for at in range(len(blob))]
    bad.append(blob[:-8])
    bad.append(place.blob(kek=rsa.generate_private_key(65537, 3072).public_key()))
    said = set()
    for each in bad:
        with pytest.raises(UnwrapFailed) as caught:
            place.unwrap(each)
        said.add((type(caught.value), str(caught.value)))
    assert said == {(UnwrapFailed, REFUSED)}
    assert place.objects() == before
    assert place.unwrap(blob).public_key == ca_key().public_key()
