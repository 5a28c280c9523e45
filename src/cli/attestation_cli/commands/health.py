"""`attestation health`: whether the service lives, and whether it can decide."""

from __future__ import annotations

import time

import click

from attestation.client.text import clean
from attestation_cli.options import printing
from attestation_cli.render import Cell, cell
from attestation_cli.session import Session

NOT_READY = 6


@click.command("health")
@printing
@click.pass_context
def group(ctx: click.Context, session: Session) -> None:
    """Ask whether the service lives and can decide: API, database, keys, clock.

    Needs no login. Ends with 0 where everything is ready, else with 6.

    \b
    Examples:
      attestation health
      attestation health -o json
    """
    with session.public() as client:
        start = time.monotonic()
        alive = client.is_alive()
        milliseconds = (time.monotonic() - start) * 1000
        readiness = client.readiness()
        keys = client.service_keys().records("keys")
    ready = readiness.text("status") == "ok"
    checks = readiness.optional_record("checks")
    told = {name: clean(str(state)) for name, state in (checks or {}).items()}
    algorithms = ", ".join(sorted({key.text("alg") for key in keys})) or "none"
    if session.json:
        session.emit_json(
            {
                "url": session.url,
                "alive": alive,
                "answered_in_milliseconds": round(milliseconds, 1),
                "ready": ready,
                "version": readiness.text("version"),
                "checks": told,
                "signing_keys": [{"kid": key.text("kid"), "alg": key.text("alg")} for key in keys],
            }
        )
    else:
        session.emit_fields(
            [
                ("service", cell(session.url)),
                ("version", cell(readiness.text("version"))),
                ("API", _state("ok" if alive else "failed", f"ok, answered in {milliseconds:.0f} ms")),
                *((name.replace("_", " "), _state(state, state)) for name, state in told.items()),
                ("signing keys", cell(f"{len(keys)} ({algorithms})")),
                ("ready", Cell("yes", "green") if ready else Cell("NO", "red")),
            ]
        )
    ctx.exit(0 if alive and ready else NOT_READY)


def _state(state: str, text: str) -> Cell:
    return Cell(
        clean(text) if state == "ok" else clean(state), "green" if state == "ok" else "red", clean(state)
    )
