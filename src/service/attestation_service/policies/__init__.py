"""Policies: immutable versions, and where they apply (TPM.md §4.6)."""
