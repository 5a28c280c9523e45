"""Registration tokens (PROTOCOL §7)."""
