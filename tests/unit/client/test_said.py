"""What is wrong with a value is said in words: no regular expression, no name of a class, no word of pydantic's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from attestation.api import AllowListEntry, ApproveRequest, PolicyAssignmentRequest
from attestation.api.said import PATTERNS, pattern_words, said


def why(model: type[BaseModel], **members: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        model(**members)
    return said(refused.value.errors()[0])


def test_words_are_for_people() -> None:
    """What each kind of mistake is called."""
    assert "must be a host name like cp-1" in why(ApproveRequest, role="generic", hostname="not_a_host")
    assert "10.0.0.11/24" in why(ApproveRequest, role="generic", assigned_ip="10.0.0.300/24")
    assert why(ApproveRequest, role="boss").startswith("must be 'controlplane', ")
    assert why(ApproveRequest) == "is missing"
    assert why(ApproveRequest, role="generic", rule="x") == "is not known here"
    assert why(ApproveRequest, role="generic", accept_ek="perhaps") == "must be true or false"
    assert "NAME@VERSION" in why(PolicyAssignmentRequest, policy="workers")
    assert why(AllowListEntry, role="generic", ek_fingerprint="zz") == "must be 96 hex digits, in lower case"
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(ApproveRequest).validate_python([])
    assert said(refused.value.errors()[0]) == "must be an object with members"
    assert pattern_words("^unheard-of$") == "has characters that are not allowed"


@pytest.mark.parametrize("words", [*PATTERNS.values()])
def test_no_words_are_a_pattern(words: str) -> None:
    """Nobody is to read a regular expression; and the words are one clause that a name can stand before."""
    assert words.startswith("must ")
    assert not re.search(r"\[|\\|\^|\$|\{|should match", words)
