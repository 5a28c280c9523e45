"""What a process does beside requests: it prepares, listens, supervises, maintains."""
