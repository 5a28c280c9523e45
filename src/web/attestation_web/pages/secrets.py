"""Secrets of the vault: names, rules and who may have them; never a value (extension `secret_vault`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from flask import request

from attestation.errors import Unknown
from attestation_web.extensions import usable
from attestation_web.extensions.vault import NAME, Vault
from attestation_web.page import Column, Page, api, render, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from werkzeug.wrappers import Response

    from attestation_web.extensions.vault import SecretResponse, SharedSecretResponse

PAGE_ROWS: Final = 500
"""As many as the vault lists at once."""

MACHINE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

page: Final = Page(__name__, title="Secrets", under="extensions")

SECRETS: Final = (
    Column(name="name", title="Name"),
    Column(name="version", title="Version", numeric=True),
    Column(name="machines", title="Machines", numeric=True),
    Column(name="rule", title="Release rule"),
    Column(name="rotated", title="Value written"),
    Column(name="accessed", title="Last fetched"),
    Column(name="expires", title="Ends"),
)
GRANTS: Final = (
    Column(name="machine", title="Machine"),
    Column(name="granted", title="Granted"),
    Column(name="by", title="By"),
    Column(name="accessed", title="Last fetched"),
    Column(name="count", title="Times", numeric=True),
)


class NotEnabled(Unknown):
    """The service has no vault."""

    code = "extension-not-enabled"


@page.get("")
def show() -> Response:
    """List shared secrets, or those of one machine."""
    client = api()
    if not usable(client, NAME):
        return render("extensions/absent.html", title="Secrets", name=NAME, docs="secrets")
    machine = request.args.get("machine", "").strip()
    after = request.args.get("after", "")
    fault = "" if not machine or MACHINE.fullmatch(machine) else "The id of a machine is 36 characters."
    found: Sequence[SecretResponse | SharedSecretResponse] = ()
    total = 0
    if machine and not fault:
        own = client.ask(Vault.of_machine, machine, after=after)
        found, total = own.secrets, own.total
    elif not fault:
        every = client.ask(Vault.all_shared, after=after)
        found, total = every.secrets, every.total
    columns = [each for each in SECRETS if each.name != "machines" or not machine]
    more = found[-1].name if len(found) >= PAGE_ROWS else None
    return render(
        "secrets/page.html",
        secrets=table(columns, found, cursor=more, paged=True, total=total),
        machine=machine,
        fault=fault,
    )


@page.get("/shared/<secret_id>")
def shared(secret_id: str) -> Response:
    """Show a shared secret and the machines that may have it."""
    client = api()
    if not usable(client, NAME):
        raise NotEnabled("the extension secret_vault is not enabled in this service")
    after = request.args.get("after", "")
    secret = client.ask(Vault.show_shared, secret_id)
    grants = client.ask(Vault.grants, secret_id, after=after)
    found = grants.access_grants
    more = found[-1].machine_id if len(found) >= PAGE_ROWS else None
    return render(
        "secrets/shared.html",
        secret=secret,
        grants=table(GRANTS, found, cursor=more, paged=True, total=grants.total),
    )
