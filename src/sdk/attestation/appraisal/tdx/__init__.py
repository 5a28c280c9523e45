"""TDX evidence: a quote, judged by the blocks `tdx` and `tcb` of a policy."""

from attestation.appraisal.tdx.judge import CHECKS, NAMES, judge_claims, td_of
from attestation.appraisal.tdx.kind import TDX, Found, UnverifiedTDX, state_of

__all__ = ["CHECKS", "NAMES", "TDX", "Found", "UnverifiedTDX", "judge_claims", "state_of", "td_of"]
