"""What several features do to a machine: its names, tokens, leases, events and certificates."""
