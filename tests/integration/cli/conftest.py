"""The service for the command line's tests, and a home without logins or profiles of whoever runs them."""

from tests.fixtures.in_process import local as local
from tests.unit.cli.conftest import home as home
