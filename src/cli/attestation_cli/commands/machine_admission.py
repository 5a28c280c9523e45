"""`attestation machine approve`, `reject`, `role` and `replace`: who joins, and as what."""

from __future__ import annotations

from typing import TextIO

import click

from attestation.api.operations import OperatorAPI
from attestation.errors import RequestInvalid
from attestation.machines import DEFAULT_CLUSTER, Role
from attestation_cli.commands.machine_inbox import PURCHASED, PURCHASED_COLUMN, choose, purchased_of
from attestation_cli.complete import complete_machine
from attestation_cli.machine_acts import (
    ID,
    REASON,
    REASON_NEEDED,
    YES,
    described,
    machine_act,
    print_concluded,
    reason_of,
    same_fingerprint,
)
from attestation_cli.options import new_proposal_option, printing
from attestation_cli.session import Session, checked, name_of


@click.command()
@click.argument("machines", metavar="[ID]...", nargs=-1, shell_complete=complete_machine)
@click.option(
    "--from",
    "file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help="CSV of several: machine, and as you like hostname, ip, fingerprint. - is stdin.",
)
@click.option(
    "--pending", is_flag=True, help="Choose among those that wait, shown with what there is to decide by."
)
@PURCHASED
@PURCHASED_COLUMN
@click.option("--role", type=click.Choice([r.value for r in Role]), required=True, help="What it becomes.")
@click.option("--hostname", help="The name it gets.")
@click.option("--ip", "assigned_ip", metavar="CIDR", help="The address it gets, e.g. 10.0.0.11/24.")
@click.option(
    "--cluster-id",
    help="The cluster it gets; what it asks for does not count.",
    default=DEFAULT_CLUSTER,
    show_default=True,
)
@click.option(
    "--fingerprint",
    metavar="HEX",
    help="Refuse unless its EK fingerprint begins with this (16 to 96 hex), as read from the machine itself.",
)
@click.option(
    "--accept-ek",
    is_flag=True,
    help="Admit this EK by name, even where no vendor vouches for it; compare --fingerprint first.",
)
@REASON
@click.option("--yes", is_flag=True, help="Do not ask, where there are several.")
@new_proposal_option
@printing
@click.pass_context
def approve(
    ctx: click.Context,
    session: Session,
    machines: tuple[str, ...],
    file: TextIO | None,
    role: str,
    hostname: str | None,
    assigned_ip: str | None,
    cluster_id: str,
    fingerprint: str | None,
    reason: str | None,
    purchased: TextIO | None,
    purchased_column: str | None,
    *,
    pending: bool,
    accept_ek: bool,
    yes: bool,
) -> None:
    """Admit a machine that waits for approval, or several in one role.

    A role demands how well a TPM is vouched for: a controlplane a vendor's chain. Where none does, --accept-ek
    says that you know this very EK; it goes on the allow-list. attestation trust show says what was found.

    A machine that changed since it was looked up is refused. Where dual control asks for several people, this
    is your vote: the answer says how many are missing, until when, and what the others must call.

    Several are shown side by side, and you are asked once. Each is approved by itself; exit code 1 if one was not. To
    admit several EKs by name, the file says the fingerprint of each. With --pending those that wait are shown as in the
    inbox, and you say which.

    \b
    Examples:
      attestation machine approve 7f3a --role worker-app
      attestation machine approve 7f3a c2b1 aa37 --role worker-app
      attestation machine approve --from rack4.csv --role worker-app
      attestation machine approve --pending --purchased orders.csv \\
          --role worker-app
      attestation machine approve 7f3a --role controlplane \\
          --hostname cp-1 --ip 10.0.0.11/24
      attestation machine approve 7f3a --role worker-app \\
          --fingerprint 3010ed0c5ba1d2f4
    """
    from attestation.api import ApproveRequest
    from attestation_cli.batch import MAX_CHARACTERS, Chosen, approve_all, read_chosen

    def request_of(chosen: Chosen, version: int) -> ApproveRequest:
        return checked(
            lambda: ApproveRequest(
                role=Role(role),
                hostname=chosen.hostname,
                assigned_ip=chosen.assigned_ip,
                cluster_id=cluster_id,
                accept_ek=accept_ek,
                reason=reason_of(reason) if reason else None,
                # What we looked at is what we approve: a machine that changed meanwhile is refused.
                expected_version=version,
            )
        )

    is_one = len(machines) == 1 and file is None and not pending
    if not is_one and any(each is not None for each in (hostname, assigned_ip, fingerprint)):
        raise RequestInvalid(
            "a name, an address or a fingerprint is for one machine: a file says those of several"
        )
    if pending:
        if machines or file is not None or accept_ek:
            raise RequestInvalid(
                "--pending asks which machines: name none beside it, and no EK is admitted by name from a list"
            )
        bought = purchased_of(purchased, purchased_column)
        with session.client() as client:
            several = choose(session, client, bought)
            good = approve_all(session, client, several, same_fingerprint, request_of, role, yes=yes)
        ctx.exit(0 if good else 1)
    if purchased is not None or purchased_column is not None:
        raise RequestInvalid("a purchase list is for --pending, or for attestation machine inbox")
    if not is_one:
        several = [Chosen(name) for name in machines]
        if file is not None:
            try:
                several += read_chosen(file.read(MAX_CHARACTERS + 1))
            except (OSError, UnicodeDecodeError) as e:
                raise RequestInvalid(
                    f"{file.name}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}"
                ) from e
        if accept_ek and any(each.fingerprint is None for each in several):
            raise RequestInvalid("--accept-ek for several needs the fingerprint of each, in a file (--from)")
        with session.client() as client:
            good = approve_all(session, client, several, same_fingerprint, request_of, role, yes=yes)
        ctx.exit(0 if good else 1)
    with session.client() as client:
        detail = session.find(client, machines[0])
        if fingerprint is not None:
            same_fingerprint(detail.ek_fingerprint, fingerprint)
        one = Chosen(machines[0], hostname, assigned_ip)
        answer = client.approve(detail.machine_id, request_of(one, session.seen(detail.version)))
    print_concluded(session, f"approved as {role}", detail, answer)


