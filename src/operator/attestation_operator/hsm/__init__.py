"""CA keys in attested hardware, for cert-manager and Kubernetes: `attestation-operator hsm`."""
