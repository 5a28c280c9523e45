"""What every request passes and every answer carries."""
