"""`attestation`: the operator's command line, an API client without a database."""
