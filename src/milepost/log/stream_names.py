"""Names of streams by their numbers: the log stores a number with each message."""

from collections.abc import Mapping

from milepost.log.connections import Executor
from milepost.log.statements import Statements, as_array

KEPT = 100_000
"""How many names a process keeps: some 20 MB."""


class StreamNames:
    """The names that were looked up before; they never change. When it is full it begins anew."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._names: dict[int, str] = {}

    async def of(self, executor: Executor, numbers: set[int]) -> Mapping[int, str]:
        """At least the names of these."""
        names = self._names
        missing = numbers.difference(names)
        if missing:
            statement = self._statements.get("stream_names")
            names.update(await executor.execute(statement, {"numbers": as_array(sorted(missing))}))
            if len(names) > KEPT:
                # Who has the old ones keeps them as long as it needs them.
                self._names = {}
        return names
