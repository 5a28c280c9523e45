"""How the fleet stands, in numbers."""
