"""Each control of SECURITY.md, deleted on trial: its tests must fail."""
