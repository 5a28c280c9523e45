"""A machine without a TPM: its confidential hardware vouches for a key that the guest keeps (PROTOCOL §9).

What a TPM does in the classes above is done by a report here; all else, from the welcome to the wipe, is theirs.
"""

# Algorithms for: sealed-configuration
from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)

from attestation.api import ConfigEnvelope, QuoteChallenge, TEEActivateRequest
from attestation.device import Shown
from attestation.envelope import SubjectEnvelope, open_with_subject, subject_name
from attestation.errors import EvidenceRejected, MalformedEvidence, TEEDeviceError
from attestation.keys import Binding
from attestation.report_data import report_data
from attestation.wire import b64decode, b64encode
from attestation_agent.exits import AnswerRefused, ConfigNotOpened, StateNotKept, UsageError
from attestation_agent.files import write_atomically
from attestation_agent.hardware import read_hardware
from attestation_agent.node import Agent
from attestation_agent.state import KnownAs

KEY_FILE: Final = "subject-key.der"
MAX_KEY_BYTES: Final = 1024


class GuestAgent(Agent):
    """A node that is known by its hardware."""

    _shown: Shown | None = None
    _key: ec.EllipticCurvePrivateKey | None = None

    # Who we are

    def _begin(self) -> None:
        self._hardware_seen()

    def _hardware_seen(self) -> Shown:
        """Return what our hardware says of nothing: which it is, and how it names us."""
        if self._shown is None:
            shown = self._edge.tee().probe()
            if shown.tee != self._settings.tee:
                raise TEEDeviceError("no-provider", f"this is {shown.tee}, not {self._settings.tee}")
            self._shown = shown
        return self._shown

    def _subject(self) -> ec.EllipticCurvePrivateKey:
        """Return our key; in a guest that nothing names beyond its boot it is in memory alone."""
        if self._key is None:
            ephemeral = self._hardware_seen().ephemeral
            self._key = ec.generate_private_key(ec.SECP384R1()) if ephemeral else _kept(self._state.directory)
        return self._key

    def _spki(self) -> bytes:
        return self._subject().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def _fingerprint(self) -> str:
        return self._hardware_seen().fingerprint(self._spki())

    def _binding(self, machine_id: str) -> Binding:
        return Binding(
            machine_id=machine_id, ek_fingerprint=self._fingerprint(), ak_name=subject_name(self._spki())
        )

    def _statement(self, nonce: bytes, machine_id: str, *, log: bool = False) -> list[dict[str, Any]]:
        """Return the item in which our hardware states a nonce, our id and our key; its *log* only to be judged."""
        data = report_data(self._settings.tee, nonce, machine_id, self._spki())
        shown = self._edge.tee().show(data)
        return [item(shown if log else shown.without_log())]

    # What is said instead of what a TPM says

    def _enrol(self, *, presents_token: bool = False) -> KnownAs:
        token, given_sha256 = self._token_to_present(presents_token=presents_token)
        introduced = self._introduce_as(
            {
                "tee": self._settings.tee,
                "subject_key": b64encode(self._spki()),
                "desired_role": self._settings.desired_role,
                "cluster_id": self._settings.cluster_id,
                **read_hardware(self._settings.sysfs),
            },
            token,
        )
        offered = introduced.challenge
        if offered is None:
            raise AnswerRefused("the answer to the introduction carries no challenge for hardware")
        nonce = b64decode(offered.nonce, "nonce", max_bytes=32)
        asked = self._request(introduced.machine_id)
        request = TEEActivateRequest.model_validate(
            {
                "challenge_id": offered.challenge_id,
                "evidence": self._statement(nonce, introduced.machine_id),
                "node_nonce": b64encode(asked.node_nonce),
            }
        )
        activated = self._answered(lambda: self._client.tee_activate(introduced.machine_id, request))
        return self._welcomed(activated, asked, given_sha256, introduced.machine_id, offered.challenge_id)

    def _proof(self, challenge: QuoteChallenge, nonce: bytes, known: KnownAs) -> dict[str, Any]:
        return {
            "evidence": [*self._statement(nonce, known.machine_id, log=True), *self._gpus(challenge, nonce)]
        }

    def _proof_of_outcome(self, said: bytes, challenge: QuoteChallenge, known: KnownAs) -> dict[str, Any]:
        del challenge
        return {"evidence": self._statement(said, known.machine_id)}

    def _opened(self, envelope: ConfigEnvelope, machine_id: str) -> bytes:
        try:
            sealed = SubjectEnvelope(
                machine_id=envelope.machine_id,
                token_id=envelope.token_id,
                epk=b64decode(envelope.epk or "", "epk", max_bytes=256),
                iv=b64decode(envelope.iv, "iv"),
                ciphertext=b64decode(envelope.ciphertext, "ciphertext", max_bytes=2 << 20),
                config_sha256=envelope.config_sha256,
            )
            return open_with_subject(sealed, self._subject(), machine_id=machine_id)
        except (MalformedEvidence, EvidenceRejected) as e:
            raise ConfigNotOpened(f"the configuration does not open under our key: {e}") from e


def item(shown: Shown) -> dict[str, Any]:
    """Return what the hardware said as an item of evidence."""
    return {
        "media_type": shown.media_type,
        "value": {name: b64encode(data) for name, data in shown.members.items()},
    }


def _kept(directory: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in the state directory, mode 0600; make it where there is none."""
    path = directory / KEY_FILE
    try:
        with path.open("rb") as file:
            key = load_der_private_key(file.read(MAX_KEY_BYTES), None)
    except FileNotFoundError:
        key = ec.generate_private_key(ec.SECP384R1())
        data = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        try:
            write_atomically(path, data)
        except OSError as e:
            raise StateNotKept(f"{path}: {e.strerror}") from e
    except (OSError, ValueError, TypeError) as e:
        raise UsageError(f"subject key {path}: {getattr(e, 'strerror', None) or 'no private key'}") from e
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UsageError(f"subject key {path}: not on P-384")
    return key
