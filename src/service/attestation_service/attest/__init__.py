"""Challenge, attestation and acknowledgement (PROTOCOL §§3, 4, 6)."""
