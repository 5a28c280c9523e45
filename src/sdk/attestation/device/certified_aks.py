"""Attestation keys that somebody certified, where providers and makers keep them (TPM.md §2.1).

An IAK or a provider's AK is not the AK that a node makes for itself; it vouches for that one (`NodeTPM.vouch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from attestation.device.client import TPM
from attestation.device.nv import read_nv
from attestation.errors import DeviceError, MalformedEvidence, TPMResponseError
from attestation.tpm import commands
from attestation.tpm.commands import Entity
from attestation.tpm.constants import Hierarchy
from attestation.tpm.public import Public, parse_public, parse_tpmt_public
from attestation.tpm.sessions import Password

_MAX_CERTIFICATE_BYTES: Final = 8 << 10
_MAX_TEMPLATE_BYTES: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a certified attestation key stands.

    Args:
        certificate: NV index of its certificate.
        handle: Its persistent handle; None where it is derived.
        template: NV index of the TPMT_PUBLIC that derives it under the endorsement hierarchy; None with a handle.
    """

    certificate: int
    handle: int | None = None
    template: int | None = None


PLACES: Final[Mapping[str, Place]] = MappingProxyType(
    {
        "iak": Place(certificate=0x01C90100, handle=0x81020001),
        "azure": Place(certificate=0x01C101D0, handle=0x81000003),
        "google-ecc": Place(certificate=0x01C10002, template=0x01C10003),
        "google-rsa": Place(certificate=0x01C10000, template=0x01C10001),
    }
)
"""Places that are looked at, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedAK:
    """An attestation key of this TPM with a certificate.

    Args:
        name: Its place, of `PLACES`.
        public: Its TPM2B_PUBLIC.
        certificate: As it stands in NV, padding included; not verified.
    """

    name: str
    public: bytes
    certificate: bytes


def find_certified_aks(tpm: TPM, *, endorsement_auth: bytes = b"") -> tuple[CertifiedAK, ...]:
    """Return the certified attestation keys of this TPM: those whose key is in the certificate beside them.

    What cannot be read, or is not there, is passed over.
    """
    found = []
    for name, place in PLACES.items():
        try:
            if tpm.handles(place.certificate)[:1] != [place.certificate]:
                continue
            certificate = read_nv(tpm, place.certificate, _MAX_CERTIFICATE_BYTES)
            if certificate is None:
                continue
            with loaded_ak(tpm, place, endorsement_auth=endorsement_auth) as (_, public):
                if _key_bytes(public) in certificate:
                    found.append(CertifiedAK(name=name, public=public.tpm2b(), certificate=certificate))
        except (TPMResponseError, MalformedEvidence):
            # Not ours to read, of a kind that this TPM does not make, or something else at this place.
            continue
    return tuple(found)


@contextmanager
def loaded_ak(tpm: TPM, place: Place, *, endorsement_auth: bytes = b"") -> Iterator[tuple[Entity, Public]]:
    """Have the key at *place* loaded for a while.

    Raises:
        TPMResponseError: There is none.
        MalformedEvidence: What derives it is no public area.
        DeviceError: The TPM failed.
    """
    with tpm.scope():
        if place.handle is not None:
            area = tpm.execute(commands.read_public(place.handle))
            yield Entity(place.handle, area.name), parse_public(area.public)
            return
        if place.template is None:
            raise DeviceError("the place of a certified key names neither handle nor template")
        template = read_nv(tpm, place.template, _MAX_TEMPLATE_BYTES)
        if template is None:
            raise MalformedEvidence("the template of a certified key cannot be read")
        made = tpm.execute(
            commands.create_primary(Hierarchy.ENDORSEMENT, parse_tpmt_public(template).tpmt),
            Password(endorsement_auth),
        )
        yield made.entity, parse_public(made.public)


def _key_bytes(public: Public) -> bytes:
    """Return what a certificate of this key contains: the modulus, or the two coordinates."""
    return public.modulus or public.x + public.y
