"""One attestation result: what it was judged from, what explains it, and a token for others (PROTOCOL §7)."""
