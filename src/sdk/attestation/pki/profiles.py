"""What each of our certificates says, as data (HSM-AND-KUBERNETES §7, ITL-REFERENCE §16).

A profile is the whole of what a key may be certified for; `content` writes it, `lint` proves it. What is not named
here is not in a certificate. Machines and operators have disjoint sets of units: whoever can have a machine's
certificate made can never have an operator's (R16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from attestation.errors import CertificateNotConformant
from attestation.pki.names import Purpose

CLIENT_AUTH: Final = "1.3.6.1.5.5.7.3.2"
SERVER_AUTH: Final = "1.3.6.1.5.5.7.3.1"
OCSP_SIGNING: Final = "1.3.6.1.5.5.7.3.9"
OCSP_NO_CHECK: Final = "1.3.6.1.5.5.7.48.1.5"
NO_REV_AVAIL: Final = "2.5.29.56"
ACCESS_OCSP: Final = "1.3.6.1.5.5.7.48.1"
ACCESS_CA_ISSUERS: Final = "1.3.6.1.5.5.7.48.2"
ANY_POLICY: Final = "2.5.29.32.0"

COUNTRY: Final = "2.5.4.6"
ORGANIZATION: Final = "2.5.4.10"
UNIT: Final = "2.5.4.11"
COMMON_NAME: Final = "2.5.4.3"

BACKDATE: Final = timedelta(minutes=5)
"""A certificate begins this long before it was made, for clocks that are late (§7.2)."""

SHORT_LIVED: Final = timedelta(days=7)
"""Longest life of a certificate that nobody asks about (§8): until its end, a revocation changes nothing."""

EK_URI: Final = "urn:itl:ek:"
"""Prefix of the URI that names a machine's EK; its fingerprint, 96 lower-case hex, follows."""

MACHINE_UNITS: Final = frozenset(
    {"controlplane", "worker-infra", "worker-app", "generic", "windows", "linux"}
)
"""OU of a machine: its role."""

OPERATOR_UNITS: Final = frozenset({"operator", "viewer", "auditor", "metrics"})
"""OU of a person: their duty."""

KEY_TIERS: Final[Mapping[int, str]] = MappingProxyType(
    {1: "external-unfresh", 2: "external", 3: "resident", 4: "resident-and-quoted"}
)
"""What is known of where a key lives (TPM.md §6)."""

MAX_ASSURANCE: Final = 4


class ProfileName(StrEnum):
    """Kinds of certificates."""

    NODE_CLIENT = "node-client"
    NODE_SERVER = "node-server"
    KUBERNETES_NODE = "kubernetes-node"
    OPERATOR = "operator"
    OCSP_SIGNING = "ocsp-signing"
    CA = "ca"
    CA_CROSS = "ca-cross"


class Alternative(StrEnum):
    """Kinds of subject alternative names."""

    URI = "uri"
    DNS = "dns"
    IP = "ip"


class Pointer(StrEnum):
    """Where a relying party learns more: the list, the responder, the certificate of the issuer."""

    CRL = "crl"
    OCSP = "ocsp"
    CA = "ca"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What certificates of one kind say.

    Args:
        name: Its name.
        what: Whom it is for, in a few words.
        purpose: Which CA signs it; None where either may, for what is its own.
        key_usage: Bits of KeyUsage, words of `attestation.endorsements.certificate.KEY_USAGES`; critical.
        purposes: OIDs of ExtendedKeyUsage; none means no such extension.
        max_validity: Longest validity, without `BACKDATE`.
        units: Which OU the subject may have; none means that it has no OU.
        alternatives: Of each of these sets at least one name; no kind that stands in none of them.
        pointers: Which addresses it carries, all of them and no other.
        path_length: pathLenConstraint of a CA; None of what is no CA.
        self_signed: Its issuer is itself.
        fixed_policies: Certificate policies, exactly these; None where they say assurance and key tier.
        no_rev_avail: noRevAvail: nowhere is told whether it is revoked (RFC 9608); for no CA, `SHORT_LIVED` at most.
        is_node: Its subject is that of a node, as an API server of Kubernetes reads it, and of nobody else.
        no_check: id-pkix-ocsp-nocheck: nobody asks whether it is revoked (RFC 6960, 4.2.2.2.1).
        is_foreign: Of a CA that is none of ours (`attestation.pki.external`): whose issuer, and whose names, the one
            who asked was free to choose.
    """

    name: str
    what: str
    purpose: Purpose | None = None
    key_usage: tuple[str, ...]
    purposes: tuple[str, ...] = ()
    max_validity: timedelta
    units: frozenset[str] = frozenset()
    alternatives: tuple[frozenset[Alternative], ...] = ()
    pointers: frozenset[Pointer] = frozenset(Pointer)
    path_length: int | None = None
    self_signed: bool = False
    fixed_policies: tuple[str, ...] | None = ()
    no_check: bool = False
    no_rev_avail: bool = False
    is_node: bool = False
    is_foreign: bool = False

    @property
    def is_ca(self) -> bool:
        """True where it may issue certificates."""
        return self.path_length is not None

    @property
    def subject(self) -> tuple[str, ...]:
        """OIDs of the subject's attributes, in their order."""
        if self.is_node:
            return (ORGANIZATION, COMMON_NAME)
        return (COUNTRY, ORGANIZATION, *([UNIT] if self.units else []), COMMON_NAME)

    @property
    def allowed_alternatives(self) -> frozenset[Alternative]:
        """Every kind of alternative name that may stand in it."""
        return frozenset[Alternative]().union(*self.alternatives)


