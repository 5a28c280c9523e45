"""The certificates of this node: a key in its TPM, a certificate for it, and always a newer one in time.

Nothing in here stops or delays an attestation: it happens between or beside the rounds, every failure ends in a note
and a later attempt, and what is offered to other programs is only ever replaced by something newer that was checked.

Whom it believes: a CA is trusted because the service's key, pinned at the first activation, signed the bundle it
stands in (docs/adr/0039). A certificate is taken only from such a CA.
"""

# Algorithms for: key-identifier
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509 import ocsp

from attestation.api import CertificateChallenge, CertRequest, CertResponse
from attestation.client import SignedBundle
from attestation.clock import Clock, parse_rfc3339, rfc3339
from attestation.device import TPMKey
from attestation.errors import AttestationError, KeyRefused, MalformedEvidence, TPMResponseError
from attestation.evidence.key_certification import csr_binding
from attestation.machines import Status
from attestation.tpm import parse_public
from attestation.tpm.key_file import encode_key_file, parse_key_file
from attestation.wire import b64decode, b64encode
from attestation_agent import directive as directives
from attestation_agent.commands import Outcome
from attestation_agent.edge import Log
from attestation_agent.exits import AnswerRefused, DirectiveRejected
from attestation_agent.issued import certificates, check, ended_for_good, issued_by
from attestation_agent.offered import BUNDLE, CERTIFICATE, CHAIN, KEY, CertificateSet, Offered
from attestation_agent.rhythm import Rhythm
from attestation_agent.settings import Settings
from attestation_agent.shared_tpm import KeyTPM
from attestation_agent.standing import NONCE_BYTES
from attestation_agent.state import KnownAs, State
from attestation_agent.tpm_keys import describe_key, key_type, make_request, proves_key

RENEW_AT: Final = 2 / 3
"""Part of the lifetime after which a certificate is renewed."""
RENEW_SPREAD: Final = 0.1
"""Of that, earlier or later at random: a fleet that was started together must not come together."""
STATUS_SECONDS: Final = 600.0
"""How often we ask whether what we offer was revoked: by an operator, or because the machine got another role."""
BUNDLE_SECONDS: Final = 3600.0
"""A new CA is trusted long before it issues (overlap ≥ longest certificate + 24 h): this often is often enough."""
LOOK_SECONDS: Final = 60.0
"""How often somebody looks whether anything is due."""
MAX_NOTE_CHARACTERS: Final = 500
LONGEST_WAIT: Final = timedelta(hours=2)
"""A time to try again that lies further ahead was written by another clock."""

_FIRST_RETRY_SECONDS: Final = 15.0
_MOST_RETRY_SECONDS: Final = 600.0


_TELLING: Final = ("told", "tell_error", "tell_failures", "tell_again_at")


class CertificateService(Protocol):
    """What certificates need of `attestation.client.NodeClient`."""

    def certificate_challenge(
        self, machine_id: str, purpose: Literal["certify", "enroll"]
    ) -> CertificateChallenge:
        """Fetch a fresh challenge."""
        ...

    def request_certificate(self, machine_id: str, request: CertRequest) -> CertResponse:
        """Ask for a certificate."""
        ...

    def trust_bundle(self) -> SignedBundle:
        """Fetch the CAs to trust."""
        ...

    def certificate_status(self, request: bytes) -> bytes:
        """Ask by OCSP what became of a certificate."""
        ...


@dataclass(slots=True, kw_only=True)
class _Progress:
    """What this process knows of one kind; the rest stands in files."""

    proven: str | None = None
    """The version whose key was found to be in this TPM."""
    failures: int = 0
    bundle_failures: int = 0
    bundle_at: datetime | None = None
    status_at: datetime | None = None
    revoked: str | None = None
    """The version whose certificate was revoked."""
    key_refused: bool = False
    """The service never certifies the key that we asked for: the next one is a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A certificate that was checked, and everything that is offered beside it."""

    files: Mapping[str, bytes]
    about: Mapping[str, Any]


