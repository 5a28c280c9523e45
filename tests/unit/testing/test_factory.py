"""The fake Image Factory says what the real one says, by a writer of its own."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from attestation_testing.talos import factory
from tests.unit.talos.test_schematic import OF_THE_FACTORY, whole


def test_it_gives_the_documented_ids() -> None:
    """Those of the real factory's own tests, and what two writers agree on: ours and this one."""
    fake = factory.FakeFactory()
    for text in OF_THE_FACTORY.values():
        fake.create(text.encode())
    assert set(fake.schematics) == set(OF_THE_FACTORY)
    assert factory.canonical(whole().canonical()) == whole().canonical()


def test_what_is_no_schematic_is_refused_in_plain_text() -> None:
    """As there: unknown members are errors."""
    for text in (b"customization: {kernelArgs: []}", b"- a", b"a: [", b"\xff"):
        status, media_type, body = factory.FakeFactory().create(text)
        assert (status, media_type) == (400, "text/plain")
        assert body


@pytest.mark.parametrize("old", [False, True])
def test_it_serves_what_it_was_sent(old: bool) -> None:
    """Over HTTP: a schematic, its text, an image of it; and nothing of a schematic that it does not have."""
    with factory.serving(old=old) as fake:
        with urlopen(f"{fake.url}/schematics", data=b"customization: {}", timeout=30) as answer:
            found = json.load(answer)
        name = found["id"]
        assert ("schematic" in found) is not old
        with urlopen(f"{fake.url}/schematics/{name}", timeout=30) as answer:
            assert answer.read() == b"customization: {}\n"
        with urlopen(f"{fake.url}/image/{name}/v1.13.9/metal-amd64.iso", timeout=30) as answer:
            assert name.encode() in answer.read()
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{fake.url}/image/{'0' * 64}/v1.13.9/metal-amd64.iso", timeout=30)
