"""`attestation token …`: registration tokens."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation.machines import DEFAULT_CLUSTER, Role
from attestation.results import Assurance
from attestation_cli.options import FILE_PATH, listing, new_proposal_option, printing, seconds
from attestation_cli.render import Column, cell, moment_cell, span
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import PendingApproval, RegistrationTokenCreated


@click.group("token")
def group() -> None:
    """Registration tokens: whoever presents one, and proves a TPM, is admitted at once.

    \b
    Examples:
      attestation token create --role worker-app --uses 10 --expires-in 12h \\
          --out rack4.token
      attestation token list
    """


@group.command()
@click.option(
    "--role", type=click.Choice([r.value for r in Role]), required=True, help="What a machine becomes."
)
@click.option("--hostname", help="The name it gets; for tokens of one use.")
@click.option("--ip", "assigned_ip", metavar="CIDR", help="The address it gets, e.g. 10.0.0.11/24.")
@click.option(
    "--cluster-id", help="The cluster it gets; what it asks for does not count; default if left out."
)
@click.option(
    "--minimum-assurance",
    type=click.Choice([a.value for a in Assurance if a is not Assurance.NONE]),
    default=Assurance.EK_CHAIN.value,
    show_default=True,
    help="A machine that is vouched for less waits for an operator.",
)
@click.option(
    "--uses", type=click.IntRange(1, 10_000), default=1, show_default=True, help="For so many machines."
)
@click.option(
    "--expires-in",
    "expires_in_seconds",
    callback=seconds,
    default="24h",
    show_default=True,
    help="Number and unit: 90s, 30m, 12h, 7d.",
)
@click.option(
    "--out",
    type=FILE_PATH,
    help="Write the token into this new file, readable by you only, and do not print it.",
)
@new_proposal_option
@printing
def create(
    session: Session,
    role: str,
    hostname: str | None,
    assigned_ip: str | None,
    cluster_id: str | None,
    minimum_assurance: str,
    uses: int,
    expires_in_seconds: int,
    out: Path | None,
) -> None:
    """Issue a token. It is shown this once: the service keeps a hash only.

    With --out it is written to a new file that only you can read, with the digest of the service's keys as the
    agent wants it, and shown nowhere. Where dual control asks
    for several people, this is your vote, and whoever completes the quorum gets the token.

    \b
    Examples:
      attestation token create --role worker-app
      attestation token create --role worker-app --uses 10 --expires-in 12h \\
          --out rack4.token
    """
    from attestation.api import RegistrationTokenRequest

    request = checked(
        lambda: RegistrationTokenRequest(
            role=Role(role),
            hostname=hostname,
            assigned_ip=assigned_ip,
            cluster_id=cluster_id,
            minimum_assurance=Assurance(minimum_assurance),
            uses=uses,
            expires_in_seconds=expires_in_seconds,
        )
    )
    if request.minimum_assurance.level < Assurance.EK_CHAIN.level:
        session.note(
            f"Nobody needs to vouch for a TPM that comes with this token ({minimum_assurance}): "
            "a program that plays one is admitted as well."
        )
    with session.client() as client:
        issue(session, lambda: client.create_registration_token(request), out)


def issue(
    session: Session, ask: Callable[[], RegistrationTokenCreated | PendingApproval], out: Path | None
) -> None:
    """Have a token issued by *ask* and print it, or write it into the new file *out*; or print that others must agree.

    Raises:
        RequestInvalid: The file is there, or cannot be made; nothing was asked.
    """
    from attestation.api import PendingApproval

    # Opened first: a token that cannot be written would be lost, but valid.
    file = None if out is None else _new_file(out)
    try:
        created = ask()
        if out is not None and isinstance(created, PendingApproval):
            out.unlink()
        elif file is not None and not isinstance(created, PendingApproval):
            try:
                with open(file, "wb", closefd=False) as opened:
                    opened.write(f"{_for_agent(created)}\n".encode())
            except OSError as e:
                raise session.unwritten(clean(str(out)), e) from e
    except BaseException:
        if out is not None:
            out.unlink(missing_ok=True)
        raise
    finally:
        if file is not None:
            os.close(file)
    if isinstance(created, PendingApproval):
        session.emit_pending(created, "registration token")
        return
    if session.json:
        session.emit_json({**created.model_dump(mode="json"), **({"token": None} if out else {})})
        return
    rows = [
        ("token id", cell(created.token_id)),
        ("role", cell(created.role)),
        ("cluster", cell(created.cluster_id or DEFAULT_CLUSTER)),
        ("assurance", cell(f"at least {created.minimum_assurance}")),
        ("uses", cell(created.uses)),
        ("expires", moment_cell(created.expires_at, datetime.now(UTC))),
        ("token", cell(f"written to {out}" if out else created.token)),
        ("service keys", cell(created.jwks_sha256 or "-")),
    ]
    session.emit_fields(rows)
    if out is None:
        session.note("The token is not shown again. Whoever has it can admit machines.")
        session.note("Give the agent both: the token, a blank, and the digest of the service's keys.")


def _for_agent(created: RegistrationTokenCreated) -> str:
    """Return what the agent reads from its token file: the token, and whom to believe."""
    return " ".join(filter(None, (created.token, created.jwks_sha256)))


def _new_file(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as e:
        raise RequestInvalid(f"{path}: {e.strerror}") from e


@group.command("list")
@listing
def list_(session: Session) -> None:
    """List tokens, newest first; their secrets are not kept by anybody.

    \b
    Examples:
      attestation token list
    """
    now = datetime.now(UTC)

    def state(revoked_at: datetime | None, expires_at: datetime, uses_left: int) -> str:
        if revoked_at is not None:
            return "revoked"
        if expires_at <= now:
            return "expired"
        return f"valid for {span(expires_at - now)}" if uses_left else "used up"

    with session.client() as client:
        session.emit_list(
            client.registration_tokens(),
            {
                Column("TOKEN ID"): lambda t: t.token_id,
                Column("ROLE"): lambda t: t.role,
                Column("USES LEFT"): lambda t: f"{t.uses_left} of {t.uses}",
                Column("STATE"): lambda t: state(t.revoked_at, t.expires_at, t.uses_left),
                Column("HOSTNAME", shrink_to=8, drop=1): lambda t: t.hostname,
                Column("CLUSTER", shrink_to=8, drop=2): lambda t: t.cluster_id,
                Column("ASSURANCE", drop=5): lambda t: t.minimum_assurance,
                Column("CREATED", drop=3): lambda t: moment_cell(t.created_at, now),
                Column("BY", shrink_to=6, drop=4): lambda t: t.created_by,
                Column("EXPIRES", wide=True): lambda t: moment_cell(t.expires_at, now),
                Column("ADDRESS", wide=True): lambda t: t.assigned_ip,
            },
            "No registration tokens.",
        )


@group.command()
@click.argument("token_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def revoke(session: Session, token_id: str, *, yes: bool) -> None:
    """Make a token useless; machines that it admitted stay.

    \b
    Examples:
      attestation token revoke 5c1f9a02e4b7d810
    """
    with session.client() as client:
        session.confirm(f"Revoke the registration token {clean(token_id)}?", yes=yes)
        client.revoke_registration_token(token_id)
    session.emit_done(f"{clean(token_id)}: revoked", {"token_id": token_id, "revoked": True})
