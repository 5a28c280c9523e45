"""The database: whether it is ours, and whether it takes writes."""
