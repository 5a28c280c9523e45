"""`attestation config …`: the settings of this program, and where each comes from; beside it, those of machines."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import click

from attestation_cli.commands.config_machine import diff_, lint_, preview_
from attestation_cli.commands.config_versions import (
    activate,
    import_,
    list_,
    machine_,
    patch,
    rewrap,
    rollback,
    show_version,
    upgrade_preview,
)
from attestation_cli.login.errors import ConfigInvalid
from attestation_cli.login.profiles import (
    SETTINGS,
    Profile,
    check_value,
    config_path,
    load,
    save,
)
from attestation_cli.options import printing
from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session

PREFERRED = "profile"


@click.group("config")
def group() -> None:
    """Settings of this program, and configurations of machines.

    `show`, `path` and `set` are about this program. For each setting the options are asked first, then the
    environment, the profile, the default. Profiles stand in ~/.itl/config.toml; secrets never do.

    The others are about configurations of machines: `lint` judges a file; `import`, `activate` and `rollback` are
    about versions that the service keeps, `patch` about what one machine gets besides; `preview`, `diff` and `show`
    hide secrets.

    \b
    Examples:
      attestation config show
      attestation config lint worker-app-final.yaml --talos v1.13.9
      attestation --profile prod config set api_url https://attest.example
    """


@group.command()
@click.argument("place", metavar="[CLUSTER/ROLE[@VERSION]]", required=False)
@printing
def show(session: Session, place: str | None) -> None:
    """Show every setting as it applies now, and who said so; a token is named, never shown.

    With CLUSTER/ROLE: that base configuration instead, without its secrets; the version that is delivered where none
    is named.

    \b
    Examples:
      attestation config show
      attestation --profile prod config show -o json
      attestation config show default/worker-app@2
    """
    if place is not None:
        show_version(session, place)
        return
    found = {name: session.setting(name) for name in SETTINGS}
    if session.output_given:
        found["output"] = replace(found["output"], value=session.output, source="--output")
    held, source = _credential(session)
    if session.json:
        session.emit_json(
            {
                "profile": session.profile_name,
                "file": str(config_path()),
                "settings": {name: {"value": r.value, "source": r.source} for name, r in found.items()},
                "credential": {"value": held, "source": source},
            }
        )
        return
    rows: list[list[Cell]] = [
        [cell("profile"), cell(session.profile_name), cell(str(config_path()))],
        *([cell(name), cell(r.value), cell(r.source)] for name, r in found.items()),
        [cell("credential"), cell(held), cell(source)],
    ]
    session.emit_table(
        [Column("SETTING"), Column("VALUE", shrink_to=16), Column("FROM", shrink_to=12)], rows, ""
    )


def _credential(session: Session) -> tuple[str, str]:
    """Return what a command would show to the service, and where it is; never the thing itself."""
    if session.client_certificate is not None:
        return "client certificate", str(session.client_certificate[0])
    if session.token_file is not None:
        return "break-glass token", str(session.token_file)
    if os.environ.get("ITL_ADMIN_TOKEN", "").strip():
        return "break-glass token", "ITL_ADMIN_TOKEN"
    return "login", "attestation auth whoami"


@group.command()
@printing
def path(session: Session) -> None:
    """Print where the file of the settings is.

    \b
    Examples:
      attestation config path
      "$EDITOR" "$(attestation config path)"
    """
    session.emit_done(str(config_path()), {"file": str(config_path())})


@group.command("set")
@click.argument("setting", type=click.Choice([PREFERRED, *SETTINGS]), metavar="SETTING")
@click.argument("value", required=False)
@click.option("--unset", is_flag=True, help="Forget it instead, so that the default applies.")
@printing
def set_(session: Session, setting: str, value: str | None, *, unset: bool) -> None:
    """Set SETTING of the profile in use to VALUE; `profile` names the one to use from now on.

    The settings are api_url, issuer, client_id, ca_file, issuer_ca_file, client_cert, client_key, output, user and
    keyring. The whole file is written anew, readable by you only; comments in it are lost.

    \b
    Examples:
      attestation config set api_url https://attest.example
      attestation --profile prod config set output wide
      attestation config set ca_file --unset
      attestation config set profile prod
    """
    if unset == (value is not None):
        raise click.UsageError("give either a value or --unset")
    config = load(config_path())
    if setting == PREFERRED:
        if value is not None:
            config.chosen(value)
        save(config_path(), replace(config, profile=value))
        session.emit_done(f"profile: {value or 'none preferred'}", {"profile": value})
        return
    name = session.profile_name
    change: dict[str, Any] = {setting: None if unset else _parsed(setting, value or "")}
    profile = replace(config.profiles.get(name, Profile()), **change)
    save(config_path(), config.with_profile(name, profile))
    session.emit_done(
        f"{setting} of profile {name}: {value if value is not None else 'unset'}",
        {"profile": name, "setting": setting, "value": value},
    )


def _parsed(setting: str, text: str) -> str | bool:
    value: str | bool = text
    if setting == "keyring":
        if text not in ("true", "false"):
            raise ConfigInvalid("keyring must be true or false")
        value = text == "true"
    if setting == "api_url":
        from attestation.client.connection import checked_url

        value = checked_url(text)
    return check_value(setting, value, "config")


for _command in (
    *(lint_, preview_, diff_, import_, list_, activate, rollback, rewrap, upgrade_preview, machine_, patch),
):
    group.add_command(_command)
