"""The table of the kinds of evidence. Another kind is another line."""

from __future__ import annotations

from typing import Any, Final

from attestation.appraisal.azure_hcl import AZURE_HCL
from attestation.appraisal.gpu import GPU
from attestation.appraisal.kind import Kind
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.sgx import SGX
from attestation.appraisal.svsm import SVSM
from attestation.appraisal.tdx import TDX
from attestation.appraisal.tpm import TPM

KINDS: Final[dict[str, Kind[Any, Any, Any]]] = {
    kind.name: kind for kind in (TPM, SEV_SNP, TDX, SGX, AZURE_HCL, SVSM, GPU)
}
"""Name -> kind."""
