"""The service for the command line's tests."""

from tests.fixtures.in_process import local as local
