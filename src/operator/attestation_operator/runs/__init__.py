"""Attestation runs of Kubernetes nodes (CONFIDENTIAL.md §§2-5): kinds, controller, agent."""
