"""Fixtures of the end-to-end tests."""

from tests.fixtures.service import operator, service, start_service

__all__ = ["operator", "service", "start_service"]
