"""The attester: proves a machine with its TPM, obeys what is proven to be for it, applies its configuration."""
