"""What a machine may have of us: its name, lease, config tokens, certificates and room; and what is told of it."""
