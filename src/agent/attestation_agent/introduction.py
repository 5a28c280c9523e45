"""How a TPM is introduced and its AK activated: only a welcome for this TPM changes anything (PROTOCOL §§1-2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attestation.api import (
    ActivateRequest,
    ActivateResponse,
    AKCertificate,
    AKStatement,
    IntroduceRequest,
    IntroduceResponse,
    RegisterRequest,
)
from attestation.device import FurtherEK, Identity
from attestation.errors import (
    AttestationError,
    ChallengeExpired,
    DeviceError,
    EKCertificateRejected,
    EKTemplateRejected,
    MalformedEvidence,
    RegistrationTokenInvalid,
    RequestInvalid,
    TPMResponseError,
)
from attestation.evidence import ak_activation, ak_certificate
from attestation.keys import (
    JWSRejected,
    key_set_sha256,
    thumbprints,
)
from attestation.machines import Status
from attestation.tpm import parse_public
from attestation.wire import b64decode, b64encode
from attestation_agent import directive as directives
from attestation_agent.directive import Request
from attestation_agent.exits import (
    DirectiveRejected,
    ServiceKeysChanged,
    UsageError,
)
from attestation_agent.hardware import read_hardware
from attestation_agent.standing import ORDERED, Standing
from attestation_agent.state import KnownAs

MAX_TOKEN_FILE_BYTES: Final = 1024
MAX_KEYS_FILE_BYTES: Final = 65_536


class Introducing(Standing):
    """A node that can become known."""

    def _known(self) -> KnownAs:
        """Return who we are to the service; introduce ourselves where it does not know this TPM yet."""
        known = self._state.known_as()
        if known is not None and known.ek_fingerprint == self._fingerprint():
            return known
        return self._enrol(presents_token=known is None)

    def _enrol(self, *, presents_token: bool = False) -> KnownAs:
        """Introduce the TPM and prove that the AK lives in it; only a welcome for this TPM changes anything.

        Args:
            presents_token: A registration token is presented. The keys that were given beside it are asked for
                whenever none are pinned: also of a machine that was known before.
        """
        registration_token, given_sha256 = self._token_to_present(presents_token=presents_token)
        identity, tpm = self._identify(), self._open_tpm()
        ak_public = tpm.ak_public()
        introduced, further = self._introduce(
            self._told_of_us(identity, ak_public), registration_token, self._further_eks()
        )
        offered = introduced.credential()
        secret = tpm.activate(
            b64decode(offered.credential_blob, "credential_blob"),
            b64decode(offered.encrypted_secret, "encrypted_secret"),
        )
        proof = ak_activation.proof(
            secret,
            machine_id=introduced.machine_id,
            challenge_id=offered.challenge_id,
            ek_public=identity.ek_public,
            ak_name=parse_public(ak_public).name,
        )
        proofs = self._further_proofs(introduced, further)
        vouched = self._vouched(introduced.machine_id, offered.challenge_id, proof, identity.ek_chain)
        asked = self._request(introduced.machine_id)
        try:
            activated = self._activate(
                introduced.machine_id,
                ActivateRequest(
                    challenge_id=offered.challenge_id,
                    proof=b64encode(proof),
                    alternative_proofs=proofs,
                    node_nonce=b64encode(asked.node_nonce),
                    ak_certificate=vouched,
                ),
            )
        except ChallengeExpired as e:
            self._hide_further(further, e)
            raise
        return self._welcomed(activated, asked, given_sha256, introduced.machine_id, offered.challenge_id)

    def _told_of_us(self, identity: Identity, ak_public: bytes) -> dict[str, Any]:
        """Return the members of an introduction: who this TPM is, its AK, and hints for operators."""
        return {
            "ek_public": b64encode(identity.ek_public),
            "ek_source": identity.ek_source,
            "ek_cert_pem": b64encode(identity.ek_certificate) if identity.ek_certificate else None,
            "ek_chain": [b64encode(certificate) for certificate in identity.ek_chain[:16]],
            "ek_fingerprint": self._fingerprint(),
            "ak_public": b64encode(ak_public),
            "desired_role": self._settings.desired_role,
            "cluster_id": self._settings.cluster_id,
            **read_hardware(self._settings.sysfs),
        }

    def _token_to_present(self, *, presents_token: bool) -> tuple[str | None, str | None]:
        """Return the token, where it is presented, and the digest of the service's keys that came beside it."""
        if not presents_token and self._state.service_keys() is not None:
            return None, None
        registration_token, given_sha256 = self._registration_token()
        return registration_token if presents_token else None, given_sha256

    def _welcomed(
        self,
        activated: ActivateResponse,
        asked: Request,
        given_sha256: str | None,
        machine_id: str,
        challenge_id: str,
    ) -> KnownAs:
        """Return who we are from now on: only a welcome for us says so."""
        # Until here nothing was signed. Who answers, for this machine, under this id, now: this says so.
        keys, pinned_by = self._keys_of(activated, given_sha256)
        if activated.next_keys is not None and (
            followed := self._next_keys(activated.next_keys, keys, asked)
        ):
            # Whoever was away while the keys changed knows only the one before, and it names the one that signs now.
            keys, pinned_by = followed, pinned_by or "succession"
        status = directives.verify_welcome(
            activated.welcome, keys=keys, asked=asked, challenge_id=challenge_id
        )
        self._pin(keys, pinned_by)
        self._remember(KnownAs(machine_id=machine_id, ek_fingerprint=self._fingerprint()), status)
        known = self._state.known_as()
        assert known is not None
        return known

    def _introduce(
        self, members: dict[str, Any], registration_token: str | None, further: tuple[FurtherEK, ...]
    ) -> tuple[IntroduceResponse, tuple[FurtherEK, ...]]:
        """Introduce the TPM, with a token and further EKs if there are any; return the answer and the EKs shown.

        Better a machine that waits for an operator than one that nobody hears of: what is refused is left out.
        """
        if further:
            shown = [
                {"ek_public": b64encode(each.ek_public), "ek_cert_pem": b64encode(each.certificate)}
                for each in further
            ]
            try:
                return self._introduce_as({**members, "ek_alternatives": shown}, registration_token), further
            except (RequestInvalid, MalformedEvidence, EKCertificateRejected, EKTemplateRejected) as e:
                self._hide_further(further, e)
        return self._introduce_as(members, registration_token), ()

    def _introduce_as(self, members: dict[str, Any], registration_token: str | None) -> IntroduceResponse:
        """Introduce the TPM with the token; without it where it is refused."""
        if registration_token is not None:
            try:
                return self._client.introduce(
                    RegisterRequest.model_validate({**members, "registration_token": registration_token})
                )
            except RegistrationTokenInvalid:
                self._edge.log.warning("registration_token.refused")
        return self._client.introduce(IntroduceRequest.model_validate(members))

    def _vouched(
        self, machine_id: str, challenge_id: str, proof: bytes, chain: tuple[bytes, ...]
    ) -> AKCertificate | None:
        """Have a certified attestation key of this TPM vouch for the AK, where there is one: a maker's or provider's.

        Better a machine that nobody vouches for than one that nobody hears of: where it fails nothing is sent.
        """
        tpm = self._open_tpm()
        try:
            certified = next(iter(tpm.certified_aks()), None)
            if certified is None:
                return None
            binding = ak_certificate.binding(machine_id=machine_id, challenge_id=challenge_id, proof=proof)
            stated = tpm.vouch(certified, binding)
        except DeviceError as e:
            self._edge.log.warning("ak_certificate.failed", code=e.code, reason=str(e))
            return None
        self._edge.log.info("ak_certificate.shown", place=certified.name)
        return AKCertificate(
            certificate=b64encode(certified.certificate),
            chain=[b64encode(each) for each in chain[:16]],
            statement=AKStatement(
                key_public=b64encode(certified.public),
                certify_info=b64encode(stated.certify_info),
                signature=b64encode(stated.signature),
            ),
        )

    def _activate(self, machine_id: str, request: ActivateRequest) -> ActivateResponse:
        """Send the proof; without the certificate of an attestation key where the service cannot read that."""
        try:
            return self._answered(lambda: self._client.activate(machine_id, request))
        except (RequestInvalid, MalformedEvidence) as e:
            if request.ak_certificate is None:
                raise
            # One of before knows no such member; what it could not read has spent nothing.
            self._edge.log.warning("ak_certificate.hidden", code=e.code, reason=str(e))
        plain = request.model_copy(update={"ak_certificate": None})
        return self._answered(lambda: self._client.activate(machine_id, plain))

    def _further_eks(self) -> tuple[FurtherEK, ...]:
        """Return the other EKs of this TPM that its maker certified: shown together, they are one machine."""
        if not self._shows_further:
            return ()
        try:
            return self._open_tpm().further_eks()
        except TPMResponseError as e:
            self._edge.log.warning("further_eks.failed", code=e.code, reason=str(e))
            return ()

    def _further_proofs(self, introduced: IntroduceResponse, further: tuple[FurtherEK, ...]) -> list[str]:
        """Prove each further EK by the credential that was sealed to it; where one fails none counts, nor is sent."""
        offered, tpm, proofs = introduced.credential(), self._open_tpm(), []
        if len(offered.alternatives) != len(further):
            return []
        try:
            for each, credential in zip(further, offered.alternatives, strict=True):
                secret = tpm.activate(
                    b64decode(credential.credential_blob, "credential_blob"),
                    b64decode(credential.encrypted_secret, "encrypted_secret"),
                    ek_public=each.ek_public,
                )
                made = ak_activation.proof(
                    secret,
                    machine_id=introduced.machine_id,
                    challenge_id=offered.challenge_id,
                    ek_public=each.ek_public,
                    ak_name=parse_public(tpm.ak_public()).name,
                    primary=self._fingerprint(),
                )
                proofs.append(b64encode(made))
        except (MalformedEvidence, TPMResponseError) as e:
            self._edge.log.warning("further_eks.failed", code=e.code, reason=str(e))
            return []
        return proofs

    def _hide_further(self, further: tuple[FurtherEK, ...], why: AttestationError) -> None:
        """Go on without further EKs: the service refuses one of them, or they take longer than a challenge lives."""
        if further:
            self._shows_further = False
            self._edge.log.warning("further_eks.hidden", code=why.code, reason=str(why))

    def _remember(self, known: KnownAs, status: Status) -> None:
        """Keep who we are to the service, which it just signed."""
        before = self._state.known_as()
        if before is not None and before != known:
            # What was kept is another machine's: its record was deleted, or the disk sits in another box.
            self._state.set_pending_config(None)
            self._state.set_wipe_order(None)
            self._state.set_status(None)
        elif before is None:
            self._forget_foreign_order(known)
        self._state.remember(known, at=self._edge.clock.now())
        # That it is locked is no order to lock itself: this comes with its first attestation.
        if status not in ORDERED and self._state.status() not in ORDERED:
            self._state.set_status(status)
        self._next = None
        self._edge.log.info(
            "activated", machine_id=known.machine_id, ek_fingerprint=known.ek_fingerprint, status=status
        )

    def _forget_foreign_order(self, known: KnownAs) -> None:
        """Forget an order to wipe that outlived our memory and is for another machine: the disk was moved."""
        order = self._state.wipe_order()
        if order is None:
            return
        try:
            directives.verify_again(
                order.directive, keys=self._pinned_keys(), to=self._binding(known.machine_id)
            )
        except DirectiveRejected as e:
            self._edge.log.warning("wipe.foreign", reason=str(e))
            self._state.set_wipe_order(None)

    def _keys_of(
        self, activated: ActivateResponse, given_sha256: str | None
    ) -> tuple[Mapping[str, Any], str | None]:
        """Return the keys that the welcome must be signed by, and by whose word where they are not pinned yet.

        Raises:
            ServiceKeysChanged: The service shows none of those that are pinned or were given.
        """
        try:
            shown = thumbprints(activated.service_keys)
        except JWSRejected as e:
            raise ServiceKeysChanged(f"the service shows no keys: {e}") from e
        pinned = self._state.service_keys()
        if pinned is not None:
            if not thumbprints(pinned).keys() & shown.keys():
                raise ServiceKeysChanged(
                    "the service shows other keys than those pinned. If the service was rebuilt on purpose, remove "
                    f"{self._state.directory / 'service-keys.json'}; otherwise somebody is in between"
                )
            return pinned, None
        if self._settings.service_keys_file is not None:
            return _keys_in(self._settings.service_keys_file), "file"
        if given_sha256 is None:
            return activated.service_keys, "first use"
        for chosen in _subsets(shown):
            if key_set_sha256(frozenset(chosen)).hex() == given_sha256:
                return {"keys": [shown[name] for name in chosen]}, "digest"
        raise ServiceKeysChanged(
            "the service shows other keys than those that came with the registration token; "
            "somebody is in between, or the keys were changed since"
        )

    def _registration_token(self) -> tuple[str | None, str | None]:
        """Return the token that admits this machine, and the digest of the service's keys where it came along."""
        path = self._settings.registration_token_file
        if path is None:
            return None, None
        try:
            with path.open(encoding="ascii") as file:
                words = file.read(MAX_TOKEN_FILE_BYTES).split()
        except (OSError, UnicodeDecodeError) as e:
            reason = e.strerror if isinstance(e, OSError) else "not text"
            raise UsageError(f"registration token file {path}: {reason}") from e
        if not 1 <= len(words) <= 2 or not 1 <= len(words[0]) <= 256:
            raise UsageError(f"registration token file {path} holds no token")
        if len(words) == 1:
            return words[0], None
        if len(words[1]) != 64 or not set(words[1]) <= set("0123456789abcdef"):
            raise UsageError(
                f"registration token file {path}: its second word is no SHA-256 of the service's keys"
            )
        return words[0], words[1]


def _keys_in(path: Path) -> dict[str, Any]:
    """Return the JWK set that an administrator put at *path*.

    Raises:
        UsageError: There is none.
    """
    try:
        with path.open("rb") as file:
            keys = json.loads(file.read(MAX_KEYS_FILE_BYTES))
        thumbprints(keys)
    except OSError as e:
        raise UsageError(f"service keys file {path}: {e.strerror}") from e
    except (ValueError, AttributeError, RecursionError, JWSRejected) as e:
        raise UsageError(f"service keys file {path} holds no JWK set") from e
    found: dict[str, Any] = keys
    return found


def _subsets(names: Mapping[str, Any]) -> list[list[str]]:
    """Return every choice of *names* but none at all: at most fifteen."""
    found: list[list[str]] = [[]]
    for name in names:
        found += [[*chosen, name] for chosen in found]
    return found[1:]
