"""What a machine that boots Talos meets, in a test."""
