"""Every word of an event leads back to its event, and nothing else does."""

from __future__ import annotations

import pytest

from attestation.machines import OWN_EVENTS, Event, ExtensionEvent, event_named


@pytest.mark.parametrize("event", OWN_EVENTS, ids=str)
def test_each_word_names_its_event(event: Event) -> None:
    """What the outbox stores as a word comes back as what it was."""
    assert event_named(event.value) is event


def test_extensions_have_words_of_their_own() -> None:
    """The first of them tells whose."""
    event = event_named("secret.created")
    assert isinstance(event, ExtensionEvent)
    assert (event, event.value) == ("secret.created", "secret.created")


def test_the_words_are_distinct() -> None:
    """A word that two kinds share would come back as the wrong one."""
    words = [event.value for event in OWN_EVENTS]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    "word",
    [
        "",
        "node",
        "operator.",
        "NODE.ONLINE",
        "node.onlin",
        "audit.told",
        "secret.Created",
        "a.b.c",
        "secret.x\n",
    ],
)
def test_other_words_name_none(word: str) -> None:
    """A row that we did not write is an error, not a guess."""
    with pytest.raises(ValueError, match="is no name of an event"):
        event_named(word)
