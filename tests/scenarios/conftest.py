"""Fixtures of the scenario tests."""

from tests.fixtures.service import operator, service, start_service

__all__ = ["operator", "service", "start_service"]
