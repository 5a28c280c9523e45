"""Who an operator is. Every operator route asks the one dependency here."""

from attestation_service.auth.operator import Operator, OperatorDep, operator

__all__ = ["Operator", "OperatorDep", "operator"]
