"""Operators' client certificates: issued by a CA of their own, under dual control, revoked at once (ADR 43)."""
