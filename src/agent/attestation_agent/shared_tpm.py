"""One TPM for attesting, for certificates and for the signer: one call at a time, and attesting goes first.

A TPM runs one command at a time anyway. What the others want waits while the agent uses it or waits for it, so they
delay an attestation by one call of theirs at most, however often they ask.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from attestation.device import CertifiedAK, FurtherEK, Identity, KeyCertification, KeyType, Quote, TPMKey
from attestation.errors import DeviceError, TPMResponseError
from attestation.tpm import PCRSelection
from attestation_agent.edge import TPM

T = TypeVar("T")


class KeyTPM(Protocol):
    """What certificates and the signer need of `attestation.device.NodeTPM`."""

    def create_signing_key(self, kind: KeyType | None = None) -> TPMKey:
        """Make a key that never leaves this TPM."""
        ...

    def certify_key(self, key: TPMKey, qualifying_data: bytes) -> KeyCertification:
        """Certify a key with the AK."""
        ...

    def sign(self, key: TPMKey, digest: bytes, *, pss: bool = False) -> bytes:
        """Sign a digest with a key."""
        ...


class NodeTPMLike(TPM, KeyTPM, Protocol):
    """All of them."""


class SharedTPM:
    """The TPM of this node for several threads; itself what attesting uses, with precedence.

    Args:
        open_tpm: Opens it; called again after it failed.

    Attributes:
        keys: What everybody else uses.
    """

    def __init__(self, open_tpm: Callable[[], NodeTPMLike]) -> None:
        self._open = open_tpm
        self._tpm: NodeTPMLike | None = None
        self._ended = False
        self._turn = threading.Condition()
        self._taken = False
        self._attesting = 0
        self.keys = _Keys(self)

    def open(self) -> SharedTPM:
        """Open the TPM, where it is not open, and return ourselves.

        Raises:
            DeviceError: It cannot be reached or does not start.
        """
        self.run(_nothing, first=True)
        return self

    def run(self, work: Callable[[NodeTPMLike], T], *, first: bool) -> T:
        """Call *work* when it is its turn; *first*, before all that is not.

        Raises:
            DeviceError: From *work*; what is broken is closed, and opened again by the next. Or the agent ended.
        """
        with self._turn_of(first=first):
            if self._ended:
                raise DeviceError("the agent ends")
            if self._tpm is None:
                self._tpm = self._open()
            try:
                return work(self._tpm)
            except TPMResponseError:
                # An answer: it works.
                raise
            except DeviceError:
                self._let_go()
                raise

    @contextlib.contextmanager
    def _turn_of(self, *, first: bool) -> Iterator[None]:
        with self._turn:
            self._attesting += first
            try:
                self._turn.wait_for(lambda: not self._taken and (first or not self._attesting))
                self._taken = True
            finally:
                self._attesting -= first
        try:
            yield
        finally:
            with self._turn:
                self._taken = False
                self._turn.notify_all()

    def _let_go(self) -> None:
        tpm, self._tpm = self._tpm, None
        if tpm is not None:
            with contextlib.suppress(DeviceError):
                tpm.close()

    # What attesting uses

    def identify(self) -> Identity:
        """Say who this TPM is."""
        return self.run(lambda tpm: tpm.identify(), first=True)

    def ak_public(self) -> bytes:
        """Return the TPM2B_PUBLIC of the AK."""
        return self.run(lambda tpm: tpm.ak_public(), first=True)

    def further_eks(self) -> tuple[FurtherEK, ...]:
        """Return the certified EKs beside the one that is the identity."""
        return self.run(lambda tpm: tpm.further_eks(), first=True)

    def certified_aks(self) -> tuple[CertifiedAK, ...]:
        """Return attestation keys beside the AK that a maker or provider certified."""
        return self.run(lambda tpm: tpm.certified_aks(), first=True)

    def vouch(self, certified: CertifiedAK, qualifying_data: bytes) -> KeyCertification:
        """Have a certified attestation key state that the AK is in this TPM."""
        return self.run(lambda tpm: tpm.vouch(certified, qualifying_data), first=True)

    def activate(
        self, credential_blob: bytes, encrypted_secret: bytes, *, ek_public: bytes | None = None
    ) -> bytes:
        """Open a credential sealed to an EK, the first or a further one, and the AK."""
        return self.run(
            lambda tpm: tpm.activate(credential_blob, encrypted_secret, ek_public=ek_public), first=True
        )

    def quote(self, qualifying_data: bytes, selection: PCRSelection) -> Quote:
        """Quote the selected PCRs."""
        return self.run(lambda tpm: tpm.quote(qualifying_data, selection), first=True)

    def certify_ak(
        self, object_public: bytes, duplicate: bytes, in_sym_seed: bytes, qualifying_data: bytes
    ) -> KeyCertification:
        """Certify the AK with a key that was sealed to the EK."""
        return self.run(
            lambda tpm: tpm.certify_ak(object_public, duplicate, in_sym_seed, qualifying_data), first=True
        )

    def shutdown(self) -> None:
        """Send TPM2_Shutdown; whatever anybody wants afterwards is refused."""
        try:
            self.run(lambda tpm: tpm.shutdown(), first=True)
        finally:
            self._ended = True

    def close(self) -> None:
        """Let go of the TPM; until TPM2_Shutdown was sent, the next use opens it again."""
        with self._turn_of(first=True):
            self._let_go()


def _nothing(_: object) -> None:
    """Only open it."""


class _Keys:
    """The same TPM for those who wait for attesting."""

    def __init__(self, shared: SharedTPM) -> None:
        self._shared = shared

    def create_signing_key(self, kind: KeyType | None = None) -> TPMKey:
        return self._shared.run(lambda tpm: tpm.create_signing_key(kind), first=False)

    def certify_key(self, key: TPMKey, qualifying_data: bytes) -> KeyCertification:
        return self._shared.run(lambda tpm: tpm.certify_key(key, qualifying_data), first=False)

    def sign(self, key: TPMKey, digest: bytes, *, pss: bool = False) -> bytes:
        return self._shared.run(lambda tpm: tpm.sign(key, digest, pss=pss), first=False)
