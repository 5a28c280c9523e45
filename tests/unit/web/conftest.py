"""Fixtures of the tests of the dashboard."""

from tests.fixtures.web import dashboard

__all__ = ["dashboard"]
