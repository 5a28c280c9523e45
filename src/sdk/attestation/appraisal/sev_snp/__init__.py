"""SEV-SNP evidence: a report, judged by the block `sev_snp` of a policy."""

from attestation.appraisal.sev_snp.judge import CHECKS, judge_claims
from attestation.appraisal.sev_snp.kind import SEV_SNP, Found

__all__ = ["CHECKS", "SEV_SNP", "Found", "judge_claims"]
