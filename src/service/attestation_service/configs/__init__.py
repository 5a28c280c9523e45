"""Configurations as they are kept: in the database, sealed under a key-encryption key, or as files."""
