"""Each operation says whom it is for: people whose right holds everywhere, or in some clusters.

Who adds one writes it here. What says nothing is for the fleet, so that a new one opens nothing by accident.
"""

from __future__ import annotations

from typing import Any, Final

from attestation_service.auth import Right
from attestation_service.context.reach import REACH_KEY
from attestation_service.context.request import ACCESS_KEY
from tests.contract.test_operations import ROUTES

_CLUSTER = """
    list_machines get_machine get_machine_keys label_machine approve_machine reject_machine lock_machine
    unlock_machine change_role revoke_machine replace_machine reset_ak approve_hardware redeliver_config
    delete_machine list_results get_result get_event_log get_ima_log get_result_token list_machine_approvals
    list_machine_certificates get_effective_policy list_proposals get_proposal object_to_proposal
    create_registration_token list_registration_tokens revoke_registration_token import_allow_list
    list_allow_list remove_from_allow_list list_policies list_policy_history assign_policy unassign_policy
    roll_back_policy list_clusters get_cluster change_cluster
"""
CLUSTER: Final = frozenset(_CLUSTER.split())
"""Its handler keeps to the clusters of whoever asks; tests/unit/service/test_reach.py says how for each."""

_ANY = """
    whoami get_policy_schema get_policy withdraw_approval
"""
ANY: Final = frozenset(_ANY.split())
"""About no cluster: about the caller, or a document that names none."""

_FLEET = """
    activate_configuration activate_patch approve_console_code attention audit_entries_tile check_ca
    create_approval_rule create_cluster create_policy delete_query delete_shared_query deny_console_code
    diff_configurations diff_patches disable_approval_rule distrust_certificate enable_approval_rule
    export_audit get_configuration get_console_code get_dead_letter get_patch get_query_schema
    health_findings import_ca_certificate import_ca_key import_collateral import_configuration
    import_patch import_receipt issue_image judge_quote_attestation learn_policy list_acme_accounts
    list_acme_keys list_acme_orders list_advisories list_approval_rules list_audit list_certificates
    list_collateral list_configurations list_console_codes list_dead_letters list_extensions
    list_hsm_certificates list_hsm_issuers list_node_csr_decisions list_operator_certificates
    list_patches list_quote_attestations list_refused_keys list_saved_queries list_settings
    list_unknown_issuers make_acme_key make_ca_import_key offline_bundle preview_configuration
    preview_upgrade query read_run_bundle refresh_collateral refuse_key remove_approval_rule
    request_ca_certificate request_operator_certificate restore_certificate retry_dead_letters
    revoke_acme_account revoke_acme_key revoke_certificate revoke_hsm_certificate
    revoke_operator_certificate rewrap_configurations roll_back_configuration roll_back_patch rotate_ca
    save_query show_ca show_certificate show_endorsement show_trust_bundle show_trust_certificate stats
    take_over_query test_policy trust_certificate try_approval_rule validate_query verify_audit
    verify_ek_certificate
"""
FLEET: Final = frozenset(_FLEET.split())
"""About all clusters, or about what all of them rest on."""


def of_operators() -> dict[str, Any]:
    """Return what each operation for operators declares beside its right."""
    return {
        str(name): route.openapi_extra
        for name, route in ROUTES.items()
        if (route.openapi_extra or {}).get(ACCESS_KEY) in set(Right)
    }


def test_each_operation_is_said_to_be_for_the_fleet_or_for_clusters() -> None:
    """The tables here are what is declared, and each operation is in exactly one of them."""
    found: dict[str, set[str]] = {"fleet": set(), "cluster": set(), "any": set()}
    for name, extra in of_operators().items():
        found[extra.get(REACH_KEY, "fleet")].add(name)
    assert found == {"fleet": set(FLEET), "cluster": set(CLUSTER), "any": set(ANY)}
