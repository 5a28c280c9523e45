"""Answers of OCSP, whoever the CA is: how they are signed and kept, and how the keys that sign them are sealed."""
