"""Collateral of confidential hardware in the hands of operators."""
