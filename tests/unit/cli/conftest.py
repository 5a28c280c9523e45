"""Where the command line's tests live: in a home of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, so that no login and no profile of whoever runs the tests is seen."""
    for name in (
        "ITL_PROFILE",
        "ITL_OIDC_ISSUER",
        "ITL_OIDC_CLIENT_ID",
        "KEYCLOAK_URL",
        "KEYCLOAK_CLIENT_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    return home