@machine_act(OperatorAPI.reject, "rejected", question="Reject {}?")
def reject() -> None:
    """Refuse a machine that waits for approval.

    It is told so, and can only begin anew after its record was deleted.

    \b
    Examples:
      attestation machine reject 7f3a -r "we did not order it"
    """


@click.command()
@ID
@click.option("--role", type=click.Choice([r.value for r in Role]), required=True, help="What it becomes.")
@click.option("--hostname", help="The name it gets; without this it keeps its own.")
@click.option(
    "--ip", "assigned_ip", metavar="CIDR", help="The address it gets; without this it keeps its own."
)
@click.option("--cluster-id", help="The cluster it gets; without this it stays where it is.")
@REASON_NEEDED
@YES
@new_proposal_option
@printing
def role(
    session: Session,
    machine: str,
    role: str,
    hostname: str | None,
    assigned_ip: str | None,
    cluster_id: str | None,
    reason: str,
    *,
    yes: bool,
) -> None:
    """Give an admitted machine another role, or move it to another cluster.

    Its config tokens lose their right; it gets the configuration of the new role at its next attestation.

    \b
    Examples:
      attestation machine role worker-2 --role worker-infra -r "moves to storage"
    """
    from attestation.api import RoleChangeRequest

    with session.client() as client:
        detail = session.find(client, machine)
        request = checked(
            lambda: RoleChangeRequest(
                role=Role(role),
                hostname=hostname,
                assigned_ip=assigned_ip,
                cluster_id=cluster_id,
                reason=reason,
                expected_version=session.seen(detail.version),
            )
        )
        session.confirm(f"Make {described(detail)} {role}?", yes=yes)
        answer = client.change_role(detail.machine_id, request)
    print_concluded(session, f"now {role}", detail, answer)


@click.command("replace")
@ID
@click.argument("new", shell_complete=complete_machine)
@click.option(
    "--accept-ek", is_flag=True, help="Admit the EK of NEW by name, even where no vendor vouches for it."
)
@REASON_NEEDED
@YES
@new_proposal_option
@printing
def replace(session: Session, machine: str, new: str, reason: str, *, accept_ek: bool, yes: bool) -> None:
    """Let NEW, a machine that waits for approval, take the place of another one.

    ID is revoked for good; NEW gets its role, its cluster, its host name and its address, in one act. Where the role is
    under dual control this is your vote.

    \b
    Examples:
      attestation machine replace cp-1 7f3a -r "mainboard died"
    """
    from attestation.api import ReplaceRequest

    with session.client() as client:
        old, detail = session.find(client, machine), session.find(client, new)
        request = checked(
            lambda: ReplaceRequest(
                new=detail.machine_id,
                accept_ek=accept_ek,
                reason=reason,
                # What we looked at is what takes the place: a machine that changed meanwhile is refused.
                expected_version=session.seen(detail.version),
            )
        )
        session.confirm(
            f"Revoke {described(old)} for good, and put {described(detail)} in its place?", yes=yes
        )
        answer = client.replace(old.machine_id, request)
    print_concluded(session, f"in place of {name_of(old)}", detail, answer)
