"""The log of one database: its parts, opened and closed together."""

from uuid import UUID

from milepost.log import schema
from milepost.log.database import Database
from milepost.log.feed import Feed
from milepost.log.horizon import Horizon
from milepost.log.reader import Reader
from milepost.log.statements import Statements
from milepost.log.wakeups import Wakeups


class Log:
    """What of the log needs connections: the horizon, the wake-ups, the feed."""

    def __init__(self, database: Database, statements: Statements, reader: Reader) -> None:
        self.database = database
        self.statements = statements
        self.horizon = Horizon(database, statements)
        self.wakeups = Wakeups(database, statements)
        self.feed = Feed(database, statements, self.horizon, reader, self.wakeups)

    async def open(self, migrate: schema.Migrate) -> None:
        """Connects, and brings or checks the schema."""
        await self.database.open()
        try:
            async with self.database.connection() as connection:
                await schema.prepare(connection, self.statements.schema, migrate)
        except BaseException:
            await self.database.close()
            raise

    async def identity(self) -> UUID:
        """What tells this log from others; it stays the same when the log is restored from a backup."""
        rows = await self.database.execute(self.statements.get("identity"), {})
        found: UUID = rows[0][0]
        return found

    async def close(self) -> None:
        """Stops following and ends all connections."""
        await self.feed.close()
        await self.horizon.close()
        await self.database.close()
