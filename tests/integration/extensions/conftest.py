"""Fixtures of the tests of extensions: each test runs on both databases."""

from tests.fixtures.both import new_database

__all__ = ["new_database"]
