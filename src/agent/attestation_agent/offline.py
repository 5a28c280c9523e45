"""`attestation-agent offline FILE`: take configuration and certificate from an offline bundle (compatibility, ADR 66).

The file went through hands that nobody knows, and no request of ours asked for it. It is believed where a key that is
pinned signed each envelope in it for this TPM; once, in its time, and never after a newer one. What the service said
to us stands above it: a machine that is locked or revoked takes nothing from a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from attestation.api import OfflineBundle
from attestation.keys import Binding, certificates_sha256
from attestation.tpm import parse_public
from attestation_agent import directive as directives
from attestation_agent import sealed
from attestation_agent.acts import Acts
from attestation_agent.edge import TPM
from attestation_agent.exits import ApplyFailed, DirectiveRejected, UsageError
from attestation_agent.files import write_atomically
from attestation_agent.standing import ORDERED
from attestation_agent.state import State

MAX_FILE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The node that a bundle is for.

    Args:
        state: What the agent remembers; nobody else uses it meanwhile.
        tpm: Its TPM.
        acts: What applies the configuration.
        certificate_to: Directory for key and certificates; None where somebody said that nobody wants them.
    """

    state: State
    tpm: TPM
    acts: Acts
    certificate_to: Path | None


def read(file: Path) -> OfflineBundle:
    """Return the bundle in *file*; nothing in it may be believed yet.

    Raises:
        UsageError: There is none.
    """
    try:
        with file.open("rb") as opened:
            return OfflineBundle.model_validate_json(opened.read(MAX_FILE_BYTES))
    except OSError as e:
        raise UsageError(f"{file}: {e.strerror}") from e
    except ValidationError as e:
        raise UsageError(f"{file} holds no offline bundle") from e


def take(bundle: OfflineBundle, place: Place, *, at: datetime) -> None:
    """Apply the configuration of *bundle* and write its certificate, if it is for this machine.

    Raises:
        DirectiveRejected: It is not, or not any more.
        ConfigNotOpened: It does not open in this TPM.
        ApplyFailed: It could not be written, or the apply command failed; it may be taken again.
        DeviceError: The TPM failed.
    """
    state, tpm = place.state, place.tpm
    # 1. Whom we believe was pinned when this TPM was activated; a file must not bring keys of its own.
    known, keys = state.known_as(), state.service_keys()
    fingerprint = parse_public(tpm.identify().ek_public).fingerprint()
    if known is None or keys is None or known.ek_fingerprint != fingerprint:
        raise DirectiveRejected("no service activated this TPM yet, so it believes no service yet")
    # 2. A file that was made before an order must not undo it.
    if state.status() in ORDERED or state.wipe_order() is not None:
        raise DirectiveRejected("the service locked or revoked this machine; only the service ends that")
    # 3. Each envelope for this TPM, as what it was sealed, and both of one file.
    to = Binding(
        machine_id=known.machine_id,
        ek_fingerprint=fingerprint,
        ak_name=parse_public(tpm.ak_public()).name,
    )
    config, key = bundle.machineconfig, bundle.enrollment_key_pem
    made_at = directives.verify_file(
        bundle.machineconfig_signature, config, what="machineconfig", keys=keys, to=to, at=at
    )
    directives.verify_file(
        bundle.enrollment_key_signature,
        key,
        what="enrollment-key",
        keys=keys,
        to=to,
        at=at,
        bundle=config.token_id,
        certificates_sha256=certificates_sha256(bundle.enrollment_cert_pem, bundle.enrollment_ca_pem),
    )
    # 4. Once, and in the order in which they were made, also over the network: an old one is not served again.
    if config.token_id in state.applied() or made_at <= state.newest_config():
        raise DirectiveRejected("this configuration, or a newer one, was applied already or waits to be")
    # 5. Both open before anything is changed.
    text = sealed.opened(tpm, config, machine_id=known.machine_id)
    pem = sealed.opened(tpm, key, machine_id=known.machine_id)
    if place.certificate_to is not None:
        _write(place.certificate_to, bundle, pem)
    place.acts.apply(text)
    # 6. What waited is older.
    state.set_pending_config(None)
    state.add_newest_config(made_at)
    state.add_applied(config.token_id)


def _write(directory: Path, bundle: OfflineBundle, key: bytes) -> None:
    files = {
        "key.pem": key,
        "cert.pem": bundle.enrollment_cert_pem.encode(),
        "ca.pem": bundle.enrollment_ca_pem.encode(),
    }
    try:
        for name, content in files.items():
            write_atomically(directory / name, content)
    except OSError as e:
        raise ApplyFailed(f"{directory}: {e.strerror}") from e
