"""Who an operator or a controller is and what they may. Their routes ask one of the two dependencies here."""

from attestation_service.auth.controller import ControllerDep, controller
from attestation_service.auth.operator import OperatorDep, VoterDep, operator, voter
from attestation_service.context.identity import RIGHTS, Controller, Duty, Method, Operator, Right
from attestation_service.kubernetes_clusters import ControllerDuty

__all__ = [
    "RIGHTS",
    "Controller",
    "ControllerDep",
    "ControllerDuty",
    "Duty",
    "Method",
    "Operator",
    "OperatorDep",
    "Right",
    "VoterDep",
    "controller",
    "operator",
    "voter",
]
