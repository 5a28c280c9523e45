"""Commands of `attestation`, the operator's command line: plug-ins, found by their entry points."""
