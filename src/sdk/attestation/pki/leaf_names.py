"""Names in certificates that others ask for: which a certificate can carry, and which an issuer lets it carry.

An issuer in a Kubernetes cluster certifies what its users call their services, so names are taken from the request.
What two readers could understand differently is refused all the same, and so is what Kubernetes keeps for itself: a
certificate whose subject begins with `system:` would be a part of the cluster to any API server that trusts the CA.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from attestation.errors import RequestInvalid
from attestation.pki.names import KUBERNETES_PREFIX
from attestation.pki.requested import COMMON_NAME, RequestedNames

HOST: Final = re.compile(
    r"(?=.{1,253}\Z)(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
"""A host name in lower case; its first label may be the wildcard."""

MAX_URI_CHARACTERS: Final = 2048
_URI: Final = re.compile(
    r"[a-z][a-z0-9+.-]*:(?=.)"
    r"(//([\w.~!$&'()*+,;=:@%-]*@)?(\[[0-9a-fA-F:.]+\]|[\w.~!$&'()*+,;=%-]*)(:[0-9]+)?(?=[/?#]|\Z))?"
    r"[\w.~:/?#@!$&'()*+,;=%-]*",
    re.ASCII,
)
"""Absolute, of the characters of RFC 3986; brackets around an address only."""
_EMAIL: Final = re.compile(r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@(?P<host>[^@]+)")
_COUNTRY: Final = "2.5.4.6"
_EMAIL_ADDRESS: Final = "1.2.840.113549.1.9.1"
_BOUNDS: Final[Mapping[str, int]] = {
    # Characters that an attribute of a name may have (RFC 5280, A.1), where it is not 64.
    "2.5.4.7": 128,
    "2.5.4.8": 128,
    "2.5.4.9": 128,
    "2.5.4.17": 40,
    "0.9.2342.19200300.100.1.1": 256,
    _EMAIL_ADDRESS: 255,
}
_BOUND: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRules:
    """Which names an issuer certifies. Of each kind: None means any, an empty tuple means none.

    Args:
        dns_names: Domains: each permits itself and everything below it, wildcards there too.
        ip_networks: Networks in CIDR notation.
        uris: Beginnings of URIs; one that does not end with `/` permits itself and what goes on with `/`.
        emails: Domains of addresses; each permits itself and everything below it.
        common_names: Common names beside those that are among the alternative names, or DNS names that are
            permitted. None means any where any DNS name is permitted too, else no other.
    """

    dns_names: tuple[str, ...] | None = None
    ip_networks: tuple[str, ...] | None = None
    uris: tuple[str, ...] | None = None
    emails: tuple[str, ...] | None = None
    common_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse rules that mean nothing, or to each reader something else.

        Raises:
            RequestInvalid: A domain that is no host name in lower case; a network with host bits, or none.
        """
        for domain in (*(self.dns_names or ()), *(self.emails or ())):
            if not HOST.fullmatch(domain) or domain.startswith("*"):
                raise RequestInvalid(f"{domain!r} is no domain: a host name in lower case")
        for network in self.ip_networks or ():
            try:
                ipaddress.ip_network(network)
            except ValueError as e:
                raise RequestInvalid(f"{network!r} is no network in CIDR notation: {e}") from e


def unwritable_names(names: RequestedNames) -> list[str]:
    """Return what is wrong with the form of *names*, a sentence each; nothing where a certificate can carry them."""
    found = [
        f"a name of kind {kind}; DNS name, address, URI or e-mail address expected"
        for kind in names.others
        if kind not in ("uri", "email")
    ]
    if not (names.subject or names.dns_names or names.ip_addresses or names.uris or names.emails):
        found.append("neither a subject nor an alternative name")
    found += [f"subject: {wrong}" for oid, text in names.subject if (wrong := _attribute(oid, text))]
    found += [
        f"DNS name {name!r} is no host name in lower case"
        for name in names.dns_names
        if not HOST.fullmatch(name)
    ]
    found += [f"URI {uri!r} is not absolute" for uri in names.uris if not _is_uri(uri)]
    found += [f"{email!r} is no e-mail address" for email in names.emails if _email_host(email) is None]
    return found


def _attribute(oid: str, text: str) -> str | None:
    if oid == _COUNTRY:
        return None if re.fullmatch(r"[A-Z]{2}", text) else "a country is two upper-case letters"
    if not 1 <= len(text) <= _BOUNDS.get(oid, _BOUND):
        return f"attribute {oid} of {len(text)} characters"
    # What stands in the subject is read as an address, too.
    if oid == _EMAIL_ADDRESS and _email_host(text) is None:
        return f"{text!r} is no e-mail address"
    # Two names that look the same to a person must be the same.
    if not text.isprintable() or text != text.strip():
        return f"attribute {oid}: white space at its ends, or a character that does not print"
    return None


def _is_uri(text: str) -> bool:
    return len(text) <= MAX_URI_CHARACTERS and _URI.fullmatch(text) is not None


def _email_host(text: str) -> str | None:
    matched = _EMAIL.fullmatch(text)
    if matched is None or not HOST.fullmatch(matched["host"]) or matched["host"].startswith("*"):
        return None
    return matched["host"]


def forbidden_names(names: RequestedNames, rules: NameRules) -> list[str]:
    """Return which of *names* the issuer does not certify, a sentence each.

    Args:
        names: Of a request, each of a form that a certificate can carry (`unwritable_names` found nothing).
        rules: Of the issuer.
    """
    found = [
        f"subject: {text!r} begins with {KUBERNETES_PREFIX}, which Kubernetes keeps for itself"
        for _, text in names.subject
        if text.startswith(KUBERNETES_PREFIX)
    ]
    found += [f"DNS name {name!r}" for name in names.dns_names if not _under(name, rules.dns_names)]
    found += [f"address {text}" for text in names.ip_addresses if not _within(text, rules.ip_networks)]
    found += [f"URI {uri!r}" for uri in names.uris if not _begins(uri, rules.uris)]
    found += [
        f"e-mail address {email!r}"
        for email in (*names.emails, *names.values(_EMAIL_ADDRESS))
        if not _under(_email_host(email) or "", rules.emails)
    ]
    found += [
        f"common name {text!r}" for text in names.values(COMMON_NAME) if not _is_common(text, names, rules)
    ]
    return found


def _under(name: str, domains: Iterable[str] | None) -> bool:
    if domains is None:
        return True
    name = name.removeprefix("*.")
    return any(name == domain or name.endswith(f".{domain}") for domain in domains)


def _within(text: str, networks: Iterable[str] | None) -> bool:
    # An address is never in a network of the other version.
    return networks is None or any(
        ipaddress.ip_address(text) in ipaddress.ip_network(network) for network in networks
    )


def _begins(uri: str, beginnings: Iterable[str] | None) -> bool:
    # `..` would leave what it seems to be under, percent-encoded or not.
    if beginnings is None:
        return True
    if ".." in uri or "%" in uri:
        return False
    return any(uri == one or uri.startswith(one if one.endswith("/") else f"{one}/") for one in beginnings)


def _is_common(text: str, names: RequestedNames, rules: NameRules) -> bool:
    alternatives = (*names.dns_names, *names.ip_addresses, *names.uris, *names.emails)
    if text in alternatives or text in (rules.common_names or ()):
        return True
    if rules.dns_names is None:
        return rules.common_names is None
    return HOST.fullmatch(text) is not None and _under(text, rules.dns_names)
