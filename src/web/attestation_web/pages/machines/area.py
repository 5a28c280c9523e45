"""The area of pages about machines."""

from __future__ import annotations

from typing import Final

from attestation_web.page import Page

page: Final = Page("attestation_web.pages.machines", title="Machines", place=30)
