"""What a running service says of itself: findings of `attestation_service.inspection`, and its settings."""
