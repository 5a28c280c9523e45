"""Statements on their way to PostgreSQL: sent together, answered when somebody looks.

libpq's pipeline mode: a statement is sent without waiting for the one before. A round trip is what a unit of work pays
for each answer that it needs, and no more.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import psycopg
from psycopg import errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from attestation.errors import RequestInvalid

Connection = psycopg.Connection[tuple[Any, ...]]

_BINARY: Final = 1
_MOST_PREPARED: Final = 512
"""Far more than the statements of ours."""

_DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


class NotAlone(BaseException):
    """The unit wants another statement, and all of them on one snapshot."""


class Missed(Exception):
    """A statement that was trusted to change one row did not."""


class Sent:
    """A statement that was sent.

    Attributes:
        prepared: What it only prepares.
        one: It is trusted to change one row.
        answer: What came back, once there is anything.
    """

    __slots__ = ("answer", "one", "prepared")

    answer: PGresult

    def __init__(self, prepared: str | None = None) -> None:
        self.prepared, self.one = prepared, False


class Pipeline:
    """A connection as a cursor whose statements wait to be answered.

    Args:
        connection: Nobody else uses it.
        silent_seconds: For so long the server may be silent: then the connection is lost.

    Attributes:
        prepares: The session is ours alone, so it keeps prepared statements.
        failed: A statement of this unit, or group, went wrong.
    """

    def __init__(self, connection: Connection, *, silent_seconds: float) -> None:
        self.connection, self._pgconn = connection, connection.pgconn
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        self._values = Transformer(connection)
        self.prepares, self._silent_seconds = False, silent_seconds
        self._names: dict[str, bytes] = {}  # of what is prepared, by its text
        self._numbered = 0
        self._waiting: list[Sent] = []
        self._last = Sent()
        self._trusting = self._alone = self._asked = self.failed = False

    def begin(self, *, trusting: bool = False, alone: bool = False) -> None:
        """Begin a unit, or a group of them.

        Args:
            trusting: It waits for no statement whose answer nobody looks at. `failed` tells of any that went wrong.
            alone: It has no transaction, so only one statement that reads.
        """
        self._trusting, self._alone = trusting, alone
        self._asked = self.failed = False

    @property
    def closed(self) -> bool:
        """True where the connection is lost or closed."""
        return self.connection.closed

    @property
    def status(self) -> int:
        """Whether a transaction is open (`TransactionStatus`)."""
        return self._pgconn.transaction_status

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    # A cursor, as the executor sees it

    def execute(self, text: str, parameters: Sequence[Any], /) -> None:
        """Send a statement, and wait for it unless this one is trusted."""
        if self._alone:
            if self._asked or not text.startswith("SELECT"):
                raise NotAlone
            self._asked = True
        self._last = self.send(text, parameters)
        if not self._trusting:
            self.sync()

    @property
    def rowcount(self) -> int:
        """Rows changed by the last statement."""
        self.sync()
        return self._last.answer.command_tuples or 0

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the first row or None."""
        rows = self.fetchall()
        return rows[0] if rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        self.sync()
        return self.rows_of(self._last)

    def changes_one(self) -> bool:
        """Return True if the last statement changed one row, or is trusted to."""
        if not self._trusting:
            return self.rowcount == 1
        self._last.one = True
        return True

    # What goes over the wire

    def send(self, text: str, parameters: Sequence[Any] = ()) -> Sent:
        """Send one statement; `sync` waits for its answer.

        Raises:
            RequestInvalid: A NUL in text, which this database cannot keep.
            psycopg.Error: It cannot be sent.
        """
        if self._pgconn.status == ConnStatus.BAD:
            self._lose(errors.OperationalError("the connection is lost"))
        try:
            values = self._values.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        except psycopg.DataError as e:
            if any(isinstance(each, str) and "\0" in each for each in parameters):
                raise RequestInvalid("no text may hold the character NUL") from e
            raise
        formats = self._values.formats
        sent = Sent()
        command = text.encode()
        try:
            if not (self.prepares and parameters):
                self._pgconn.send_query_params(command, values, None, formats, _BINARY)
            else:
                name = self._names.get(text)
                if name is None and len(self._names) < _MOST_PREPARED:
                    self._numbered += 1
                    name = self._names[text] = b"s%d" % self._numbered
                    self._pgconn.send_prepare(name, command)
                    self._waiting.append(Sent(text))
                if name is None:
                    self._pgconn.send_query_params(command, values, None, formats, _BINARY)
                else:
                    self._pgconn.send_query_prepared(name, values, formats, _BINARY)
        except psycopg.OperationalError as e:
            self._lose(e)
        self._waiting.append(sent)
        return sent

    def rows_of(self, sent: Sent) -> list[tuple[Any, ...]]:
        """Return all rows that *sent* was answered with."""
        self._values.set_pgresult(sent.answer)
        return self._values.load_rows(0, sent.answer.ntuples, tuple)

    def run(self, text: str) -> None:
        """Run one statement, which must do what it says: a COMMIT that only ends what failed raises, too.

        Raises:
            psycopg.Error: It did not.
        """
        sent = self.send(text)
        self.sync()
        if sent.answer.command_status != text.partition(" ")[0].encode():
            raise errors.InFailedSqlTransaction("the transaction had failed")

    def sync(self) -> None:
        """Wait for the answers to all that was sent.

        Raises:
            psycopg.Error: Of the first that failed; those behind it were not run.
            Missed: A statement did not change one row.
        """
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        error: psycopg.Error | None = None
        missed = False
        try:
            self._pgconn.pipeline_sync()
            for sent in waiting:
                answer = self._answer()
                if answer is None:
                    raise errors.OperationalError("the connection was closed before the answer")
                while self._answer() is not None:
                    pass
                if answer.status in _DONE:
                    sent.answer = answer
                    missed = missed or (sent.one and answer.command_tuples != 1)
                    continue
                if sent.prepared is not None:
                    del self._names[sent.prepared]
                if error is None and answer.status == ExecStatus.FATAL_ERROR:
                    error = _told(answer)
            self._answer()  # of the synchronisation itself
        except psycopg.OperationalError as e:
            self._lose(error or e)
        if error is not None:
            self.failed = True
            raise error
        if missed:
            self.failed = True
            raise Missed

    def _answer(self) -> PGresult | None:
        """Return the next answer; None behind each statement's."""
        pgconn = self._pgconn
        if (unsent := pgconn.flush()) or pgconn.is_busy():
            poll = select.poll()
            deadline = time.monotonic() + self._silent_seconds
            while unsent or pgconn.is_busy():
                poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
                if not poll.poll(max(0, deadline - time.monotonic()) * 1000):
                    raise errors.OperationalError("no answer in time")
                pgconn.consume_input()
                unsent = pgconn.flush()
        return pgconn.get_result()

    def _lose(self, error: psycopg.Error) -> NoReturn:
        self.connection.close()
        self._waiting.clear()
        self.failed = True
        raise error


def _told(answer: PGresult) -> psycopg.Error:
    """Return the error of *answer* without what it quotes of rows: they may be secrets."""
    state = (answer.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    words = (answer.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    try:
        kind = errors.lookup(state)
    except KeyError:
        kind = errors.DatabaseError
    return kind(words)
