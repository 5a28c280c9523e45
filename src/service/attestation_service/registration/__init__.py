"""Introduction and proof of a machine (PROTOCOL §§1-2)."""
