"""EKs admitted in advance (PROTOCOL §7)."""
