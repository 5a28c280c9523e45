"""Delivery of configurations, sealed to the TPM that proved itself (PROTOCOL §5)."""
