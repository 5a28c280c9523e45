"""The attestation control plane: admission, appraisal, sealed delivery and audit over HTTP."""

__version__ = "0.1.0"
