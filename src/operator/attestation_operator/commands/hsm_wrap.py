"""`attestation hsm verify|wrap|sign-bundle`: what happens before a CA key leaves an administrator's hands (§13).

What the cluster says of its own verdict is not read: the evidence is judged here, by the code that judges it in the
service, under a policy that is a file of the administrator's and for the question that the administrator names.
"""

# Algorithms for: digest
from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from attestation.errors import BundleRejected
from attestation_cli.plugin import FILE_PATH, Session, cell, clean, printing
from attestation_operator.commands import hsm_judging
from attestation_operator.commands.hsm_files import beside, certificates, private_key, signing_key, write_new
from attestation_operator.commands.hsm_judging import PURPOSES, READ, JudgedHere, judge, judging, refuse, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from attestation.keys.provisioning import Bundle

MAX_HOURS: Final = 24 * 30
PROVISIONING: Final = PURPOSES[0]


def signing(command: Callable[..., None]) -> Callable[..., None]:
    """Add what an administrator signs with."""
    for option in (
        click.option(
            "--pkcs11-module", multiple=True, metavar="NAME=PATH", help="A module that --sign-with may name."
        ),
        click.option("--sign-passphrase", type=READ, help="File with its passphrase or PIN."),
        click.option(
            "--sign-with",
            required=True,
            metavar="KEY",
            help="Your key, P-384 or ML-DSA-87: a PEM file or a key URI.",
        ),
    ):
        command = option(command)
    return command


@click.command("verify")
@judging
@click.option(
    "--purpose",
    type=click.Choice(PURPOSES),
    default=PROVISIONING,
    show_default=True,
    help="What it asks for.",
)
@printing
def verify(session: Session, attestation: Path, **how: Any) -> None:
    """Judge the evidence of a QuoteAttestation (kubectl get qa NAME -o json), offline.

    Issuer, type, purpose and nonce are yours to say: what the file says otherwise fails. The command ends with 1 unless
    the evidence is verified.
    """
    found = judge(session, attestation, **how)
    show(session, found)
    _demand_verified(found)


@click.command("wrap")
@judging
@signing
@click.option("--key", "key_file", required=True, type=READ, help="Private key of the CA, PEM.")
@click.option("--key-passphrase", type=READ, help="File with its passphrase.")
@click.option(
    "--chain", "chain_file", required=True, type=READ, help="Certificates of the CA, PEM, its own first."
)
@click.option(
    "--valid-for",
    default=24,
    show_default=True,
    type=click.IntRange(1, MAX_HOURS),
    help="Hours that it counts.",
)
@click.option(
    "--accept-tpm-quote",
    is_flag=True,
    help="Accept tpm-quote, which does not say where the key is.",
)
@click.option("--force", is_flag=True, help="Replace files of these names.")
@click.option(
    "--bundle", required=True, type=FILE_PATH, help="Write the bundle there; its signatures beside it, .jws."
)
@printing
def wrap(
    session: Session,
    attestation: Path,
    *,
    key_file: Path,
    key_passphrase: Path | None,
    chain_file: Path,
    sign_with: str,
    sign_passphrase: Path | None,
    pkcs11_module: tuple[str, ...],
    valid_for: int,
    accept_tpm_quote: bool,
    bundle: Path,
    force: bool,
    **how: Any,
) -> None:
    """Wrap the key of a CA for hardware whose evidence is verified here, and sign the bundle.

    \b
    Example:
      kubectl get qa ca-0b5e8c1e-1 -o json > qa.json
      attestation hsm wrap qa.json --issuer-uid UID --evidence sgx --ask-service \\
        --policy enclaves.json --collateral intel.json \\
        --key ca.key --chain ca.pem --sign-with ada.key --bundle bundle.json
      kubectl create secret generic ca-cacert --from-file bundle.json \\
        --from-file bundle.jws --type attestation.itl.io/hsm-bundle

    """
    from attestation.keys.provisioning import fingerprint, sign_bundle
    from attestation.quote import wrap_for
    from attestation.quote.appraise import NO_TIER
    from attestation.quote.tpm import MACHINE_TIER

    signatures = beside(bundle)
    if not force and (bundle.exists() or signatures.exists()):
        refuse(f"{clean(str(bundle))} or its signatures are there already; --force replaces them")
    found = judge(session, attestation, purpose=PROVISIONING, **how)
    if not _is_verified(found):
        show(session, found)
    _demand_verified(found)
    accepted = {MACHINE_TIER: accept_tpm_quote, NO_TIER: bool(how["accept_null"])}
    chain = certificates(chain_file)
    with signing_key(sign_with, sign_passphrase, pkcs11_module) as admin:
        # Last of all, and for the one act: what fails before has not read it.
        made = wrap_for(
            found.envelope,
            found.result,
            private_key(key_file, key_passphrase),
            chain,
            qa_uid=found.uid,
            at=hsm_judging.now(),
            valid_for=timedelta(hours=valid_for),
            accepted=frozenset(tier for tier, is_accepted in accepted.items() if is_accepted),
        )
        text = made.serialise()
        signer: Any = admin.private_key
        signature = sign_bundle(text, signer)
    write_new(signatures, f"{signature}\n".encode(), force=force)
    write_new(bundle, text, force=force)
    session.emit_fields(
        [
            ("bundle", cell(str(bundle))),
            ("signatures", cell(str(signatures))),
            *_summary(found, made, text),
            ("signer", cell(fingerprint(signer.public_key()))),
        ]
    )


