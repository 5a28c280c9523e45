"""Approval at the console of a machine that boots a stock image: the device flow of OAuth 2.0 (RFC 8628)."""
