"""The service for the agent's tests."""

from tests.fixtures.in_process import local as local
from tests.fixtures.service import start_service as start_service
