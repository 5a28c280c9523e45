"""Policies: what machines are measured against; written, learned, tried, activated by votes, rolled back."""

from attestation_web.pages.policies import applying, editing, learning, reading, trying
from attestation_web.pages.policies.area import page

__all__ = ["applying", "editing", "learning", "page", "reading", "trying"]
