"""What operators see of machines and do to them (PROTOCOL §7, ITL-REFERENCE §4)."""
