"""What an HSM issuer certifies, as a model: lifetimes, usages, names (HSM-AND-KUBERNETES §10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from attestation.errors import RequestInvalid
from attestation.pki.leaf import MIN_DURATION
from attestation.pki.leaf_names import NameRules
from attestation_operator.crds.parts import Duration, Part, between, listed, ruled, unique, within
from attestation_operator.durations import parse_duration

SHORTEST_LIFETIME = f"{MIN_DURATION // timedelta(minutes=1)}m"
LONGEST_LEAF = "87600h"
LONGEST_UNREVOCABLE = "168h"
"""Of a certificate that nobody can ask about: a revocation that nobody sees must not matter for long."""

PolicyUsage = Literal[
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "microsoft sgc",
    "netscape sgc",
]
"""What an issuer may be for, as cert-manager writes it (KeyUsage): all but `usages.NEVER_OF_LEAVES`."""
Usage = Literal[PolicyUsage, "any", "ocsp signing"]
"""What anybody may ask for: each word of cert-manager's."""
URIName = Annotated[str, Field(min_length=1, max_length=2048)]
Domain = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
"""A host name in lower case."""
Network = Annotated[str, Field(min_length=4, max_length=64, pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")]
"""In CIDR notation."""


class LeafNames(Part):
    """Names that certificates may have; where any is listed, of each kind only those. Nothing listed: any."""

    dns_domains: Annotated[tuple[Domain, ...], Field(max_length=64)] = Field(
        default=(), description="`example.org` allows it and all below it"
    )
    ip_ranges: Annotated[tuple[Network, ...], Field(max_length=64)] = Field(
        default=(), description="`10.0.0.0/8`, without host bits"
    )
    uri_prefixes: Annotated[tuple[URIName, ...], Field(max_length=64)] = Field(
        default=(), description="`spiffe://cluster.local/`"
    )
    email_domains: Annotated[tuple[Domain, ...], Field(max_length=64)] = Field(
        default=(), description="`example.org`; of addresses in the subject, too"
    )

    @model_validator(mode="after")
    def _meant(self) -> LeafNames:
        self.rules()
        return self

    def rules(self) -> NameRules:
        """Return the rules: where any name is listed, of each kind only those.

        Raises:
            ValueError: One means nothing.
        """
        listed_ = (self.dns_domains, self.ip_ranges, self.uri_prefixes, self.email_domains)
        if not any(listed_):
            return NameRules()
        dns, networks, uris, emails = listed_
        try:
            return NameRules(dns_names=dns, ip_networks=networks, uris=uris, emails=emails)
        except RequestInvalid as e:
            raise ValueError(str(e)) from e


class LeafPolicySpec(Part):
    """What the CA certifies."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            (
                f"!self.noRevAvail || duration(self.maxDuration) <= duration('{LONGEST_UNREVOCABLE}')",
                f"noRevAvail needs a maxDuration of {LONGEST_UNREVOCABLE} or less",
            ),
            ("!self.noRevAvail || !self.allowCA", "noRevAvail is for no CA"),
        )
    )

    max_duration: Annotated[Duration, within(SHORTEST_LIFETIME, LONGEST_LEAF)] = Field(
        default="2160h",
        description="Longest lifetime of a certificate; a request for a longer one is refused",
        json_schema_extra=between(SHORTEST_LIFETIME, LONGEST_LEAF),
    )
    usages: Annotated[tuple[PolicyUsage, ...], Field(min_length=1, max_length=21)] = Field(
        default=("digital signature", "key encipherment", "server auth", "client auth"),
        description="What certificates may be for, as cert-manager names it; neither `ocsp signing` nor `any`",
        json_schema_extra=listed(),
    )
    allow_ca: bool = Field(
        default=False,
        alias="allowCA",
        description="Certify CAs, too: held to `names`, of which uriPrefixes cannot be said of a CA, and to the "
        "purposes among `usages`; needs a pathLen of 1 or more",
    )
    no_rev_avail: bool = Field(
        default=False,
        description="Certificates say that nobody can ask whether they are revoked (RFC 9608), and name neither list "
        "nor responder; needs a maxDuration of 168h or less, and is for no CA",
    )
    names: LeafNames = Field(default=LeafNames(), description="Names that certificates may have")

    @model_validator(mode="after")
    def _once(self) -> LeafPolicySpec:
        unique("usages", self.usages)
        if self.no_rev_avail and parse_duration(self.max_duration) > parse_duration(LONGEST_UNREVOCABLE):
            raise ValueError(f"noRevAvail needs a maxDuration of {LONGEST_UNREVOCABLE} or less")
        if self.no_rev_avail and self.allow_ca:
            raise ValueError("noRevAvail is for no CA")
        return self
