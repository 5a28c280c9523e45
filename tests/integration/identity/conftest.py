"""Fixtures of the tests with an identity provider."""

from tests.fixtures.service import start_service

__all__ = ["start_service"]
