"""One module per kind of evidence (RFC 9334), each with five names: MEDIA_TYPE, Unverified…, …Claims, parse, verify.

Kinds are independent of each other. What a caller may believe has another type than what was parsed, and
only `verify` makes it.
"""
