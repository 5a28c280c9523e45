"""Every algorithm in use, by what it is used for, and what the suites of the NSA say about it (CNSA 1.0 and 2.0)."""
