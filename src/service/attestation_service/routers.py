"""The routes of the service, feature by feature."""

from __future__ import annotations

from typing import Final

from attestation.api import AllowListImport, ConfigEnvelope, Readiness
from attestation_service.acme.routes import public as acme_public
from attestation_service.acme.routes import router as acme
from attestation_service.allow_list.routes import router as allow_list
from attestation_service.approval_rules.routes import router as approval_rules
from attestation_service.approvals.routes import router as approvals
from attestation_service.attest.routes import hot as attest_hot
from attestation_service.attest.routes import router as attest
from attestation_service.audit.routes import public as audit_public
from attestation_service.audit.routes import router as audit
from attestation_service.ca.routes import router as ca
from attestation_service.clusters.routes import router as clusters
from attestation_service.collateral.routes import router as collateral
from attestation_service.configurations.routes import router as configurations
from attestation_service.console.routes import public as console_public
from attestation_service.console.routes import router as console
from attestation_service.console.routes import versioned as console_versioned
from attestation_service.delivery.routes import operators as delivery_operators
from attestation_service.delivery.routes import router as delivery
from attestation_service.discovery.routes import router as discovery
from attestation_service.documentation.routes import router as documentation
from attestation_service.enrollment.routes import machines as enrollment_machines
from attestation_service.enrollment.routes import router as enrollment
from attestation_service.health.routes import router as health
from attestation_service.hsm.routes import controllers as hsm_controllers
from attestation_service.hsm.routes import public as hsm_public
from attestation_service.hsm.routes import router as hsm
from attestation_service.images.routes import router as images
from attestation_service.machines.routes import router as machines
from attestation_service.node_csr.routes import controllers as node_csr_controllers
from attestation_service.node_csr.routes import router as node_csr
from attestation_service.operator_certificates.routes import router as operator_certificates
from attestation_service.pki.routes import hot as pki_hot
from attestation_service.pki.routes import router as pki
from attestation_service.policies.routes import router as policies
from attestation_service.query.routes import router as query
from attestation_service.registration.routes import router as registration
from attestation_service.results.routes import router as results
from attestation_service.runs.routes import controllers as runs_controllers
from attestation_service.runs.routes import router as runs
from attestation_service.stats.routes import router as stats
from attestation_service.tokens.routes import router as tokens
from attestation_service.trust.routes import router as trust
from attestation_service.whoami.routes import router as whoami

HOT: Final = (attest_hot, pki_hot)
ROUTERS: Final = (
    *HOT,
    attest,
    registration,
    enrollment_machines,
    enrollment,
    delivery,
    delivery_operators,
    machines,
    results,
    stats,
    whoami,
    approval_rules,
    approvals,
    tokens,
    allow_list,
    clusters,
    images,
    operator_certificates,
    node_csr_controllers,
    node_csr,
    runs_controllers,
    runs,
    hsm_controllers,
    hsm,
    policies,
    configurations,
    query,
    trust,
    collateral,
    ca,
    audit,
    audit_public,
    pki,
    hsm_public,
    acme,
    acme_public,
    console,
    console_public,
    console_versioned,
    discovery,
    health,
    documentation,
)
"""The hot path first: routes are tried in this order."""

ONLY_NAMED: Final = (AllowListImport, ConfigEnvelope, Readiness)
"""Models that they read or write themselves, and only name in the OpenAPI document."""
