"""ACME (RFC 8555) before the service's own CA, with `device-attest-01`: certificates for ordinary ACME clients.

`routes` is HTTP; `asked` turns a request into what a handler gets, and what it raises into an ACME problem. A
certificate says what the machine's record says, as every other certificate of a machine does
(`attestation_service.entitlements.certificates`).
"""
