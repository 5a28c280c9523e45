"""Fixtures of the tests with several workers."""

from tests.fixtures.service import operator, service, start_service

__all__ = ["operator", "service", "start_service"]
