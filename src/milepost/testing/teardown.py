"""Drop the schemas of a test. Transactions that were left open beside it are named and ended."""

import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from milepost.errors import MilepostError
from milepost.log.statements import Statements

LOCK_WAIT_SECONDS = 3.0
"""How long a drop waits for others before they are ended. More than PostgreSQL's `deadlock_timeout`, after which
autovacuum gives way by itself."""
MAX_WAITS = 5
"""How many such waits a drop has, when whoever holds it up cannot be ended."""
MAX_DEADLOCKS = 3
"""How often a drop that PostgreSQL chose to break a deadlock is tried again."""
MAX_STATEMENT_CHARACTERS = 120

Connection = psycopg.Connection[Any]
Connect = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class Blocker:
    """A session or a prepared transaction that holds what a drop waits for."""

    pid: int | None
    gid: str | None
    """The name of a prepared transaction, which has no process."""
    application: str
    role: str
    state: str
    seconds: float | None
    """The age of the transaction; None if the role may not see it."""
    statement: str

    def __str__(self) -> str:
        age = "" if self.seconds is None else f" for {self.seconds:.0f} s"
        if self.pid is None:
            return f"transaction {self.gid!r}, prepared by role {self.role}{age}"
        words = [f"pid {self.pid}", f"application {self.application!r}", f"role {self.role}"]
        if self.state:
            words.append(f"{self.state}{age}")
        if statement := " ".join(self.statement.split()):
            words.append(f"last statement: {statement[:MAX_STATEMENT_CHARACTERS]}")
        return ", ".join(words)

    def end(self, connection: Connection, statements: Statements) -> None:
        """End the session, or roll the prepared transaction back."""
        if self.pid is None:
            connection.execute(sql.SQL("rollback prepared {}").format(self.gid))
        else:
            connection.execute(statements.get("end"), {"pid": self.pid})


@dataclass
class SchemaDropper:
    """Drops schemas. Whoever keeps one from being dropped is ended, and named in a warning."""

    connect: Connect
    statements: Statements
    ended: dict[int | str | None, Blocker] = field(default_factory=dict)
    """Who was ended, by pid or name."""

    def drop(self, *schemas: Statements) -> None:
        """Drop each; raise `MilepostError` if one is held by somebody who cannot be ended."""
        with self.connect() as connection:
            # Whoever holds it up is looked for: a time-out of the user's own would end the drop instead.
            connection.execute("set lock_timeout = 0; set statement_timeout = 0")
            for each in schemas:
                self._execute(connection, each)
        if self.ended:
            who = "; ".join(map(str, self.ended.values()))
            warnings.warn(
                f"milepost_db: what was left open beside the test kept schema {schemas[0].schema} from being "
                f"dropped for {LOCK_WAIT_SECONDS:g} s. Ended: {who}. Commit or roll back before the test ends.",
                stacklevel=2,
            )

    def _execute(self, connection: Connection, schema: Statements) -> None:
        # The statement waits in a thread: only while it waits does the server know for whom.
        with ThreadPoolExecutor(1, "milepost-drop") as thread:
            for attempt in range(MAX_DEADLOCKS + 1):
                dropping = thread.submit(connection.execute, schema.get("drop"))
                try:
                    self._end_blockers(schema.schema, connection, dropping)
                    dropping.result()
                except psycopg.errors.DeadlockDetected:
                    if attempt == MAX_DEADLOCKS:
                        raise
                except BaseException:
                    # Giving up, or Ctrl-C. The thread is waited for, so its statement has to end.
                    with suppress(psycopg.Error):
                        connection.cancel_safe()
                    raise
                else:
                    return

    def _end_blockers(self, schema: str, waiting: Connection, dropping: "Future[Any]") -> None:
        waits = 0
        while not wait([dropping], LOCK_WAIT_SECONDS).done:
            waits += 1
            spared = self._end_current(waiting.info.backend_pid)
            if spared and waits >= MAX_WAITS:
                raise MilepostError(
                    f"milepost_db: schema {schema} cannot be dropped, it is held by {'; '.join(spared)}"
                )

    def _end_current(self, waiting: int) -> list[str]:
        """End all that a process waits for; return who could not be ended, and why."""
        spared = []
        with self.connect() as connection:
            for row in connection.execute(self.statements.get("blockers"), {"pid": waiting}).fetchall():
                blocker = Blocker(*row)
                try:
                    blocker.end(connection, self.statements)
                except psycopg.Error as error:
                    spared.append(f"{blocker} ({str(error).strip().splitlines()[0]})")
                else:
                    self.ended.setdefault(blocker.pid or blocker.gid, blocker)
        return spared
