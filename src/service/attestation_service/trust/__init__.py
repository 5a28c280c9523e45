"""Operators and the trust bundle: what is in it, what is added, what is distrusted (TPM.md §2.6)."""
