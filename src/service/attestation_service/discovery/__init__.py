"""What anybody may know of this service: the keys with which it signs."""
