"""`attestation hsm verify` and `wrap`: what an administrator does before a CA key leaves their hands (§13).

Both work offline. What the cluster says of its own verdict is not read: the evidence is judged here, by the code that
judges it in the service, under a policy that is a file of the administrator's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from attestation.errors import KeyUnsupported, RequestInvalid
from attestation_cli.plugin import FILE_PATH, Session, cell, clean, printing

if TYPE_CHECKING:
    from attestation.quote import Envelope, QuoteResult
    from attestation.results import Outcome

_READ = click.Path(dir_okay=False, exists=True, path_type=Path)
MAX_HOURS = 24 * 30


def now() -> datetime:
    """Return the present instant."""
    return datetime.now(UTC)


def judging(command: Callable[..., None]) -> Callable[..., None]:
    """Add what evidence is judged by."""
    for option in (
        click.option("--intel-root", type=_READ, help="For trying out: another root than Intel's, DER."),
        click.option("--collateral", type=_READ, help="What Intel says of the platform, JSON."),
        click.option("--policy", required=True, type=_READ, help="What is expected of the hardware, JSON."),
        click.option("--signer-uid", required=True, help="UID of the issuer that the key is for."),
        click.argument("attestation", type=_READ),
    ):
        command = option(command)
    return command


@click.command("verify")
@judging
@printing
def verify(session: Session, attestation: Path, **how: Any) -> None:
    """Judge the evidence of a QuoteAttestation (kubectl get qa NAME -o json), offline.

    The command ends with 1 unless the evidence is verified.
    """
    from attestation.results import Verdict

    _, envelope, result = _judge(attestation, **how)
    _show(session, envelope, result)
    if result.verdict is not Verdict.VERIFIED:
        raise click.exceptions.Exit(1)


@click.command("wrap")
@judging
@click.option("--key", "key_file", required=True, type=_READ, help="Private key of the CA, PEM.")
@click.option(
    "--chain", "chain_file", required=True, type=_READ, help="Certificates of the CA, PEM, its own first."
)
@click.option("--sign-with", required=True, type=_READ, help="Your private key, P-384 or ML-DSA-87, PEM.")
@click.option(
    "--valid-for",
    default=24,
    show_default=True,
    type=click.IntRange(1, MAX_HOURS),
    help="Hours that it counts.",
)
@click.option(
    "--bundle", required=True, type=FILE_PATH, help="Write the bundle there; its signatures beside it, .jws."
)
@printing
def wrap(
    session: Session,
    attestation: Path,
    *,
    key_file: Path,
    chain_file: Path,
    sign_with: Path,
    valid_for: int,
    bundle: Path,
    **how: Any,
) -> None:
    """Wrap the key of a CA for hardware whose evidence is verified here, and sign the bundle.

    \b
    Example:
      kubectl get qa ca-0b5e8c1e-1 -o json > qa.json
      attestation hsm wrap qa.json --signer-uid UID --policy enclaves.json --collateral intel.json \\
        --key ca.key --chain ca.pem --sign-with ada.key --bundle bundle.json
      kubectl create secret generic ca-bundle --type attestation.itl.io/hsm-bundle \\
        --from-file bundle.json --from-file bundle.jws

    """
    from cryptography.x509 import load_pem_x509_certificates

    from attestation.keys.provisioning import fingerprint, sign_bundle
    from attestation.quote import wrap_for
    from attestation.results import Verdict

    qa_uid, envelope, result = _judge(attestation, **how)
    if result.verdict is not Verdict.VERIFIED:
        _show(session, envelope, result)
        raise click.exceptions.Exit(1)
    admin: Any = _private_key(sign_with)
    signatures = bundle.with_suffix(".jws")
    if bundle.exists() or signatures.exists():
        _refuse(f"{clean(str(bundle))} or its signatures are there already")
    try:
        chain = [each.public_bytes(_der()) for each in load_pem_x509_certificates(chain_file.read_bytes())]
    except ValueError as e:
        raise RequestInvalid(f"{clean(str(chain_file))}: no certificates in PEM") from e
    ca_key: Any = _private_key(key_file)
    made = wrap_for(
        envelope,
        result,
        ca_key,
        chain,
        qa_uid=qa_uid,
        at=now(),
        valid_for=timedelta(hours=valid_for),
    )
    text = made.serialise()
    signature = sign_bundle(text, admin)
    bundle.write_bytes(text)
    signatures.write_text(signature + "\n", encoding="ascii")
    session.emit_fields(
        [
            ("bundle", cell(str(bundle))),
            ("signatures", cell(str(signatures))),
            ("signer", cell(fingerprint(admin.public_key()))),
            ("until", cell(f"{made.not_after:%Y-%m-%d %H:%M} UTC")),
        ]
    )


def _judge(
    attestation: Path,
    *,
    signer_uid: str,
    policy: Path,
    collateral: Path | None,
    intel_root: Path | None,
) -> tuple[str, Envelope, QuoteResult]:
    """Return the UID of the QuoteAttestation, its envelope, and how it was judged here."""
    from attestation.quote import QuoteCase, appraise_quote, parse_envelope
    from attestation.reference import parse_policy

    raw = _json(attestation)
    uid = raw.get("metadata", {}).get("uid") if isinstance(raw.get("metadata"), dict) else None
    if not isinstance(uid, str):
        raise RequestInvalid(
            f"{clean(str(attestation))}: no QuoteAttestation in JSON: it has no metadata.uid"
        )
    envelope = parse_envelope(raw.get("spec"))
    case = QuoteCase(
        evidence_type=envelope.evidence_type,
        purpose=envelope.purpose,
        signer_uid=signer_uid,
        nonce=envelope.nonce,
        policy=parse_policy(_json(policy)),
        endorsements=_endorsements(envelope.evidence_type, collateral, intel_root),
    )
    return uid, envelope, appraise_quote(envelope, case, now())


def _endorsements(kind: str, collateral: Path | None, intel_root: Path | None) -> Any:
    from attestation import tee_bundle
    from attestation.endorsements import amd, intel
    from attestation.endorsements.certificate import parse_certificate

    pinned = tee_bundle.load()
    if kind == "sev-snp":
        return amd.Endorsements(lines=pinned.amd)
    if intel_root is not None:
        click.echo("warning: the root of Intel is another one: for trying out only", err=True)
    return intel.Endorsements(
        root=parse_certificate(pinned.intel if intel_root is None else intel_root.read_bytes()),
        collateral=intel.parse_collateral(collateral.read_bytes()) if collateral is not None else None,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as e:
        raise RequestInvalid(f"{clean(str(path))}: not JSON") from e
    if not isinstance(found, dict):
        _refuse(f"{clean(str(path))}: no object of JSON")
    return found


def _private_key(path: Path) -> object:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as e:
        raise KeyUnsupported(f"{clean(str(path))}: no private key in PEM that needs no passphrase") from e


def _der() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.DER


def _refuse(words: str) -> NoReturn:
    raise RequestInvalid(words)


def _show(session: Session, envelope: Envelope, result: QuoteResult) -> None:
    checks = [(type(each).__name__.lower(), each.check, _words(each)) for each in result.outcomes]
    if session.json:
        session.emit_json(
            {
                "verdict": result.verdict.value.lower(),
                "tier": result.tier,
                "type": envelope.evidence_type,
                "boundKeyFingerprint": result.bound_key_fingerprint.hex(),
                "evidenceDigest": result.evidence_digest.hex(),
                "claims": dict(result.claims),
                "checks": [{"outcome": kind, "check": name, "found": words} for kind, name, words in checks],
            }
        )
        return
    session.emit_fields(
        [
            ("verdict", cell(result.verdict.value.lower())),
            ("tier", cell(result.tier or "none")),
            ("key", cell(result.bound_key_fingerprint.hex())),
            *((f"{name} {kind}", cell(words)) for kind, name, words in checks),
        ]
    )


def _words(outcome: Outcome) -> str:
    for name in ("found", "note", "reason"):
        if text := getattr(outcome, name, ""):
            return clean(str(text))
    return ""
