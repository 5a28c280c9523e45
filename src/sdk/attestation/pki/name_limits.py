"""Which names a CA below an issuer may certify, as its certificate says it: NameConstraints (RFC 5280, 4.2.1.10).

What an issuer may not certify itself, no CA of its may certify in its place. So the rules of the issuer stand in each
certificate of a CA that it makes, critical; and where a certificate cannot say a rule, no CA is certified.

    dns_names  example.org     permitted dNSName example.org, which permits what is below it, too
    ip_networks 10.0.0.0/8     permitted iPAddress 10.0.0.0/8
    emails     example.org     permitted rfc822Name example.org (its own mailboxes) and .example.org (those below)
    uris       spiffe://a/b/   cannot be said: a constraint names a host, and neither scheme nor path

Nothing of a kind: one name is permitted that nobody can have (`.invalid`, RFC 6761), since verifiers differ in how they
read an empty one; of addresses all are excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from attestation.pki.leaf_names import NameRules

IPNetwork = IPv4Network | IPv6Network
NOBODY: Final = "nobody.invalid"
EVERYWHERE: Final[tuple[IPNetwork, ...]] = (ip_network("0.0.0.0/0"), ip_network("::/0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NameLimits:
    """What stands in NameConstraints, in this order.

    Args:
        dns_names: Permitted; none means any.
        ip_networks: Permitted; none means any that is not excluded.
        uris: Hosts of permitted URIs; none means any.
        emails: Permitted hosts, with a dot at its beginning those below; none means any.
        excluded_networks: Excluded.
    """

    dns_names: tuple[str, ...] = ()
    ip_networks: tuple[IPNetwork, ...] = ()
    uris: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    excluded_networks: tuple[IPNetwork, ...] = ()


def inexpressible(rules: NameRules) -> str | None:
    """Return which of *rules* no certificate of a CA can say, in words; None where it can say all of them."""
    if rules.uris:
        return "a CA cannot be held to beginnings of URIs: a certificate limits their hosts alone"
    if rules.common_names is not None:
        return "a CA cannot be held to a list of common names: no certificate limits them"
    return None


def limits_of(rules: NameRules) -> NameLimits | None:
    """Return what the certificate of a CA under *rules* says; None where they permit any name.

    Args:
        rules: Of which `inexpressible` said nothing.
    """
    if rules == NameRules():
        return None
    domains, mail = rules.dns_names, rules.emails
    networks = None if rules.ip_networks is None else tuple(map(ip_network, rules.ip_networks))
    return NameLimits(
        dns_names=() if domains is None else domains or (NOBODY,),
        ip_networks=networks or (),
        uris=() if rules.uris is None else (NOBODY,),
        emails=() if mail is None else tuple(e for host in mail for e in (host, f".{host}")) or (NOBODY,),
        excluded_networks=EVERYWHERE if networks == () else (),
    )
