"""Attestation runs of nodes: kinds of `security.ugallu.io`, their controller, the agent on each node, schedules."""
