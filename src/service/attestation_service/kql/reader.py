"""A cursor over tokens, with the few questions that parsers ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from attestation_service.kql.kinds import Limits, Place
from attestation_service.kql.lexer import Sort, Token, tokens_of
from attestation_service.kql.source import Source

T = TypeVar("T")


class Reader:
    """Tokens of one query, one after the other."""

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source, self.limits = source, limits
        self._tokens, self._at = list(tokens_of(source)), 0
        self._depth = self._stages = 0

    @property
    def token(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._at]

    def peek(self, ahead: int = 1) -> Token:
        """Return a later token, the last one where there are not so many."""
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        """Return the next token and go past it; the END stays."""
        token = self.token
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def is_mark(self, *marks: str) -> bool:
        """Tell whether one of these marks comes next."""
        return self.token.sort is Sort.MARK and self.token.text in marks

    def is_word(self, *words: str) -> bool:
        """Tell whether one of these words comes next."""
        return self.token.sort is Sort.NAME and self.token.text in words

    def skip(self, text: str) -> bool:
        """Go past this mark or word, if it comes next."""
        if self.is_mark(text) or self.is_word(text):
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        """Go past this mark or word.

        Raises:
            QueryInvalid: Something else comes next.
        """
        if not (self.is_mark(text) or self.is_word(text)):
            raise self.expected(text)
        return self.take()

    def name(self, what: str) -> Token:
        """Read a name.

        Raises:
            QueryInvalid: None comes next.
        """
        if self.token.sort not in (Sort.NAME, Sort.QUOTED):
            raise self.expected(what)
        return self.take()

    def joined_name(self) -> Token:
        """Read a name with hyphens in it, without spaces around them: `project-away`."""
        first = last = self.name("an operator")
        text = first.text
        while self.token.is_mark("-") and _touches(last, self.token) and _touches(self.token, self.peek()):
            if self.peek().sort is not Sort.NAME:
                break
            self.take()
            last = self.take()
            text += "-" + last.text
        return Token(sort=Sort.NAME, place=first.place.to(last.place), text=text)

    def listed(self, read: Callable[[], T]) -> tuple[T, ...]:
        """Read one or more, with commas between them."""
        found = [read()]
        while self.skip(","):
            found.append(read())
        return tuple(found)

    def expected(self, what: str) -> Exception:
        """Return the error that says that something else comes next."""
        found = "the query ends" if self.token.sort is Sort.END else f"found {self.token.text[:32]}"
        return self.source.invalid(self.token.place, f"expected {what}, but {found}")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count one level of nesting.

        Raises:
            QueryInvalid: There are more than the limit.
        """
        self._depth += 1
        if self._depth > self.limits.nesting:
            raise self.source.invalid(self.token.place, f"nested more than {self.limits.nesting} deep")
        yield
        self._depth -= 1

    def count_stage(self, place: Place) -> None:
        """Count one operator.

        Raises:
            QueryInvalid: There are more than the limit.
        """
        self._stages += 1
        if self._stages > self.limits.stages:
            raise self.source.invalid(place, f"more than {self.limits.stages} operators")


def _touches(left: Token, right: Token) -> bool:
    return left.place.offset + left.place.length == right.place.offset
