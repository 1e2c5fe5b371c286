"""The shop's books: the table that a subscription keeps exactly once, and whether it is right."""

from dataclasses import dataclass

from psycopg import AsyncConnection

from milepost.app import Milepost
from milepost.log.statements import in_schema

_CREATE = """
create schema if not exists shop;
create table if not exists shop.revenue (region text primary key, payments bigint not null, total bigint not null);
"""
_BOOKED = "select coalesce(sum(payments), 0)::bigint, coalesce(sum(total), 0)::bigint from shop.revenue"
_PAID = """
select count(*), coalesce(sum((m.data ->> 'total')::bigint), 0)::bigint
from :"schema".messages m where m.type = 'payment.received'
"""


@dataclass(frozen=True)
class Sum:
    """So many payments, and what they come to in cents."""

    payments: int
    total: int


async def prepare(connection: AsyncConnection[tuple[object, ...]]) -> None:
    """Makes the table, if it is not there yet."""
    await connection.execute(_CREATE)


async def booked(mp: Milepost) -> Sum:
    """What the subscription has written."""
    [row] = await mp.log.database.execute(_BOOKED, {})
    return Sum(*row)


async def paid(mp: Milepost) -> Sum:
    """What the log says."""
    [row] = await mp.log.database.execute(in_schema(_PAID, mp.settings["schema"].value), {})
    return Sum(*row)
