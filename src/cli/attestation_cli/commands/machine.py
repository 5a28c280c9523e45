"""`attestation machine …`: the commands about machines, one file for each thing that people do."""

from __future__ import annotations

import click

from attestation_cli.commands.machine_admission import approve, reject, replace, role
from attestation_cli.commands.machine_certificates import certificates_, request_cert
from attestation_cli.commands.machine_delivery import offline_bundle, redeliver
from attestation_cli.commands.machine_end import delete, lock, revoke, unlock, wipe
from attestation_cli.commands.machine_import import import_
from attestation_cli.commands.machine_inbox import inbox_
from attestation_cli.commands.machine_keys import ak_activate, ak_reset, approve_hardware
from attestation_cli.commands.machine_labels import label_
from attestation_cli.commands.machine_list import list_, watch
from attestation_cli.commands.machine_results import event_log, results
from attestation_cli.commands.machine_show import explain_, get
from attestation_cli.commands.machine_votes import approvals, withdraw


@click.group("machine")
def group() -> None:
    """List, judge and explain machines.

    ID is a machine's id, the beginning of it (at least 4 characters) or its hostname. What may mean several
    machines does nothing and lists them.

    \b
    Examples:
      attestation machine list --status pending_approval
      attestation machine explain cp-1
      attestation machine approve 7f3a --role worker-app --hostname app-1
    """


for command in (
    *(list_, watch, inbox_, get, explain_, results, event_log, label_),
    *(import_, approve, reject, role, replace, approvals, withdraw),
    *(lock, unlock, revoke, wipe, delete),
    *(ak_activate, ak_reset, approve_hardware, redeliver, offline_bundle, certificates_, request_cert),
):
    group.add_command(command)
