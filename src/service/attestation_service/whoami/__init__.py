"""Whom the service takes an operator for."""
