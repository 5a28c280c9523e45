"""Controllers of a Kubernetes cluster, clients of the attestation service; one folder for each family."""
