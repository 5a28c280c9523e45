"""How a node attests: a quote over a challenge, the logs that are asked for, the second protocol (PROTOCOL §§3-4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from attestation.api import (
    AttestRequest,
    AttestResponse,
    QuoteChallenge,
)
from attestation.device.gpu_tool import gpu_evidence
from attestation.errors import (
    AKNotActivated,
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    EKFingerprintMismatch,
    MachineUnknown,
    MalformedEvidence,
    TEEDeviceError,
    TPMResponseError,
)
from attestation.evidence import ek_key_attestation
from attestation.report_data import gpu_nonce, report_data
from attestation.tpm import parse_public
from attestation.wire import b64decode, b64encode
from attestation_agent.directive import Request
from attestation_agent.exits import (
    AnswerRefused,
)
from attestation_agent.hardware import read_hardware
from attestation_agent.introduction import Introducing
from attestation_agent.measurements import IMA_KIND
from attestation_agent.standing import selection
from attestation_agent.state import KnownAs

TEE_KINDS: Final = frozenset({"sev-snp", "tdx-quote"})
"""How a challenge names what our hardware can say."""
GPU_KIND = "nvidia-gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An answer to an attestation, and what it must be judged with.

    Args:
        known: Who we are.
        nonce: The 32 bytes that we quoted.
        asked: What a statement in it must be for.
        answer: Not authentic by itself; only its statements can be.
    """

    known: KnownAs
    nonce: bytes
    asked: Request
    answer: AttestResponse


class Attesting(Introducing):
    """A node that is known and can attest."""

    def _attest(self, known: KnownAs) -> Exchange:
        """Attest; where the service forgot our key or our challenge, repair that once and attest again."""
        try:
            return self._attest_once(known)
        except (AKNotActivated, MachineUnknown, EKFingerprintMismatch) as e:
            self._edge.log.warning("enrol.again", code=e.code)
            return self._attest_once(self._enrol())
        except (ChallengeExpired, ChallengeUsed, ChallengeUnknown) as e:
            # The clocks disagree, or an answer was lost on its way to us.
            self._next = None
            if self._certified and isinstance(e, ChallengeExpired):
                # Or this TPM takes longer over its EK than a challenge lives: better without than never.
                self._edge.log.warning("key_certification.too_slow")
                self._certifies = False
            return self._attest_once(known)
        except MalformedEvidence:
            # A log that nobody needs and the service cannot read must not keep this machine away.
            if not self._logs.volunteered:
                raise
            self._logs.withhold()
            self._next = None
            return self._attest_once(known)

    def _attest_once(self, known: KnownAs) -> Exchange:
        challenge, nonce = self._challenge(known)
        asked = self._request(known.machine_id)
        evidence = self._evidence(challenge, nonce, known, asked)
        answer = self._answered(lambda: self._client.attest(evidence))
        if answer.machine_id != known.machine_id:
            raise AnswerRefused("the service answered about another machine")
        self._next = answer.next_challenge
        self._logs.answered(answer.status)
        return Exchange(known=known, nonce=nonce, asked=asked, answer=answer)

    def _evidence(
        self, challenge: QuoteChallenge, nonce: bytes, known: KnownAs, asked: Request
    ) -> AttestRequest:
        """Return what proves who we are and what we run, in answer to *challenge*."""
        return AttestRequest.model_validate(
            {
                "machine_id": known.machine_id,
                "ek_fingerprint": known.ek_fingerprint,
                "nonce_id": challenge.nonce_id,
                **self._proof(challenge, nonce, known),
                "node_nonce": b64encode(asked.node_nonce),
                **read_hardware(self._settings.sysfs),
            }
        )

    def _proof(self, challenge: QuoteChallenge, nonce: bytes, known: KnownAs) -> dict[str, Any]:
        """Return the members of an attestation that prove who we are and what we run."""
        quote = self._open_tpm().quote(nonce, selection(challenge))
        return {
            "pcr_quote": b64encode(quote.attest),
            "pcr_signature": b64encode(quote.signature),
            "pcr_values": quote.values_on_wire(),
            "event_log": self._logs.boot(required=challenge.event_log == "required"),
            "evidence": [
                *self._key_certification(challenge, nonce),
                *(self._logs.ima() if IMA_KIND in challenge.evidence else []),
                *self._hardware(challenge, nonce, known),
                *self._gpus(challenge, nonce),
            ],
        }

    def _gpus(self, challenge: QuoteChallenge, nonce: bytes) -> list[dict[str, object]]:
        """Bring what GPUs say, where it is asked for; a machine without is judged by its policy."""
        if GPU_KIND not in challenge.evidence:
            return []
        if not self._settings.gpu_command:
            self._edge.log.warning("gpus.not_shown", code="device-absent", reason="no --gpu-command is set")
            return []
        try:
            found = gpu_evidence(self._settings.gpu_command, gpu_nonce(nonce))
        except TEEDeviceError as e:
            self._edge.log.warning("gpus.not_shown", code=e.code, reason=str(e))
            return []
        return [{"media_type": f"application/vnd.itl.{GPU_KIND}", "value": each} for each in found]

    def _hardware(self, challenge: QuoteChallenge, nonce: bytes, known: KnownAs) -> list[dict[str, object]]:
        """Bring what confidential hardware says of this AK: where it is asked for, and once unasked, to be seen.

        A machine without is no reason to stay away: whether it must come is for the service's policy to say.
        """
        asked = not TEE_KINDS.isdisjoint(challenge.evidence)
        if self._settings.tee != "auto" or not (asked or self._shows_hardware):
            return []
        self._shows_hardware = False
        tee = self._edge.tee()
        try:
            named = tee.probe().tee
            spki = parse_public(self._open_tpm().ak_public()).spki_der()
            shown = tee.show(report_data(named, nonce, known.machine_id, spki))
        except TEEDeviceError as e:
            if asked:
                self._edge.log.warning("hardware.not_shown", code=e.code, reason=str(e))
            return []
        return [
            {
                "media_type": shown.media_type,
                "value": {name: b64encode(data) for name, data in shown.members.items()},
            }
        ]

    def _key_certification(self, challenge: QuoteChallenge, nonce: bytes) -> list[dict[str, object]]:
        """Answer the second protocol, where the challenge offers a key: the EK vouches for AK and firmware.

        A TPM that cannot is no reason to stay away: whether it must is for the service's policy to say.
        """
        offered = challenge.ek_challenge
        self._certified = False
        if offered is None or not self._certifies or ek_key_attestation.KIND not in challenge.evidence:
            return []
        self._certified = True
        try:
            made = self._open_tpm().certify_ak(
                b64decode(offered.object_public, "object_public"),
                b64decode(offered.duplicate, "duplicate"),
                b64decode(offered.in_sym_seed, "in_sym_seed"),
                nonce,
            )
        except (MalformedEvidence, TPMResponseError) as e:
            self._edge.log.warning("key_certification.failed", code=e.code, reason=str(e))
            return []
        value = {"certify_info": b64encode(made.certify_info), "signature": b64encode(made.signature)}
        return [{"media_type": ek_key_attestation.MEDIA_TYPE, "value": value}]
