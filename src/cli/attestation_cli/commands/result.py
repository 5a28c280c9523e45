"""`attestation result …`: believe an attestation result without asking the service about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from attestation.client.text import clean
from attestation.clock import rfc3339
from attestation.errors import RequestInvalid
from attestation_cli.options import EXISTING_FILE, printing
from attestation_cli.render import Cell, cell, moment_cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.results.ar4si import Tier
    from attestation.results.ear import EAR, Submodule

MOST_BYTES: Final = 1 << 17
PROFILES: Final = {"ear-04": "EAR_04", "veraison-2023": "VERAISON_2023"}
COLOURS: Final = {"affirming": "green", "none": "yellow", "warning": "yellow", "contraindicated": "red"}


@click.group("result")
def group() -> None:
    """Read attestation results that the service signed (EAR tokens).

    \b
    Examples:
      attestation result verify result.jwt --keys service.jwks
    """


@group.command()
@click.argument("file", type=click.File("rb"))
@click.option("--keys", type=EXISTING_FILE, help="JWK set of the service, as its operator gave it to you.")
@click.option("--server", is_flag=True, help="Fetch the keys from the service, instead.")
@click.option("--issuer", metavar="URL", help="The service that must have issued it.")
@click.option("--nonce", metavar="TEXT", help="The challenge that it must answer, base64.")
@click.option(
    "--ear-profile", type=click.Choice(list(PROFILES)), help="The only profile to accept; default both."
)
@click.option("--accept-warning", is_flag=True, help="End with 0 also where the status is warning.")
@printing
@click.pass_context
def verify(
    ctx: click.Context,
    session: Session,
    file: BinaryIO,
    keys: Path | None,
    issuer: str | None,
    nonce: str | None,
    ear_profile: str | None,
    *,
    server: bool,
    accept_warning: bool,
) -> None:
    """Verify a result in FILE, and say in words what it says; `-` reads it from stdin.

    With --keys it needs neither the service nor the network. Ends with 0 where the result verifies and its status is
    affirming, with 1 where it proves nothing, is not affirming, or has expired.

    \b
    Examples:
      attestation result verify result.jwt --keys service.jwks
      attestation result verify result.jwt --server --nonce "$NONCE"
      attestation result verify result.jwt --keys service.jwks -o json
    """
    if (keys is not None) == server:
        raise RequestInvalid(
            "no key to verify with: give either --keys FILE, or --server to ask the service for its keys"
        )
    # Imported here: cryptography takes longer to load than --help takes to print.
    from attestation.errors import ResultTokenRejected
    from attestation.keys import verify_ear
    from attestation.results.ear import Profile

    token = _read_token(file)
    at = datetime.now(UTC)
    ear = verify_ear(
        token,
        jwks=_fetch_keys(session) if keys is None else _read_keys(keys),
        at=at,
        issuer=issuer,
        nonce=nonce,
    )
    if ear_profile is not None and ear.profile is not Profile[PROFILES[ear_profile]]:
        raise ResultTokenRejected(f"the result is of profile {ear.profile}")
    if session.json:
        session.emit_json(_document(ear))
    else:
        _emit(session, ear, at)
    accepted = {"affirming", "warning"} if accept_warning else {"affirming"}
    ctx.exit(0 if ear.status.value in accepted else 1)


def _read_token(file: BinaryIO) -> str:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise RequestInvalid("too long for a result token")
    try:
        return data.decode("ascii").strip()
    except UnicodeDecodeError as e:
        raise RequestInvalid("a result token is text: three base64url parts joined by dots") from e


def _read_keys(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as opened:
            found = json.loads(opened.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError) as e:
        raise RequestInvalid(f"{path} cannot be read as JSON") from e
    if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
        raise RequestInvalid(f"{path} is no JWK set: an object with a list called keys")
    return found


def _fetch_keys(session: Session) -> dict[str, Any]:
    with session.public() as client:
        found = client.service_keys()
    return {"keys": [dict(key) for key in found.records("keys")]}


def _emit(session: Session, ear: EAR, at: datetime) -> None:
    rows: list[tuple[str, Cell]] = [
        ("status", _tier(ear.status)),
        ("machine", cell(clean(ear.subject))),
        ("issued by", cell(clean(ear.issuer))),
        ("issued", moment_cell(ear.issued_at, at)),
        ("good until", moment_cell(ear.expires_at, at)),
        ("answers", cell(clean(ear.nonce))),
        ("verifier", cell(clean(f"{ear.developer} {ear.build}"))),
        ("profile", cell(ear.profile.value)),
    ]
    for label, submodule in ear.submods.items():
        prefix = "" if len(ear.submods) == 1 else f"{clean(label)}: "
        rows += [(prefix + name, value) for name, value in _submodule_rows(submodule)]
    session.emit_fields(rows)


def _submodule_rows(submodule: Submodule) -> list[tuple[str, Cell]]:
    from attestation.results.ar4si import TrustClaim, in_words, tier_of

    rows = [("policy", cell(clean(", ".join(submodule.policies)) or "-"))]
    said = [(name, submodule.verifier.get(name)) for name in ("verdict", "assurance")]
    rows += [(name, cell(clean(text))) for name, text in said if isinstance(text, str)]
    for claim in TrustClaim:
        if (value := submodule.vector.get(claim)) is not None:
            words = f"{in_words(claim, value)} ({value})"
            rows.append((claim.value.replace("-", " "), Cell(words, COLOURS[tier_of(value).value])))
        elif claim in (TrustClaim.CONFIGURATION, TrustClaim.EXECUTABLES):
            # What somebody might take for granted must be seen to be missing.
            rows.append((claim.value, cell("nothing is said: not all that it needs was compared")))
    compared = submodule.verifier.get("boot_state_appraised")
    if isinstance(compared, list):
        rows.append(("compared", cell(clean(", ".join(map(str, compared))) or None)))
    checks = submodule.verifier.get("checks")
    if isinstance(checks, list):
        told = [f"{check.get('code')} {check.get('outcome')}" for check in checks if isinstance(check, dict)]
        rows.append(("checks", cell(clean(", ".join(told)) or "-")))
    return rows


def _tier(tier: Tier) -> Cell:
    return Cell(tier.value, COLOURS[tier.value])


def _document(ear: EAR) -> dict[str, Any]:
    return {
        "status": ear.status.value,
        "machine_id": ear.subject,
        "issuer": ear.issuer,
        "issued_at": rfc3339(ear.issued_at),
        "expires_at": rfc3339(ear.expires_at),
        "nonce": ear.nonce,
        "verifier": {"developer": ear.developer, "build": ear.build},
        "profile": ear.profile.value,
        "submods": {
            label: {
                "status": submodule.status.value,
                "trustworthiness_vector": {claim.value: value for claim, value in submodule.vector.items()},
                "policies": list(submodule.policies),
                "attester_claims": dict(submodule.attester),
                "verifier_claims": dict(submodule.verifier),
            }
            for label, submodule in ear.submods.items()
        },
    }
