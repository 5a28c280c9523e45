"""The audit log: listed and verified, never changed (ITL-REFERENCE §4)."""
