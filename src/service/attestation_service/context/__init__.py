"""What every request carries: where it came from, who asks, and what it needs as protocols."""
