"""What a trial of a handler says of its transaction."""

from contextlib import suppress

from milepost import Milepost, NewMessage
from milepost.engine.rehearsal import Rehearsal
from milepost.engine.transaction import CannotAppend


async def test_an_append_that_is_refused_is_told_also_where_the_handler_hides_it(mp: Milepost) -> None:
    async with Rehearsal.on(mp.log.database, None, "read committed") as rehearsal:
        with suppress(CannotAppend):
            await rehearsal.transaction.append("receipt-1", NewMessage("due"))
        assert isinstance(await rehearsal.conclude(None), CannotAppend)
