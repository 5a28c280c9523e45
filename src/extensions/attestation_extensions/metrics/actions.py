"""The words of the audit log that have a series of their own.

A list, because an extension writes what it likes there: what is not on it is counted as one. A test holds it against
what the core and our extensions write.
"""

from __future__ import annotations

from typing import Final

_CORE: Final = """
    approval_rule_create approval_rule_disable approval_rule_enable approval_rule_remove
    acme_account_created acme_account_ended acme_key_changed acme_key_made acme_key_revoked acme_validated
    ak_reset alarm allow_list_approved allow_list_import allow_list_remove approval_objected approval_void
    approval_withdrawn approve approve_hardware approve_vote assurance_changed attest attest_failed
    authority_changed break_glass ca_chain ca_created ca_csr ca_import ca_import_key ca_rotate cert_held
    cert_issued cert_refused cert_released cert_revoked cert_voided checkpoint_refused cluster_change
    cluster_create collateral_import collateral_refresh config_delivered configuration_activate
    configuration_import configuration_rewrap console_approved console_denied console_token
    database_accepted database_backed_up
    database_bound delete denied directive_ack export extension_retry heartbeat_missed heartbeat_resumed image import
    hsm_certificate_issued hsm_certificate_revoked hsm_certificate_void hsm_issuer_registered hsm_key_step
    hsm_quote_judged key_refused label lock node_csr_approved node_csr_denied offline_bundle pending_displaced
    pending_purged policy_assign policy_create policy_learn policy_unassign query query_delete query_save
    query_take_over redeliver register reject revoke role_change run_judged run_opened run_sealed
    settings_weakened token_issued token_revoked trust_add trust_distrust trust_restore unlock wipe_ack
"""
_OURS: Final = """
    identity_key_rotated identity_token
    kms_hold kms_refused kms_release kms_retire kms_rewrap kms_rotate kms_seal kms_unhold kms_unseal
    secret_accessed secret_changed secret_created secret_deleted secret_granted secret_refused secret_revoked
    secret_rotated secrets_rewrapped
    webhook_created webhook_deleted webhook_replayed webhook_secret_rotated webhook_tested webhook_updated
"""
ACTIONS: Final = frozenset((_CORE + _OURS).split())
EXTENSION: Final = "extension"
"""What stands for a word of somebody else's extension."""
