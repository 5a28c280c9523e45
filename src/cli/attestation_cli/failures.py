"""What an operator reads when a command fails: what happened, why, and what to do; and the exit code.

0  done
1  the answer is no: the audit chain is invalid, the machine is not trusted, you did not confirm
2  the command or its values are wrong
3  what you named does not exist (any more)
4  the service does not know you, or you may not
5  it exists, but not in a state that allows this
6  no answer, or none now: unreachable, unavailable, too often; nothing was changed
7  the answer was lost: unknown whether it happened
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Final

import click

from attestation.client import (
    AnswerInvalid,
    APIError,
    NotTLS,
    OutcomeUnknown,
    ServiceUnreachable,
    TLSFailed,
)
from attestation.client.openid.errors import LoginNeeded, LoginRefused, ProviderInvalid, ProviderUnreachable
from attestation.client.text import apart, clean
from attestation.errors import (
    AnswerNotKept,
    AttestationError,
    BundleInvalid,
    Conflict,
    DeadlineExceeded,
    Expired,
    Forbidden,
    KeyUnusable,
    LogRejected,
    MalformedEvidence,
    MalformedNote,
    NotAcceptable,
    NotAuthentic,
    OperatorAccessNotConfigured,
    RateLimited,
    RequestInvalid,
    ResultTokenRejected,
    SealRejected,
    SignerUnavailable,
    StoreBusy,
    Unauthenticated,
    Unavailable,
    Unknown,
)
from attestation_cli.login.errors import (
    CacheBusy,
    CacheUnsafe,
    ConfigInvalid,
    KeychainUnusable,
    LoginTimedOut,
)
from attestation_cli.plugins import PluginFailed
from attestation_cli.render import wrap
from attestation_cli.screen import Refused
from attestation_cli.session import Ambiguous, OtherTPM, Session


class ExitCode(IntEnum):
    """How a command ended; the numbers are documented and do not change."""

    OK = 0
    NEGATIVE = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5
    UNAVAILABLE = 6
    UNKNOWN = 7


CLOCKS_DIFFER = timedelta(minutes=2)
"""From here on a clock may be the reason why a token is not believed."""

# The first class that matches decides: narrower ones stand above wider ones.
MEANINGS: tuple[tuple[type[AttestationError], ExitCode, str], ...] = (
    (OperatorAccessNotConfigured, ExitCode.AUTH, "the service lets no operator in"),
    (LoginNeeded, ExitCode.AUTH, "you are not logged in"),
    (LoginRefused, ExitCode.AUTH, "you could not be logged in"),
    (Unauthenticated, ExitCode.AUTH, "the service does not know who you are"),
    (Forbidden, ExitCode.AUTH, "you may not do this"),
    (LogRejected, ExitCode.NEGATIVE, "the audit log does not verify"),
    (ResultTokenRejected, ExitCode.NEGATIVE, "this result proves nothing"),
    (SealRejected, ExitCode.NEGATIVE, "this bundle proves nothing"),
    (NotAuthentic, ExitCode.AUTH, "the service refused this"),
    (Unknown, ExitCode.NOT_FOUND, "not found"),
    (Expired, ExitCode.NOT_FOUND, "it no longer exists"),
    (Ambiguous, ExitCode.CONFLICT, "it is not clear which machine you mean"),
    (AnswerNotKept, ExitCode.CONFLICT, "this was done before; its answer is not repeated"),
    (Conflict, ExitCode.CONFLICT, "this is not possible now"),
    (OtherTPM, ExitCode.USAGE, "this is not the machine that you mean"),
    (Refused, ExitCode.USAGE, "nothing was changed"),
    (CacheUnsafe, ExitCode.USAGE, "the logins of this computer are not safe"),
    (KeychainUnusable, ExitCode.USAGE, "tokens cannot be kept in the keyring"),
    (ConfigInvalid, ExitCode.USAGE, "the settings of this program cannot be used"),
    (BundleInvalid, ExitCode.USAGE, "a trust bundle, or a certificate for it, cannot be used"),
    (RequestInvalid, ExitCode.USAGE, "this cannot be asked"),
    (MalformedNote, ExitCode.NEGATIVE, "this is no audit log that can be verified"),
    (MalformedEvidence, ExitCode.USAGE, "this cannot be asked"),
    (NotAcceptable, ExitCode.USAGE, "this cannot be asked"),
    (SignerUnavailable, ExitCode.UNAVAILABLE, "a key cannot sign now"),
    (KeyUnusable, ExitCode.USAGE, "a key cannot be used"),
    (OutcomeUnknown, ExitCode.UNKNOWN, "unknown whether it happened"),
    (DeadlineExceeded, ExitCode.UNAVAILABLE, "the service is too slow now; nothing was changed"),
    (StoreBusy, ExitCode.UNAVAILABLE, "the database of the service is locked; nothing was changed"),
    (RateLimited, ExitCode.UNAVAILABLE, "too many requests"),
    (NotTLS, ExitCode.UNAVAILABLE, "what answers there does not speak TLS"),
    (TLSFailed, ExitCode.UNAVAILABLE, "the service could not prove who it is"),
    (ServiceUnreachable, ExitCode.UNAVAILABLE, "the service does not answer"),
    (AnswerInvalid, ExitCode.UNAVAILABLE, "something answered, but not the attestation service"),
    (LoginTimedOut, ExitCode.UNAVAILABLE, "the login was not finished"),
    (ProviderUnreachable, ExitCode.UNAVAILABLE, "the identity provider does not answer"),
    (ProviderInvalid, ExitCode.UNAVAILABLE, "the identity provider cannot be used"),
    (CacheBusy, ExitCode.UNAVAILABLE, "another command does not finish"),
    (PluginFailed, ExitCode.UNAVAILABLE, "a plug-in failed"),
    (Unavailable, ExitCode.UNAVAILABLE, "the service cannot answer now"),
)

ADVICE: Mapping[str, str] = {
    "unauthenticated": "log in (again): `attestation auth login`; break-glass: set ITL_ADMIN_TOKEN or --token-file",
    "login-needed": "log in (again): `attestation auth login`",
    "login-refused": "try again: `attestation auth login`; `--help` shows the other ways",
    "login-timed-out": "try again: `attestation auth login`; without a browser here: `--method device`",
    "provider-unreachable": "check --issuer, or try again later; a private CA is named with --issuer-ca-file",
    "provider-invalid": "check --issuer: it must be what the provider calls itself, to the letter",
    "login-cache-unsafe": "see who changed it, then `attestation auth clear-cache` and log in again",
    "login-cache-busy": "end the other command, then try again",
    "keyring-unusable": "log in without --keyring: tokens are then kept in files that only you can read",
    "cli-config-invalid": "correct ~/.itl/config.toml; a profile is made by `attestation auth login --profile NAME`",
    "operator-access-not-configured": "start the service with ITL_ADMIN_TOKEN set",
    "log-broken": "trust no entry from there on; keep the file, and compare with an older export or a backup",
    "note-rejected": "get the vkeys from the operator of the log by another way than the file, and compare them",
    "seal-rejected": "do not act on this file; compare with the one in the archive, or ask for it again",
    "proof-rejected": "ask again; if it stays, keep what was answered and compare with an older export",
    "malformed-note": "get the file again; an export is made by `attestation audit export -f FILE`",
    "proof-unavailable": "`attestation audit checkpoint` shows how far the signed log goes",
    "result-token-rejected": "get a new result, and the keys of the service from its operator",
    "witness-unusable": "`attestation witness keygen` makes a new one; never put an older state in its place",
    "forbidden": "ask somebody with that role, or those who give out roles; yours: `attestation auth whoami --check`",
    "machine-unknown": "`attestation machine list` shows the machines there are",
    "registration-token-unknown": "`attestation token list` shows the tokens there are",
    "allow-list-entry-unknown": "`attestation allow-list list` shows the entries there are",
    "policy-unknown": "`attestation policy list` shows the policies there are",
    "transition-forbidden": "`attestation machine explain ID` tells where the machine stands and what is possible",
    "machine-changed": "somebody was faster: look again with `attestation machine get ID`, then decide again",
    "answer-not-kept": "look at what was made; a token that was lost is ended by `attestation token revoke ID`",
    "idempotency-key-reused": "what this key was given to was carried out, and this was not; for another command leave "
    "--again out",
    "act-in-progress": "wait a moment, then ask for the same again",
    "already-exists": "choose another name or version; what exists under this one cannot be changed",
    "ambiguous": "give more characters of the id",
    "another-tpm": "approve nothing; compare again with what `attestation-agent identify` prints on the machine itself",
    "not-confirmed": "run it in a terminal, or add --yes if you are sure",
    "tls-failed": "check the address; if the service has a private CA, name its file with --ca-file or ITL_CA_FILE",
    "not-tls": "check port and beginning of the address: what begins with https:// needs the port that speaks TLS",
    "service-unreachable": "check that the service runs there; another address: --api-url or ITL_API_URL",
    "answer-invalid": "check --api-url: it must be the address of the attestation service, without /api/v1",
    "http-400": "check --api-url: a port that speaks TLS needs an address that begins with https://",
    "http-404": "check --api-url: it must be the address of the attestation service, without /api/v1",
    "route-unknown": "a command of an extension needs it enabled in the service: `attestation extension list`; "
    "else check --api-url: it must be the address of the attestation service, without a path",
    "proposal-rival": "`attestation approval show DIGEST` shows that one, `approve` agrees to it, `object` ends it; "
    "--new-proposal adds yours",
    "proposal-differs": "`attestation approval list` shows what waits; look at it again before you agree",
    "approval-unknown": "`attestation approval list` shows what waits for votes",
    "authentication-too-old": "log in again: `attestation auth login`",
    "break-glass-cannot-vote": "log in as yourself: `attestation auth login`",
    "plugin-failed": "tell its maker; without it everything else works",
    "rate-limited": "wait a little, then try again",
    "store-unavailable": "try again; if it stays, /readyz of the service tells what is missing",
    "unavailable": "try again; if it stays, /readyz of the service tells what is missing",
    "assurance-too-low": "`attestation trust show ID` tells who vouches for it; `--accept-ek` admits this very EK",
    "trust-certificate-unknown": "`attestation trust list` shows the certificates there are",
    "trust-bundle-invalid": "`attestation tpm-bundle verify FILE` says more; only certificates of CAs vouch for TPMs",
    "result-unknown": "`attestation machine results ID` shows the results that are kept",
    "ca-not-configured": "give the service a CA: set ITL_ENROLLMENT_CA_PASSPHRASE_FILE or ITL_ENROLLMENT_CA_KEY",
    "certificate-unknown": "`attestation ca certificates` shows what was issued",
    "issuer-unknown": "`attestation ca show` shows the keys there are",
    "extension-unknown": "`attestation extension list` shows those that ITL_EXTENSIONS of the service names",
    "dead-letter-unknown": "`attestation extension dead-letters NAME -o wide` shows those there are, with their ids",
    "ca-rotation-forbidden": "`attestation ca show` tells where a rotation stands and what is possible",
    "key-not-found": "check the place that is named; `attestation ca show` tells where each key is",
    "pin-rejected": "check passphrase or PIN; a token is not asked again until it changes",
    "query-invalid": "`attestation query --tables` shows what you may ask",
    "query-unknown": "`attestation query --list` shows the queries there are",
    "query-ambiguous": "say whose: `attestation query --saved OWNER/NAME`",
    "query-timeout": "ask for less: `where` before `join` and `summarize`, a shorter time, fewer columns",
    "query-failed": "ask for less, or for smaller values",
    "queries-busy": "try again in a few seconds",
    "policy-invalid": "`attestation policy validate FILE` names each mistake; `attestation policy learn` writes one",
    "configurations-not-kept": "set ITL_CONFIG_KEK of the service; ITL_CONFIG_FILE_FALLBACK=true while some are files",
    "configuration-unreadable": "`attestation-service --check` names the key that is missing, or what was changed",
    "configuration-unknown": "`attestation config list`, or `config patch list MACHINE`, shows the versions there are",
    "configuration-invalid": "correct it; `attestation config lint FILE --talos VERSION` says the same offline",
    "cluster-unknown": "`attestation cluster list` shows those there are; `cluster create` declares another",
    "approval-rule-unknown": "`attestation approval-rule list` shows the rules there are",
    "console-code-unknown": "compare it with the console: after fifteen minutes another one stands there",
    "console-code-expired": "read the code that stands on the console now",
    "console-code-decided": "`attestation console list` shows who decided, and when; the machine shows another code",
    "schematic-invalid": "take out what it names; whatever is secret or one machine's comes with its configuration",
    "factory-unavailable": "check ITL_FACTORY_URL of the service, or set ITL_ISO_URL to an image of your own",
    "factory-answer-invalid": "check ITL_FACTORY_URL of the service: it must be the address of an Image Factory",
    "schematic-mismatch": "use none of its images; compare with `attestation image schematic`",
}

NOT_BY_WAITING: Final = frozenset({"ca-not-configured", "configurations-not-kept", "schematic-mismatch"})
"""Codes that come with a pause, as each 503 does, and stay until somebody changes a setting."""


def report(error: AttestationError, session: Session) -> ExitCode:
    """Print *error* to stderr and return the exit code of its meaning."""
    exit_code, what = meaning(error)
    advice = _advice(error, session)
    if session.json:
        told = _as_json(error, what, advice)
        if isinstance(error, OutcomeUnknown):
            told["next_command"] = session.repeat()
        session.note(json.dumps({"error": told}, indent=2))
        return exit_code
    lines = [f"{_label('error:')} {what}"]
    why = str(error).splitlines() or ["no reason was given"]
    lines.append(_fold("why:", clean(why[0])))
    lines += [f"       {clean(line)}" for line in why[1:]]
    if isinstance(error, APIError):
        lines += [f"       {clean(e.field)}: {clean(e.message)}" for e in error.errors]
        if (clocks := _clocks(error)) is not None:
            lines.append(f"       {clocks}")
    lines.append(_fold("what to do:", advice))
    if isinstance(error, OutcomeUnknown):
        lines.append(f"       {clean(session.repeat())}")  # whole, so that it can be copied
    if isinstance(error, APIError):
        lines.append(
            f"  {_label('code:')} {clean(error.code)}, request {clean(error.request_id or 'without id')}"
        )
    session.note("\n".join(lines))
    return exit_code


def _clocks(error: APIError) -> str | None:
    """Return that the clocks of the service and of this computer differ, where it refused a credential for that."""
    now = datetime.now(UTC)
    theirs = error.answered_at
    if theirs is None or not isinstance(error, Unauthenticated) or abs(now - theirs) <= CLOCKS_DIFFER:
        return None
    return (
        f"the clock of this computer is {apart(now, theirs)} that of the service, {theirs:%Y-%m-%d %H:%M} UTC"
    )


def _fold(label: str, text: str) -> str:
    """Return one point of the report, in lines that fit where somebody reads it; a file or a pipe has no edge."""
    if sys.stderr.isatty():
        width = max(40, shutil.get_terminal_size().columns)
        text = wrap(text, width, first=" " * (len(label) + 3), rest=" " * 7).lstrip()
    return f"  {_label(label)} {text}"


def meaning(error: AttestationError) -> tuple[ExitCode, str]:
    """Return exit code and headline of *error*; an error of a plug-in may have a `headline` and `advice` of its own."""
    for kind, exit_code, what in MEANINGS:
        if isinstance(error, kind):
            return exit_code, getattr(error, "headline", what)
    return ExitCode.UNAVAILABLE, "the service failed"


def _advice(error: AttestationError, session: Session) -> str:
    advice: str | None = getattr(error, "advice", ADVICE.get(error.code))
    if isinstance(error, OutcomeUnknown):
        return "ask again with exactly this command; what was done is not done twice:"
    if (
        isinstance(error, ServiceUnreachable | AnswerInvalid)
        or error.code.startswith("http-")
        or error.code == "route-unknown"
    ):
        where = f"now it is {clean(session.url)}, from {session.url_source}"
        if type(error) is ServiceUnreachable and error.sent and session.url.startswith("http:"):
            # A port that speaks TLS ends a connection that begins with anything else, without a word.
            advice = "check the port; if it speaks TLS, the address begins with https://"
        return f"{advice or 'check --api-url'} ({where})"
    waiting = error.retry_after_seconds if isinstance(error, APIError) else None
    if waiting is not None and error.code not in NOT_BY_WAITING:
        return f"try again in {waiting} s"
    if advice is not None:
        return advice
    if isinstance(error, APIError) and error.status >= 500:
        return "look for the request id in the log of the service"
    if "not encrypted" in str(error):
        return "use an https:// address; --allow-plain-http sends the token in the clear all the same"
    return "correct it and try again; --help shows what is expected"


def _as_json(error: AttestationError, what: str, advice: str) -> dict[str, object]:
    known: dict[str, object] = {
        "code": error.code,
        "title": what,
        "detail": str(error),
        "what_to_do": advice,
    }
    if isinstance(error, APIError):
        known["status"] = error.status
        known["request_id"] = error.request_id
        known["errors"] = [e.model_dump() for e in error.errors]
    return known


def _label(text: str) -> str:
    # click.echo removes the colour where stderr is no terminal, or NO_COLOR asks for it.
    return click.style(text, bold=True)
