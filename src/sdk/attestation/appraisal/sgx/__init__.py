"""SGX evidence: a quote of an enclave, judged by the blocks `sgx` and `tcb` of a policy."""

from attestation.appraisal.sgx.judge import CHECKS, NAMES, enclave_of, judge_claims
from attestation.appraisal.sgx.kind import SGX, Found, UnverifiedSGX

__all__ = ["CHECKS", "NAMES", "SGX", "Found", "UnverifiedSGX", "enclave_of", "judge_claims"]
