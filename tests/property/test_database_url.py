"""What is read of ITL_DB_URL: any text may stand there, and no warning repeats a password."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from attestation_service.database_url import has_password, weaknesses


@given(st.text() | st.text().map("postgresql+psycopg://".__add__))
def test_any_text_can_be_asked(url: str) -> None:
    assert len(weaknesses(url)) <= 2


def test_what_a_file_of_libpq_names_is_not_here() -> None:
    """Nobody reads that file before the connection is made."""
    assert len(weaknesses("postgresql+psycopg:///itl?service=prod")) == 1
    assert weaknesses("postgresql+psycopg:///itl?service=prod&sslmode=verify-full") == []


@given(st.text(min_size=8), st.sampled_from(["", "localhost", "db.example", "10.0.0.1"]))
def test_a_password_is_seen_and_not_repeated(password: str, host: str) -> None:
    url = f"postgresql+psycopg://itl:{quote(password, safe='', errors='replace')}@{host}/itl"
    assert has_password(url)
    assert all(password not in line for line in weaknesses(url))
    assert len(weaknesses(url)) == (1 if host in ("", "localhost") else 2)
