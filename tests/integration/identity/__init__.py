"""Operators who log in at a real identity provider, against a real service."""
