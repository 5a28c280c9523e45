"""docs/operate/kiosk.md says what the kiosk can be told, where, what it warns of, and how it ends."""

from __future__ import annotations

import re

from attestation_agent.kiosk import media, receipt
from attestation_agent.kiosk.exits import KioskExit
from attestation_agent.kiosk.main import EPILOG
from attestation_agent.kiosk.settings import KIOSK_OPTIONS
from attestation_agent.kiosk.sources import KERNEL_ARGUMENTS
from tests.docs.pages import ROOT, text

PAGE = text("docs/operate/kiosk.md")


def test_each_setting_file_and_code_is_on_the_page() -> None:
    """What is not there cannot be chosen, or understood."""
    words = [
        *(option.variable for option in KIOSK_OPTIONS),
        *KERNEL_ARGUMENTS,
        *KERNEL_ARGUMENTS.values(),
        *media.FILES,
        media.CONF,
        media.LABEL,
        media.OFFLINE_BUNDLE,
        receipt.REGISTRATION,
        receipt.RECEIPT,
    ]
    assert [word for word in words if f"`{word}`" not in PAGE and f"/{word}`" not in PAGE] == []
    sources = "\n".join(path.read_text() for path in ROOT.glob("src/agent/attestation_agent/kiosk/*.py"))
    events = set(re.findall(r"(?:log|screen)\.(?:info|warning|error)\(\s*\"([a-z_.]+)\"", sources))
    assert len(events) > 5
    assert events <= set(re.findall(r"`([a-z_.]+)`", PAGE + text("docs/operate/agent.md")))
    codes = PAGE.partition("## Exit codes")[2]
    assert [
        code for code in KioskExit if f"{int(code)} |" not in codes and f"{int(code)}, " not in codes
    ] == []
    assert [code for code in KioskExit if f"{int(code)} " not in EPILOG] == []