class CertificateKeeper:
    """Keeps what `settings.certificates` names.

    Args:
        settings: What the administrator chose.
        state: Who we are, whom we believe, and whether we are admitted.
        offered: Where it all goes.
        service: Who issues.
        tpm: Where the keys are.
        clock: Tells the time.
        run: Runs a command.
        log: Where events go.
        rhythm: When to try again.
        stopping: True once the agent ends: what fails then is no failure.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        state: State,
        offered: Offered,
        service: CertificateService,
        tpm: KeyTPM,
        clock: Clock,
        run: Callable[[tuple[str, ...]], Outcome],
        log: Log,
        rhythm: Rhythm | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._state = state
        self._offered = offered
        self._service = service
        self._tpm = tpm
        self._clock = clock
        self._run = run
        self._log = log
        self._rhythm = rhythm or Rhythm(first_seconds=_FIRST_RETRY_SECONDS, most_seconds=_MOST_RETRY_SECONDS)
        self._stopping = stopping
        self._progress = {
            kind: _Progress(failures=_count(offered.notes(kind).get("failures")))
            for kind in settings.certificates
        }

    def visit(self) -> None:
        """Do what is due; whatever fails is noted, and tried again later."""
        for kind in self._settings.certificates:
            try:
                self._visit(kind)
            except (AttestationError, OSError) as e:
                self._failed(kind, e)
            except Exception as e:  # noqa: BLE001 -- the outermost border: attesting goes on whatever happens here
                self._failed(kind, e)

    def _visit(self, kind: str) -> None:
        now, progress = self._clock.now(), self._progress[kind]
        notes = self._offered.notes(kind)
        known = self._state.known_as()
        current = self._offered.current(kind)
        if current is not None:
            self._tell(kind, current, notes, now)
        # Anybody else would be refused, and would only wake an operator.
        if known is None or self._state.status() != Status.ATTESTED:
            return
        if current is not None and (progress.bundle_at is None or now >= progress.bundle_at):
            self._refresh_bundle(kind, current)
            current = self._offered.current(kind)
        if _is_ahead(notes.get("next_try_at"), now):
            return
        reason = self._due(kind, current, now)
        if reason is not None:
            self._obtain(kind, current, known, reason)

    def _due(self, kind: str, current: CertificateSet | None, now: datetime) -> str | None:
        """Return why a certificate is needed now; None where the present one does."""
        if current is None:
            return "none"
        if not self._holds(kind, current):
            return "key-lost"
        if current.about.get("activated_at") != self._state.activated_at():
            # An ak-reset revoked whatever the AK had vouched for; or this is another machine now.
            return "activated-again"
        if self._is_revoked(kind, current, now):
            return "revoked"
        if self._offered.asked(kind):
            return "asked"
        # A time that cannot be read any more is over.
        if not _is_ahead(current.about.get("renew_at"), now, most=timedelta.max):
            return "renewal"
        return None

    def _holds(self, kind: str, current: CertificateSet) -> bool:
        """True where the key that is offered is in this TPM; asked once by each process.

        Raises:
            DeviceError: The TPM cannot say.
        """
        progress = self._progress[kind]
        if progress.proven == current.version:
            return True
        try:
            key = parse_key_file(current.files[KEY])
            if not proves_key(self._tpm, key, current.certificate.public_key()):
                return False
        except MalformedEvidence:
            return False
        except TPMResponseError as e:
            if not _says_key_is_lost(e):
                raise
            self._log.warning("certificate.key_lost", kind=kind, reason=str(e))
            return False
        progress.proven = current.version
        return True

    def _is_revoked(self, kind: str, current: CertificateSet, now: datetime) -> bool:
        """Ask now and then whether the certificate was revoked for good; a hold ends by itself.

        The answer is not verified: whoever forges it makes us ask for another certificate, no more and no less.
        """
        progress = self._progress[kind]
        if progress.revoked == current.version:
            return True
        if progress.status_at is not None and now < progress.status_at:
            return False
        progress.status_at = now + timedelta(seconds=self._rhythm.uniform(0.8, 1.0) * STATUS_SECONDS)
        issuers = [ca for ca in certificates(current.files[BUNDLE]) if issued_by(current.certificate, ca)]
        if not issuers:
            return False
        asked = ocsp.OCSPRequestBuilder().add_certificate(current.certificate, issuers[0], hashes.SHA256())
        try:
            der = self._service.certificate_status(asked.build().public_bytes(serialization.Encoding.DER))
            if ended_for_good(ocsp.load_der_ocsp_response(der), current.certificate.serial_number):
                progress.revoked = current.version
                self._log.warning("certificate.revoked", kind=kind, serial=current.about.get("serial"))
        except (AttestationError, ValueError) as e:
            self._log.warning("certificate.status_failed", kind=kind, reason=str(e))
        return progress.revoked == current.version

    # Getting one

    def _obtain(self, kind: str, current: CertificateSet | None, known: KnownAs, reason: str) -> None:
        """Get a certificate and offer it; until then nothing of the present one changes."""
        refused = self._progress[kind].key_refused
        keep = reason in ("renewal", "asked") and not (self._settings.certificate_new_key or refused)
        key = parse_key_file(current.files[KEY]) if current and keep else self._pending_key(kind)
        made = self._request(kind, key, known)
        version = self._offered.replace(kind, made.files, made.about)
        self._offered.set_pending_key(kind, None)
        self._offered.answered(kind)
        progress = self._progress[kind]
        progress.proven, progress.failures, progress.bundle_failures = version, 0, 0
        progress.key_refused = False
        self._plan_bundle(progress)
        self._log.info(
            "certificate.issued",
            kind=kind,
            reason=reason,
            serial=made.about["serial"],
            issuer=made.about["issuer"],
            not_after=made.about["not_after"],
            renew_at=made.about["renew_at"],
        )
        # Nothing is left of earlier failures.
        self._tell_now(kind, {})

    def _pending_key(self, kind: str) -> TPMKey:
        """Return the key that waits for its certificate, a new one where none does or it is not of this TPM."""
        waiting = self._offered.pending_key(kind)
        if waiting is not None:
            try:
                key = parse_key_file(waiting)
                wanted = self._settings.certificate_key in ("auto", describe_key(key))
                if wanted and proves_key(self._tpm, key, parse_public(key.public).key()):
                    return key
            except MalformedEvidence:
                pass
            except TPMResponseError as e:
                if not _says_key_is_lost(e):
                    raise
        key = self._tpm.create_signing_key(key_type(self._settings.certificate_key))
        self._offered.set_pending_key(kind, encode_key_file(key))
        self._log.info("certificate.key_made", kind=kind, key=describe_key(key))
        return key

    def _request(self, kind: str, key: TPMKey, known: KnownAs) -> _Made:
        """Ask the service and check what it gives."""
        # Read first: what is activated meanwhile asks again.
        activated_at = self._state.activated_at()
        challenge = self._service.certificate_challenge(known.machine_id, "certify")
        nonce = b64decode(challenge.nonce, "nonce", max_bytes=NONCE_BYTES)
        request = make_request(self._tpm, key, known.machine_id)
        certified = self._tpm.certify_key(key, csr_binding(nonce, request.tbs_certrequest_bytes))
        answer = self._service.request_certificate(
            known.machine_id,
            CertRequest.model_validate(
                {
                    "nonce_id": challenge.nonce_id,
                    "csr_pem": request.public_bytes(serialization.Encoding.PEM).decode("ascii"),
                    "key_public": b64encode(key.public),
                    "certify_info": b64encode(certified.certify_info),
                    "certify_signature": b64encode(certified.signature),
                    "profile": f"node-{kind}",
                }
            ),
        )
        made = self._checked(kind, key, known, answer, self._authentic_bundle())
        return replace(made, about={**made.about, "activated_at": activated_at})

    def _checked(self, kind: str, key: TPMKey, known: KnownAs, answer: CertResponse, bundle: bytes) -> _Made:
        """Return what is offered from now on.

        Raises:
            AnswerRefused: The answer is not what was asked for.
        """
        if answer.machine_id != known.machine_id or answer.profile != f"node-{kind}":
            raise AnswerRefused(
                "the service answered about another machine, or with another kind of certificate"
            )
        if not answer.certificates:
            raise AnswerRefused("the answer holds no certificate")
        trusted = certificates(bundle)
        spki = parse_public(key.public).spki_der()
        files = {KEY: encode_key_file(key), BUNDLE: bundle}
        first: x509.Certificate | None = None
        for issued in answer.certificates:
            pem, chain = issued.cert_pem.encode("ascii"), issued.chain_pem.encode("ascii")
            certificate = check(pem, chain, spki=spki, known=known, trusted=trusted, at=self._clock.now())
            if first is None:
                first = certificate
                files |= {CERTIFICATE: pem, CHAIN: chain}
            else:
                files[f"extra-{_word(issued.algorithm)}.pem"] = pem + chain
        assert first is not None
        lifetime = first.not_valid_after_utc - first.not_valid_before_utc
        part = RENEW_AT * self._rhythm.uniform(1 - RENEW_SPREAD, 1 + RENEW_SPREAD)
        return _Made(
            files=files,
            about={
                "machine_id": known.machine_id,
                "serial": f"{first.serial_number:040x}",
                "issuer": first.issuer.rfc4514_string(),
                "not_before": rfc3339(first.not_valid_before_utc),
                "not_after": rfc3339(first.not_valid_after_utc),
                # Drawn once: who draws again at each start renews ever earlier.
                "renew_at": rfc3339(first.not_valid_before_utc + lifetime * part),
                "key": describe_key(key),
                "key_tier": answer.key_tier,
                "obtained_at": rfc3339(self._clock.now()),
            },
        )

    # Whom to trust

    def _authentic_bundle(self) -> bytes:
        """Fetch the CAs to trust, signed by the keys that were pinned at the activation."""
        fetched = self._service.trust_bundle()
        keys = self._state.service_keys()
        if keys is None:
            raise DirectiveRejected("no service keys are pinned")
        directives.verify_trust_bundle(fetched.signature, fetched.pem, keys=keys, at=self._clock.now())
        certificates(fetched.pem)
        return fetched.pem

    def _refresh_bundle(self, kind: str, current: CertificateSet) -> None:
        """Follow a rotation of the CA between two renewals."""
        progress = self._progress[kind]
        try:
            bundle = self._authentic_bundle()
        except AttestationError as e:
            if self._stopping():
                return
            progress.bundle_failures += 1
            pause = self._rhythm.after_failure(
                progress.bundle_failures, getattr(e, "retry_after_seconds", None)
            )
            progress.bundle_at = self._clock.now() + timedelta(seconds=pause)
            self._log.warning("certificate.bundle_failed", kind=kind, code=e.code, reason=str(e))
            return
        progress.bundle_failures = 0
        self._plan_bundle(progress)
        if bundle == current.files[BUNDLE]:
            return
        files = {name: data for name, data in current.files.items() if name != BUNDLE}
        version = self._offered.replace(kind, {**files, BUNDLE: bundle}, current.about)
        if progress.proven == current.version:
            progress.proven = version
        self._log.info("certificate.bundle_changed", kind=kind, certificates=len(certificates(bundle)))
        self._tell_now(kind, self._offered.notes(kind))

    def _plan_bundle(self, progress: _Progress) -> None:
        pause = self._rhythm.uniform(0.8, 1.0) * BUNDLE_SECONDS
        progress.bundle_at = self._clock.now() + timedelta(seconds=pause)

    # Telling: other programs, and people

    def _tell_now(self, kind: str, notes: Mapping[str, Any]) -> None:
        current = self._offered.current(kind)
        if current is not None:
            self._tell(kind, current, notes, self._clock.now())

    def _tell(self, kind: str, current: CertificateSet, notes: Mapping[str, Any], now: datetime) -> None:
        """Run the command for files that changed, once, and again later where it failed; survives a crash."""
        if notes.get("told") == current.version or _is_ahead(notes.get("tell_again_at"), now):
            return
        failed = None
        if self._settings.certificate_command:
            outcome = self._run((*self._settings.certificate_command, str(self._offered.path(kind))))
            if not outcome.ok:
                failed = outcome.text
                self._log.warning("certificate.command_failed", kind=kind, reason=failed)
        said: dict[str, Any] = {k: v for k, v in notes.items() if k not in _TELLING}
        if failed is None:
            said["told"] = current.version
        else:
            failures = _count(notes.get("tell_failures")) + 1
            pause = timedelta(seconds=self._rhythm.after_failure(failures, None))
            said |= {
                "tell_failures": failures,
                "tell_error": failed,
                "tell_again_at": rfc3339(now + pause),
            }
        self._offered.set_notes(kind, said)

    def _failed(self, kind: str, error: Exception) -> None:
        """Note what went wrong and when to try again."""
        if self._stopping():
            return
        progress, now = self._progress[kind], self._clock.now()
        progress.failures += 1
        # The key may be what was wrong: looked at again.
        progress.proven = None
        pause = self._rhythm.after_failure(progress.failures, getattr(error, "retry_after_seconds", None))
        code = error.code if isinstance(error, AttestationError) else type(error).__name__
        reason = str(error)[:MAX_NOTE_CHARACTERS]
        progress.key_refused = progress.key_refused or code == KeyRefused.code
        self._log.error("certificate.failed", kind=kind, code=code, reason=reason, failures=progress.failures)
        try:
            if code == KeyRefused.code:
                self._offered.set_pending_key(kind, None)
            self._offered.set_notes(
                kind,
                {
                    **self._offered.notes(kind),
                    "error": {"at": rfc3339(now), "code": code, "reason": reason},
                    "failures": progress.failures,
                    "next_try_at": rfc3339(now + timedelta(seconds=pause)),
                },
            )
        except OSError as e:
            self._log.error("certificate.notes_failed", kind=kind, reason=str(e))


def _is_ahead(text: object, now: datetime, *, most: timedelta = LONGEST_WAIT) -> bool:
    """True where *text* is an instant after *now*, but not after all that can have been meant: clocks jump."""
    try:
        at = parse_rfc3339(text) if isinstance(text, str) else now
    except ValueError:
        return False
    return now < at and at - now <= most


def _count(noted: object) -> int:
    return noted if isinstance(noted, int) and 0 <= noted < 1_000_000 else 0


def _says_key_is_lost(error: TPMResponseError) -> bool:
    """True where the TPM refused the key itself, as after TPM2_Clear, and not because it was busy or full.

    Format one (bit 7) is about a parameter, handle or session of the command (Part 2, 6.6.2).
    """
    return bool(error.response_code & 0x80)


def _word(text: str) -> str:
    """Return *text* as part of a file's name."""
    return re.sub(r"[^a-z0-9-]", "-", text.lower())[:32]
