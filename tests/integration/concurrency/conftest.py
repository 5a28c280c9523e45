"""Fixtures of the tests with several workers: each test runs on both databases."""

from tests.fixtures.both import new_database
from tests.fixtures.service import operator, service, start_service

__all__ = ["new_database", "operator", "service", "start_service"]
