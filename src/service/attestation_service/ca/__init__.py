"""Operators and the CAs: keys, the issuance log, rotation (HSM-AND-KUBERNETES §§6-8)."""
