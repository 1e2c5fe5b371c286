"""Names of streams by their numbers: the log stores a number with each message."""

from collections.abc import Mapping
from uuid import UUID

from milepost.errors import Unavailable
from milepost.log.connections import Executor
from milepost.log.statements import Statements, as_array

KEPT = 100_000
"""How many names a process keeps: some 20 MB."""


class StreamNames:
    """The names that were looked up before; while the server lives they never change. When full it begins anew.

    A crash can take streams back whose commits were not on disk, and their numbers are drawn again.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._names: dict[int, str] = {}
        self._life: UUID | None = None

    async def of(self, executor: Executor, numbers: set[int], life: UUID | None) -> Mapping[int, str]:
        """At least the names of these, which were read in this life of the server."""
        if life != self._life:
            self._names, self._life = {}, life
        names = self._names
        missing = numbers.difference(names)
        if missing:
            statement = self._statements.get("stream_names")
            parameters = {"numbers": as_array(sorted(missing)), "life": life}
            names.update(await executor.execute(statement, parameters))
            if not names.keys() >= missing:
                raise Unavailable("PostgreSQL restarted while the log was being read: read again")
            if len(names) > KEPT and names is self._names:
                # Who has the old ones keeps them as long as it needs them.
                self._names = {}
        return names
