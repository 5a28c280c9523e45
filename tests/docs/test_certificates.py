"""The page about certificates has the tables of the code."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attestation.pki.lint import RULES
from attestation.pki.profiles import (
    CLIENT_AUTH,
    COMMON_NAME,
    COUNTRY,
    KEY_TIERS,
    MAX_ASSURANCE,
    OCSP_SIGNING,
    ORGANIZATION,
    PROFILES,
    SERVER_AUTH,
    UNIT,
    Alternative,
    Profile,
)
from attestation.results import Assurance
from tests.docs.pages import text

PAGE = text("docs/protocol/certificates.md")
WORDS = {
    COUNTRY: "C",
    ORGANIZATION: "O",
    COMMON_NAME: "CN",
    CLIENT_AUTH: "clientAuth",
    SERVER_AUTH: "serverAuth",
    OCSP_SIGNING: "OCSPSigning",
    "digital_signature": "digitalSignature",
    "key_cert_sign": "keyCertSign",
    "crl_sign": "cRLSign",
}
NAMES = {Alternative.URI: "EK (URI)", Alternative.DNS: "host (DNS)", Alternative.IP: "address (IP)"}


def _list(words: Iterable[str]) -> str:
    return ", ".join(words) or "–"


def row(profile: Profile) -> str:
    """Return the line of the table for *profile*."""
    subject = [
        f"OU ({_list(sorted(profile.units))})" if oid == UNIT else WORDS[oid] for oid in profile.subject
    ]
    alternatives = [" or ".join(NAMES[kind] for kind in sorted(kinds)) for kinds in profile.alternatives]
    policies = "anyPolicy" if profile.fixed_policies else "–"
    if profile.fixed_policies is None:
        policies = "assurance, key tier"
    pointers = [*sorted(profile.pointers), *(["no-check"] if profile.no_check else [])]
    ca = "–"
    if profile.path_length is not None:
        ca = f"path length {profile.path_length}, {'by itself' if profile.self_signed else 'by another'}"
    cells = [
        f"`{profile.name}`",
        profile.what,
        f"{profile.purpose}s" if profile.purpose else "its own",
        _list(subject),
        f"{profile.max_validity.days} d",
        _list(WORDS[word] for word in profile.key_usage),
        _list(WORDS[oid] for oid in profile.purposes),
        _list(alternatives),
        policies,
        _list(pointers),
        ca,
    ]
    return f"| {' | '.join(cells)} |"


def table(name: str) -> list[str]:
    """Return the rows of the table of that name."""
    found = re.search(rf"^<!-- {name}: .*? -->\n(.*?)^<!-- end -->", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return [line for line in found[1].splitlines() if line.startswith("| `")]


def test_the_table_of_profiles_is_that_of_the_code() -> None:
    """What a relying party reads is what the linter demands."""
    assert table("profiles") == [row(profile) for profile in PROFILES.values()]


def test_the_table_of_rules_is_that_of_the_code() -> None:
    """Each rule with its clause."""
    assert table("rules") == [f"| `{rule.name}` | {rule.what} | {rule.source} |" for rule in RULES.values()]


def test_levels_and_tiers_are_explained() -> None:
    """Every OID that a certificate may carry."""
    levels = sorted(Assurance, key=lambda level: level.level)
    assert {level.level for level in levels} == {*range(MAX_ASSURANCE + 1)}
    assert ", ".join(level.value for level in levels) in PAGE
    for tier, word in KEY_TIERS.items():
        assert f"| `<arc>.2.{tier}` | {word}: " in PAGE