_CA_USAGE: Final = ("digital_signature", "key_cert_sign", "crl_sign")
_A_YEAR: Final = timedelta(days=398)
_A_CAS_LIFE: Final = timedelta(days=9125)

PROFILES: Final[Mapping[ProfileName, Profile]] = MappingProxyType(
    {
        ProfileName(p.name): p
        for p in (
            Profile(
                name=ProfileName.NODE_CLIENT,
                what="a machine, towards servers",
                purpose="machine",
                key_usage=("digital_signature",),
                purposes=(CLIENT_AUTH,),
                max_validity=_A_YEAR,
                units=MACHINE_UNITS,
                alternatives=(frozenset({Alternative.URI}),),
                fixed_policies=None,
            ),
            Profile(
                name=ProfileName.NODE_SERVER,
                what="a machine, towards clients",
                purpose="machine",
                key_usage=("digital_signature",),
                purposes=(SERVER_AUTH,),
                max_validity=_A_YEAR,
                units=MACHINE_UNITS,
                alternatives=(frozenset({Alternative.URI}), frozenset({Alternative.DNS, Alternative.IP})),
                fixed_policies=None,
            ),
            Profile(
                name=ProfileName.KUBERNETES_NODE,
                what="a node, towards the API server of its Kubernetes cluster",
                purpose="machine",
                key_usage=("digital_signature",),
                purposes=(CLIENT_AUTH,),
                max_validity=timedelta(hours=24),
                fixed_policies=None,
                is_node=True,
            ),
            Profile(
                name=ProfileName.OPERATOR,
                what="a person",
                purpose="operator",
                key_usage=("digital_signature",),
                purposes=(CLIENT_AUTH,),
                max_validity=_A_YEAR,
                units=OPERATOR_UNITS,
            ),
            Profile(
                name=ProfileName.OCSP_SIGNING,
                what="a key of the service that answers OCSP for one CA key",
                key_usage=("digital_signature",),
                purposes=(OCSP_SIGNING,),
                max_validity=timedelta(days=7),
                pointers=frozenset(),
                no_check=True,
            ),
            Profile(
                name=ProfileName.CA,
                what="a CA key, certified by itself",
                key_usage=_CA_USAGE,
                max_validity=_A_CAS_LIFE,
                pointers=frozenset(),
                path_length=1,
                self_signed=True,
            ),
            Profile(
                name=ProfileName.CA_CROSS,
                what="a CA key, certified by its predecessor or successor",
                key_usage=_CA_USAGE,
                max_validity=_A_CAS_LIFE,
                pointers=frozenset({Pointer.CRL, Pointer.CA}),
                path_length=0,
                fixed_policies=(ANY_POLICY,),
            ),
        )
    }
)
"""Every kind of certificate that we issue. Nothing else is signed by our own CA keys."""


def short_lived(profile: Profile) -> Profile:
    """Return *profile* with `no_rev_avail` and no word of where it is revoked: it ends soon enough (RFC 9608, 4).

    Raises:
        CertificateNotConformant: It is that of a CA, whose certificate must be revocable.
    """
    if profile.is_ca:
        raise CertificateNotConformant("a CA cannot do without revocation")
    return replace(
        profile,
        no_rev_avail=True,
        pointers=profile.pointers - {Pointer.CRL, Pointer.OCSP},
        max_validity=min(profile.max_validity, SHORT_LIVED),
    )


def assurance_policies(arc: str, *, assurance: int, key_tier: int | None) -> tuple[str, ...]:
    """Return the certificate policies that say how much a machine and its key are believed (TPM.md §6).

    Args:
        arc: `ITL_ASSURANCE_OID_ARC`; empty: none are written.
        assurance: Level of the machine, 0 to 4: `<arc>.1.<level>`.
        key_tier: One of `KEY_TIERS`: `<arc>.2.<n>`; None where nothing is known.

    Raises:
        CertificateNotConformant: No such level or tier.
    """
    if not arc:
        return ()
    if not 0 <= assurance <= MAX_ASSURANCE:
        raise CertificateNotConformant(f"assurance {assurance}, 0 to {MAX_ASSURANCE} expected")
    if key_tier is None:
        return (f"{arc}.1.{assurance}",)
    if key_tier not in KEY_TIERS:
        raise CertificateNotConformant(
            f"key tier {key_tier}, one of {', '.join(map(str, KEY_TIERS))} expected"
        )
    return f"{arc}.1.{assurance}", f"{arc}.2.{key_tier}"
