"""The agent as documented: every setting, exit code and event has its place, and examples are the ones under test."""

from __future__ import annotations

import re

from attestation_agent.exits import Exit
from attestation_agent.kubelet import kept, proxy
from attestation_agent.kubelet.settings import KUBELET_OPTIONS, SHARED_OPTIONS
from attestation_agent.offered import ALL, BUNDLE, CERTIFICATE, CHAIN, FULL_CHAIN, KEY
from attestation_agent.settings import OPTIONS
from attestation_agent.tpm_keys import DIGEST_BYTES
from tests.docs.pages import ROOT, text

AGENT, CERTIFICATES = text("docs/operate/agent.md"), text("docs/operate/agent-certificates.md")
KUBELET, KIOSK = text("docs/kubernetes/kubelet.md"), text("docs/operate/kiosk.md")
BOTH = AGENT + CERTIFICATES


def test_every_setting_has_its_row() -> None:
    """With flag and variable; and nothing that does not exist."""
    for page, options in ((BOTH, OPTIONS), (KUBELET, KUBELET_OPTIONS)):
        rows = set(re.findall(r"^\| `(--[a-z-]+)` \| `(ITL_[A-Z_]+)` \|", page, flags=re.MULTILINE))
        assert rows == {(option.flag, option.variable) for option in options}
    for option in SHARED_OPTIONS:
        assert f"`{option.flag}`" in KUBELET


def test_every_exit_code_has_its_row() -> None:
    """They do not change."""
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", AGENT, flags=re.MULTILINE)}
    assert rows == {int(code) for code in Exit}


def test_every_event_is_explained() -> None:
    """Whoever reads the log finds the word."""
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in ROOT.glob("src/agent/attestation_agent/**/*.py")
    )
    events = set(re.findall(r"log\.(?:info|warning|error)\(\s*\"([a-z_.]+)\"", sources))
    assert len(events) > 30
    assert events <= set(re.findall(r"`([a-z_.]+)`", BOTH + KUBELET + KIOSK))


def test_every_file_and_algorithm_is_named() -> None:
    """Of certificates and of the signer."""
    for name in (KEY, CERTIFICATE, CHAIN, FULL_CHAIN, ALL, BUNDLE, *DIGEST_BYTES):
        assert f"`{name}`" in CERTIFICATES
    for name in (
        kept.BUNDLE,
        kept.NOTES,
        kept.PENDING,
        proxy.LOCAL,
        proxy.NGINX,
        proxy.OPENSSL,
        proxy.AUTHORITIES,
    ):
        assert f"`{name}`" in KUBELET


def test_openssl_is_told_the_same_everywhere() -> None:
    """The page's file for OpenSSL and the proxy's are one."""
    assert CERTIFICATES.partition("```ini\n")[2].partition("```")[0] == proxy.OPENSSL_CONF
