"""Attestation runs of Kubernetes nodes (CONFIDENTIAL §§2-3)."""
