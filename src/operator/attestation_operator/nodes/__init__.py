"""Certificates of nodes, rooted in their TPM: who approves, who signs, and what a Node says of its machine.

    approver   decides CertificateSigningRequests as the service judges them
    signer     issues those of our own signer, once somebody approved them
    labels     says on each Node whether its machine is trusted now
    race       finds what would approve without looking at evidence

Each is a pure `reconcile(…) -> actions`; `controllers` gathers what they look at and asks the service.
"""
