"""The keys: each opened as a start would open it, none made. A key of a CA also signs a test value."""

from __future__ import annotations

import functools

from attestation.errors import AttestationError, KeyNotFound
from attestation.keys import parse_key_uri, thumbprints
from attestation.keys.open import is_away, open_key
from attestation.keys.uri import FileRef
from attestation.store import Issuer
from attestation_service.authority.keyring import Keyring, validity_problem
from attestation_service.authority.places import base_of, current_uri, key_options, kinds, new_key_uri
from attestation_service.inspection.case import Case, Findings, failed, ok, warning
from attestation_service.keys.service_keys import KeyHolder
from attestation_service.transparency import load_log_signer
from attestation_service.transparency.signing import missing_keys

_LATER = "the first start makes it"


def service_key(case: Case) -> Findings:
    """The keys that sign what machines act on."""
    holder = KeyHolder(case.settings)
    for uri in holder.uris:
        shown = parse_key_uri(uri).shown
        try:
            signer = holder.inspect(uri)
        except AttestationError as e:
            wait = " A start waits for it, and is not ready until then." if is_away(uri, e) else ""
            yield failed(
                "service key",
                what=f"{shown}: {e} ({e.code}).{wait}",
                todo="put the key back, or let its token, PIN or TPM answer; a URI that was never used gets a new key",
            )
            continue
        if signer is None:
            yield ok("service key", what=f"{shown} was never used: {_LATER}")
        else:
            yield ok("service key", what=f"{shown}, thumbprint {next(iter(thumbprints(signer.jwks())))}")


def log_keys(case: Case) -> Findings:
    """The keys that sign the audit log."""
    missing = missing_keys(case.settings)
    if case.facts is not None and case.facts.lost is not None:
        yield failed(
            "audit keys",
            what=case.facts.lost.words,
            todo="put the folder of the keys back from your backup",
        )
    elif missing:
        yield ok("audit keys", what=f"{', '.join(map(str, missing))}: {_LATER}")
    else:
        signer = load_log_signer(case.settings)
        yield ok(
            "audit keys", what=f"they sign {signer.origin}; retired keys on the list: {len(signer.retired)}"
        )


def authority(case: Case) -> Findings:
    """The keys of the CA, its passphrase, PIN or TPM, and its certificates."""
    settings = case.settings
    if not settings.has_ca:
        yield from (ok("CA", what=notice) for notice in settings.notices())
        return
    options = key_options(settings)
    base = base_of(settings)
    if options.passphrase is not None and isinstance(base, FileRef):
        options.passphrase()  # raises where nothing can be read
    if case.facts is None:
        yield warning(
            "CA",
            what="its keys were not looked at: the database that names them cannot be read by this version",
        )
        return
    keyring = Keyring(options, functools.partial(current_uri, settings))
    try:
        for purpose, algorithm in kinds(settings):
            same = [i for i in case.facts.issuers if (i.purpose, i.algorithm) == (purpose, algorithm)]
            active = next((i for i in same if i.state == "active"), None)
            if active is not None:
                yield from _active(active, keyring, case)
                continue
            yield from _to_be_made(
                f"{purpose} CA, {algorithm}",
                new_key_uri(settings, purpose, "0" * 16, case.facts.issuers),
                case,
            )
    finally:
        keyring.close()


def _active(issuer: Issuer, keyring: Keyring, case: Case) -> Findings:
    uri = current_uri(case.settings, issuer.key_uri)
    shown = f"{issuer.purpose} CA {issuer.issuer_id}, {parse_key_uri(uri).shown}"
    try:
        opened = keyring.get(issuer)
    except AttestationError as e:
        away = is_away(uri, e)
        yield (warning if away else failed)(
            "CA",
            what=f"{shown}: {e} ({e.code})"
            + (". A start serves without it, and issues no certificates" if away else ""),
            todo="let its token or TPM answer, with the right PIN"
            if away
            else "put the folder of the keys back from your backup, and its passphrase",
        )
        return
    if (problem := validity_problem(opened.ca, case.at)) is not None:
        yield warning("CA", what=f"{shown}: {problem}", todo="attestation ca rotate prepare")
    else:
        yield ok(
            "CA",
            what=f"{shown}: it signs, and its certificate verifies it; until {opened.ca.not_after:%Y-%m-%d}",
        )


def _to_be_made(name: str, uri: str, case: Case) -> Findings:
    """Find out whether token or TPM answer, by asking for a key that cannot be there."""
    try:
        open_key(uri, key_options(case.settings)).close()
    except KeyNotFound:
        yield ok("CA", what=f"{name}: {_LATER}, in {parse_key_uri(uri).shown.rpartition('-')[0]}-…")
    else:
        yield failed(
            "CA", what=f"{name}: something is at {parse_key_uri(uri).shown} already", todo="free that place"
        )
