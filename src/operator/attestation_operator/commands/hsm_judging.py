"""Judging a QuoteAttestation on an administrator's own computer, by what the administrator expects.

Nothing of the question is taken from the file: issuer, type of evidence, hash, purpose and nonce are said by options,
or, of the nonce, by the service, which gave it out. What the file says otherwise is refused, never followed.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, get_args

import click

from attestation import hsm
from attestation.errors import BundleRejected, MalformedEvidence, RequestInvalid
from attestation_cli.plugin import Session, cell, clean

if TYPE_CHECKING:
    from attestation.quote import Envelope, QuoteResult
    from attestation.results import Outcome

READ: Final = click.Path(dir_okay=False, exists=True, path_type=Path)
EVIDENCE: Final = get_args(hsm.EvidenceType)
"""What an administrator may expect. `tcs-kmra-v1` is read by the service alone: nothing is handed over for it."""
PURPOSES: Final = get_args(hsm.Purpose)


def now() -> datetime:
    """Return the present instant."""
    return datetime.now(UTC)


def judging(command: Callable[..., None]) -> Callable[..., None]:
    """Add what evidence is judged by, and what is expected of the question."""
    for option in (
        click.option(
            "--insecure-accept-null-evidence",
            "accept_null",
            is_flag=True,
            help="For trying out: accept that there is no evidence.",
        ),
        click.option("--vendor-root", multiple=True, type=READ, help="Root of an HSM's maker, PEM or DER."),
        click.option("--ek", type=READ, help="TPM2B_PUBLIC of the EK that the AK was activated with."),
        click.option("--ak", type=READ, help="TPM2B_PUBLIC of the machine's AK."),
        click.option("--intel-root", type=READ, help="For trying out: another root than Intel's, DER."),
        click.option("--collateral", type=READ, help="What Intel says of the platform, JSON."),
        click.option("--policy", required=True, type=READ, help="What is expected of the hardware, JSON."),
        click.option(
            "--ask-service",
            is_flag=True,
            help="Have the service say that it gave out the nonce, and agrees.",
        ),
        click.option("--nonce", help="The nonce that was given to the issuer, base64."),
        click.option(
            "--oaep-hash",
            type=click.Choice(hsm.OAEP_HASHES),
            default="sha256",
            show_default=True,
            help="Of the wrapping.",
        ),
        click.option(
            "--evidence",
            "evidence_type",
            required=True,
            type=click.Choice(EVIDENCE),
            metavar="TYPE",
            help="What the issuer proves itself by: " + ", ".join(EVIDENCE) + ".",
        ),
        click.option("--issuer-uid", required=True, help="UID of the issuer that the key is for."),
        click.argument("attestation", type=READ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedHere:
    """A QuoteAttestation, and how it was judged on this computer.

    Args:
        uid: `metadata.uid`.
        name: Namespace and name, for people.
        envelope: Its spec.
        result: How it was judged.
    """

    uid: str
    name: str
    envelope: Envelope
    result: QuoteResult


def judge(
    session: Session,
    attestation: Path,
    *,
    purpose: str,
    issuer_uid: str,
    evidence_type: str,
    oaep_hash: str,
    nonce: str | None,
    ask_service: bool,
    policy: Path,
    collateral: Path | None,
    intel_root: Path | None,
    ak: Path | None,
    ek: Path | None,
    vendor_root: tuple[Path, ...],
    accept_null: bool,
) -> JudgedHere:
    """Judge the evidence of a QuoteAttestation, as `kubectl get qa NAME -o json` writes it.

    Raises:
        RequestInvalid: A file is not what it should be, or nothing says which nonce was given out.
        BundleRejected: The service does not agree.
    """
    from attestation.quote import Purpose, QuoteCase, appraise_quote, parse_envelope
    from attestation.reference import parse_policy
    from attestation.tpm import parse_public
    from attestation.wire import b64decode

    if nonce is None and not ask_service:
        refuse("which nonce was given out? --nonce says it, or --ask-service has the service say it")
    uid, name, spec = _read(attestation)
    envelope = parse_envelope(spec)
    if envelope.purpose is Purpose.KEY_PROVISIONING and envelope.oaep_hash != oaep_hash:
        refuse(f"the QuoteAttestation wants {envelope.oaep_hash}; --oaep-hash says {oaep_hash}")
    if accept_null:
        click.echo("warning: without evidence nothing says where the key is: for trying out only", err=True)
    if intel_root is not None:
        click.echo("warning: the root of Intel is another one: for trying out only", err=True)
    case = QuoteCase(
        evidence_type=evidence_type,
        purpose=Purpose(purpose),
        signer_uid=issuer_uid,
        # Where the service is asked it is compared below, by what the evidence is bound to.
        nonce=envelope.nonce if nonce is None else b64decode(nonce, "nonce", max_bytes=64),
        policy=parse_policy(json_of(policy)),
        endorsements=_endorsements(evidence_type, collateral, intel_root, vendor_root),
        ak=parse_public(ak.read_bytes()) if ak is not None else None,
        ek=parse_public(ek.read_bytes()) if ek is not None else None,
        accept_null=accept_null,
    )
    found = JudgedHere(uid=uid, name=name, envelope=envelope, result=appraise_quote(envelope, case, now()))
    if ask_service:
        _agree(session, found, case)
    return found


def _agree(session: Session, found: JudgedHere, case: Any) -> None:
    """Have the service say that this very evidence answers a nonce that it gave to this issuer for this.

    Raises:
        BundleRejected: It knows no such QuoteAttestation, or says something else of it.
    """
    with session.client() as client:
        for told in client.quote_attestations():
            if told.uid == found.uid:
                break
        else:
            raise BundleRejected("the service knows no such QuoteAttestation: its nonce is nobody's")
    compared = (
        ("verdict", told.verdict, "verified"),
        ("issuer", told.signer_uid, case.signer_uid),
        ("purpose", told.purpose, case.purpose.value),
        ("type", told.evidence_type, case.evidence_type),
        ("evidence", told.evidence_digest or "", found.result.evidence_digest.hex()),
        ("key", told.bound_key_fingerprint or "", found.result.bound_key_fingerprint.hex()),
    )
    for what, said, wanted in compared:
        if not hmac.compare_digest(said, wanted):
            raise BundleRejected(f"the service says another {what}: {clean(said) or 'none'}, not {wanted}")


def _read(path: Path) -> tuple[str, str, object]:
    """Return UID, name and spec of the object in a file."""
    raw = json_of(path)
    about = raw.get("metadata")
    uid = about.get("uid") if isinstance(about, dict) else None
    if raw.get("kind") != "QuoteAttestation" or not isinstance(about, dict) or not isinstance(uid, str):
        refuse(f"{clean(str(path))}: no QuoteAttestation in JSON, as kubectl get qa NAME -o json writes it")
    names = [each for each in (about.get("namespace"), about.get("name")) if isinstance(each, str)]
    return uid, clean("/".join(names)), raw.get("spec")


def _endorsements(
    kind: str, collateral: Path | None, intel_root: Path | None, vendor_root: tuple[Path, ...]
) -> Any:
    from attestation import tee_bundle
    from attestation.endorsements import amd, intel
    from attestation.endorsements.certificate import parse_certificate
    from attestation.endorsements.path import CertificateIndex
    from attestation.wire import der_of

    if kind == "hsm-x509":
        return CertificateIndex(
            parse_certificate(der_of(each.read_bytes(), "root", "CERTIFICATE")) for each in vendor_root
        )
    pinned = tee_bundle.load()
    if kind == "sev-snp":
        return amd.Endorsements(lines=pinned.amd)
    return intel.Endorsements(
        root=parse_certificate(pinned.intel if intel_root is None else intel_root.read_bytes()),
        collateral=intel.parse_collateral(collateral.read_bytes()) if collateral is not None else None,
    )


def json_of(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON.

    Raises:
        RequestInvalid: There is none, or a member stands twice.
    """
    from attestation.wire import named_once

    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=named_once)
    except (ValueError, MalformedEvidence, RecursionError) as e:
        raise RequestInvalid(f"{clean(str(path))}: not JSON, or a member stands twice") from e
    if not isinstance(found, dict):
        refuse(f"{clean(str(path))}: no object of JSON")
    return found


def refuse(words: str) -> NoReturn:
    """Raise RequestInvalid."""
    raise RequestInvalid(words)


def show(session: Session, found: JudgedHere) -> None:
    """Print verdict, key, claims and every check."""
    envelope, result = found.envelope, found.result
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
            *((f"claim {name}", cell(clean(value))) for name, value in result.claims.items()),
            *((f"{name} {kind}", cell(words)) for kind, name, words in checks),
        ]
    )


def _words(outcome: Outcome) -> str:
    for name in ("found", "note", "reason"):
        if text := getattr(outcome, name, ""):
            return clean(str(text))
    return ""
