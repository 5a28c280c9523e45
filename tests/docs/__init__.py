"""The documentation, tested."""
