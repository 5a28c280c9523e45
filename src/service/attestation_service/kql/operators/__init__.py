"""Operators of pipelines: for each, how it is written, what it means, and what the reference says of it."""
