"""Certificates of a Kubernetes node whose key is in, or was vouched for by, this machine's TPM.

settings         what the commands `kubelet proxy`, `kubelet bootstrap` and `kubelet credential` are told
kubeconfig       the file by which a node finds its API server; read strictly, written for kubelet
exec_credential  what a client of Kubernetes asks an exec plugin, and what it is answered
api              the three requests that a node makes of the API server
keys             a key in the TPM, or a software key that the TPM certifies
flow             challenge, key, request, evidence, CertificateSigningRequest, certificate: one function for all
issued           what a certificate must be before anything uses it
kept             the files, and the copy of a certificate in NV memory
proxy            nginx on loopback that holds the TPM's key and speaks for kubelet
commands         the commands themselves
"""
