"""Where requests come in: connections, limits, bodies, and errors as answers."""
