"""Tests of the dashboard with real processes."""