@click.command("sign-bundle")
@judging
@signing
@click.option("--bundle", required=True, type=READ, help="What another administrator wrapped and signed.")
@click.option(
    "--signed-by",
    required=True,
    multiple=True,
    metavar="SHA256",
    help="Who signed it so far: SHA-256 of the key, as the issuer lists it. Repeatable.",
)
@click.option(
    "--chain", "chain_file", required=True, type=READ, help="Certificates of the CA that it should have, PEM."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def sign_bundle_too(
    session: Session,
    attestation: Path,
    *,
    bundle: Path,
    signed_by: tuple[str, ...],
    chain_file: Path,
    sign_with: str,
    sign_passphrase: Path | None,
    pkcs11_module: tuple[str, ...],
    yes: bool,
    **how: Any,
) -> None:
    """Add a second signature to a bundle, after judging the evidence again.

    The bundle must answer this evidence, for this issuer, with this CA, signed by whom you expect. Your signature is
    added to the file beside it. Whether the key in it is that of the CA only the
    hardware can tell: the controller compares, and refuses another one.

    \b
    Example:
      attestation hsm sign-bundle qa.json --bundle bundle.json --issuer-uid UID \\
        --evidence sgx --ask-service --policy enclaves.json --collateral intel.json \\
        --chain ca.pem --signed-by 5f0c…c62 --sign-with bob.key
    """
    from attestation.keys.provisioning import fingerprint, match, read_bundle, sign_bundle
    from attestation.quote import case_of

    found = judge(session, attestation, purpose=PROVISIONING, **how)
    if not _is_verified(found):
        show(session, found)
    _demand_verified(found)
    chain = certificates(chain_file)
    text, signatures = bundle.read_bytes(), beside(bundle)
    lines = _lines(signatures)
    # 1. Who is expected signed it, everyone of them and nobody else.
    signed = read_bundle(text, lines, signers={*signed_by}, required=len({*signed_by}))
    # 2. It answers what was judged here.
    case = case_of(found.envelope, found.result, qa_uid=found.uid, ca_certificate=chain[0])
    made = match(signed, case, at=hsm_judging.now())
    if made.chain != chain:
        raise BundleRejected("the chain in the bundle is another one")
    with signing_key(sign_with, sign_passphrase, pkcs11_module) as admin:
        signer: Any = admin.private_key
        mine = fingerprint(signer.public_key())
        # 3. Dual control is of two people: a second signature of one key is none.
        if mine in signed.signers:
            raise BundleRejected("your key signed it already; another administrator's is needed")
        session.emit_fields(
            [
                ("signatures", cell(str(signatures))),
                *_summary(found, made, text),
                *(("signed by", cell(each)) for each in signed.signers),
                ("signer", cell(mine)),
            ]
        )
        session.confirm("Sign this bundle?", yes=yes)
        signature = sign_bundle(text, signer)
    write_new(signatures, "".join(f"{each}\n" for each in (*lines, signature)).encode(), force=True)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as e:
        raise BundleRejected(f"{clean(str(path))}: no signatures can be read") from e


def _summary(found: JudgedHere, made: Bundle, text: bytes) -> list[tuple[str, Any]]:
    """Return what is signed, for people."""
    from hashlib import sha256

    from cryptography.x509 import load_der_x509_certificate

    from attestation.results import Flagged

    ca = load_der_x509_certificate(made.chain[0])
    # What decides nothing is seen by who signs all the same, above all that software made the evidence.
    flagged = "".join(f", {each.check}" for each in found.result.outcomes if isinstance(each, Flagged))
    return [
        ("sha-256", cell(sha256(text).hexdigest())),
        ("answers", cell(f"{found.name} {made.qa_uid}")),
        ("issuer", cell(made.signer_uid)),
        ("ca", cell(clean(ca.subject.rfc4514_string()))),
        ("ca certificate", cell(sha256(made.chain[0]).hexdigest())),
        ("evidence", cell(f"{found.envelope.evidence_type} {found.result.tier}{flagged}")),
        ("key", cell(made.bound_key_fingerprint.hex())),
        ("oaep hash", cell(made.oaep_hash)),
        ("until", cell(f"{made.not_after:%Y-%m-%d %H:%M} UTC")),
    ]


def _is_verified(found: JudgedHere) -> bool:
    from attestation.results import Verdict

    return found.result.verdict is Verdict.VERIFIED


def _demand_verified(found: JudgedHere) -> None:
    if not _is_verified(found):
        raise click.exceptions.Exit(1)
