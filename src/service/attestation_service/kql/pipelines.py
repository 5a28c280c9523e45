"""Queries: `let name = …;` and one pipeline, whose operators are those of `operators.table`."""

from __future__ import annotations

from attestation_service.kql.expressions import expression
from attestation_service.kql.kinds import Limits
from attestation_service.kql.lexer import Sort
from attestation_service.kql.operators.table import OPERATORS
from attestation_service.kql.reader import Reader
from attestation_service.kql.source import Source
from attestation_service.kql.syntax import Expression, Let, Pipeline, Query, Stage, TableName


def parse(source: Source, limits: Limits) -> Query:
    """Read a query.

    Raises:
        QueryInvalid: It is none, or beyond the limits.
    """
    reader = Reader(source, limits)
    lets: list[Let] = []
    while reader.is_word("let"):
        lets.append(_let(reader))
        if reader.token.sort is Sort.END:
            raise reader.expected("a query after what let names")
    query = pipeline(reader)
    reader.skip(";")
    if reader.token.sort is not Sort.END:
        raise reader.expected("| and an operator, or the end of the query")
    return Query(lets=tuple(lets), pipeline=query)


def _let(reader: Reader) -> Let:
    reader.expect("let")
    name = reader.name("a name")
    reader.expect("=")
    value = _named(reader)
    reader.expect(";")
    return Let(place=name.place, name=name.text, value=value)


def _named(reader: Reader) -> Expression | Pipeline:
    """Read what let gives a name to: a pipeline, where an operator follows what could be a table."""
    token = reader.token
    if token.sort in (Sort.NAME, Sort.QUOTED) and reader.peek().is_mark("|"):
        return pipeline(reader)
    if token.sort is Sort.NAME and token.text in OPERATORS and OPERATORS[token.text].is_source:
        return pipeline(reader)
    if token.is_mark("(") and reader.peek().sort is Sort.NAME and reader.peek(2).is_mark("|"):
        return pipeline(reader)
    return expression(reader, pipeline)


def pipeline(reader: Reader) -> Pipeline:
    """Read where rows come from, and what is done to them.

    Raises:
        QueryInvalid: No pipeline stands here.
    """
    with reader.deeper():
        begin = reader.token
        source: TableName | Pipeline | Stage
        if reader.skip("("):
            source = pipeline(reader)
            reader.expect(")")
        elif begin.sort is Sort.NAME and begin.text in OPERATORS and OPERATORS[begin.text].is_source:
            source = _stage(reader)
        else:
            name = reader.name("a table")
            source = TableName(place=name.place, name=name.text)
        stages: list[Stage] = []
        while reader.skip("|"):
            stages.append(_stage(reader))
        return Pipeline(place=begin.place, source=source, stages=tuple(stages))


def _stage(reader: Reader) -> Stage:
    """Read one operator and what it takes."""
    name = reader.joined_name()
    operator = OPERATORS.get(name.text)
    if operator is None:
        raise reader.source.unknown(name.place, "operator", name.text, OPERATORS)
    reader.count_stage(name.place)
    return operator.read(reader, pipeline, name.place)
