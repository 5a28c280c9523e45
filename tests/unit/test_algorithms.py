"""The inventory of algorithms: what each policy allows, and that nothing is used that it does not name."""

from __future__ import annotations

import pytest

from attestation.algorithms import ALGORITHMS, USES, Policy, Use, demand, permits
from attestation.errors import AlgorithmForbidden


@pytest.mark.parametrize(
    ("policy", "use", "algorithm", "allowed"),
    [
        (Policy.CNSA1, Use.CA, "ecdsa-p384", True),
        (Policy.CNSA1, Use.CA, "ml-dsa-87", False),
        (Policy.CNSA2, Use.CA, "ml-dsa-87", True),
        (Policy.CNSA2, Use.CA, "ecdsa-p384", False),
        (Policy.CNSA1, Use.EK, "rsa-2048", False),
        (Policy.CNSA2, Use.EK, "ecdh-p384", True),
        (Policy.CNSA2, Use.LEAF, "rsa-8192", True),
        (Policy.CNSA2, Use.LEAF, "rsa-3071", False),
        (Policy.CNSA1, Use.LEAF, "rsa-3072", True),
        (Policy.DEFAULT, Use.LEAF, "rsa-1024", False),
        (Policy.DEFAULT, Use.LEAF, "DSAPublicKey", False),
    ],
)
def test_what_a_policy_allows(policy: Policy, use: Use, algorithm: str, allowed: bool) -> None:
    """By hand, from the tables of the NSA and the rule for what hardware does not have."""
    assert permits(policy, use, algorithm) == allowed
    if allowed:
        demand(policy, use, algorithm)
    else:
        with pytest.raises(AlgorithmForbidden, match=algorithm):
            demand(policy, use, algorithm)


@pytest.mark.parametrize("use", Use)
def test_every_use_is_described(use: Use) -> None:
    """One row each, of algorithms that the other table knows; `default` allows them all."""
    entry = USES[use]
    assert entry.use is use
    assert set(entry.algorithms) <= ALGORITHMS.keys()
    assert permits(Policy.DEFAULT, use, *entry.algorithms)
