"""Who an operator is and what they may. Every operator route asks the one dependency here."""

from attestation_service.auth.operator import OperatorDep, VoterDep, operator, voter
from attestation_service.context.identity import RIGHTS, Duty, Method, Operator, Right

__all__ = [
    "RIGHTS",
    "Duty",
    "Method",
    "Operator",
    "OperatorDep",
    "Right",
    "VoterDep",
    "operator",
    "voter",
]
