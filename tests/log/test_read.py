"""Reading: by stream, category and type, both ways, from a version, a position or a time."""

import asyncio
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import pytest

from milepost import InvalidMessage, Milepost, NewMessage, TooLarge
from milepost.engine.query import query_of
from milepost.log import query as log_query
from milepost.log.postgres.reader import StreamNameCache
from milepost.log.query import PAGE_BYTES, Query, SelectedLanes, Selection
from milepost.names import bucket_of
from milepost.postgres.pool import fetch_rows
from support import following, positions, qualified


@pytest.fixture
async def shop(mp: Milepost) -> Milepost:
    """Nine messages in four streams of three categories."""
    for stream, type_ in [
        ("order-1", "order.placed"),
        ("order-2", "order.placed"),
        ("orderline-1", "order.line.added"),
        ("order-1", "order.cancelled"),
        ("payment-1", "payment.received"),
        ("order-2", "order.shipped.abroad"),
        ("payment-1", "payment.refunded"),
        ("order-1", "order"),
        ("order-2", "note"),
    ]:
        await mp.append(stream, NewMessage(type_))
    return mp


async def versions(mp: Milepost, stream: str, **query: Any) -> list[int]:
    return [message.version async for message in mp.read(stream, **query)]


async def test_one_stream(shop: Milepost) -> None:
    assert await versions(shop, "order-1") == [1, 2, 3]
    assert await versions(shop, "order-1", backwards=True) == [3, 2, 1]
    assert await versions(shop, "order-1", after_version=1) == [2, 3]
    assert await versions(shop, "order-1", after_version=1, backwards=True) == [3, 2]
    assert await versions(shop, "order-1", limit=2) == [1, 2]
    assert await versions(shop, "order-1", limit=1, backwards=True) == [3]
    assert await versions(shop, "order-1", limit=0) == []
    assert await versions(shop, "order-1", after=4) == [3]
    assert await versions(shop, "order-1", types="order.*") == [1, 2]
    assert await versions(shop, "order-1", category="order") == [1, 2, 3]
    assert await versions(shop, "order-1", category="payment") == []
    assert await versions(shop, "unknown-1") == []


async def test_everything(shop: Milepost) -> None:
    assert await positions(shop) == list(range(1, 10))
    assert await positions(shop, backwards=True) == list(range(9, 0, -1))
    assert await positions(shop, after=6) == [7, 8, 9]
    assert await positions(shop, after=6, backwards=True) == [9, 8, 7]
    assert await positions(shop, limit=3) == [1, 2, 3]
    assert await positions(shop, limit=3, backwards=True) == [9, 8, 7]
    assert await positions(shop, after=100) == []


async def test_a_category_is_matched_exactly(shop: Milepost) -> None:
    assert await positions(shop, category="order") == [1, 2, 4, 6, 8, 9]
    assert await positions(shop, category="orderline") == [3]
    assert await positions(shop, category=["payment", "orderline"]) == [3, 5, 7]
    assert await positions(shop, category="order", backwards=True, limit=2) == [9, 8]
    assert await positions(shop, category="ord") == []


async def test_several_streams(shop: Milepost) -> None:
    assert await positions(shop, stream=["order-1", "payment-1"]) == [1, 4, 5, 7, 8]
    assert await positions(shop, stream=["order-1", "payment-1"], category="payment") == [5, 7]


@pytest.mark.parametrize(
    ("types", "wanted"),
    [
        ("order.placed", [1, 2]),
        (["order.placed", "note"], [1, 2, 9]),
        ("order.*", [1, 2, 4]),
        ("order.>", [1, 2, 3, 4, 6]),
        ("*", [8, 9]),
        (">", [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("*.placed", [1, 2]),
        ("order.*.added", [3]),
        (["payment.*", "order.placed"], [1, 2, 5, 7]),
        ("ORDER.*", []),
    ],
)
async def test_types_and_patterns(shop: Milepost, types: Any, wanted: list[int]) -> None:
    assert await positions(shop, types=types) == wanted
    selection = Selection.of(types=types)
    assert [m.position async for m in shop.read() if selection.matches(m)] == wanted


@pytest.mark.shard("hostile", fast=["embedded-a+b", "embedded-%s"])
@pytest.mark.parametrize("name", ["a+b", "a|b", "(a)", "a$", "^a", "a\\b", "a\nb", "é.ß", "[a]", "a{2}", "%s"])
async def test_a_type_is_a_name_and_not_an_expression(mp: Milepost, name: str) -> None:
    await mp.append("a-1", [NewMessage(name + ".x"), NewMessage("aab.x"), NewMessage("x.x")])
    for types in (name + ".*", name + ".>", [name + ".x"]):
        assert await positions(mp, types=types) == [1]
        assert [m.position async for m in mp.read() if Selection.of(types=types).matches(m)] == [1]


@pytest.mark.shard(
    "variants",
    fast=["embedded-query0-types", "embedded-query4-category", "embedded-query7-limit", "embedded-query8-since"],
)
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"types": "order.>.x"}, "types"),
        ({"types": []}, "types"),
        ({"types": "ab*"}, "types"),
        ({"types": "order.x>"}, "types"),
        ({"category": ""}, "category"),
        ({"category": "a\0"}, "category"),
        ({"stream": ["-1"]}, "stream"),
        ({"limit": -1}, "limit"),
        ({"since": datetime(2026, 1, 1)}, "since"),  # noqa: DTZ001
        ({"after_version": 1}, "stream"),
        ({"after": -1}, "after"),
        ({"stream": "a-1", "after_version": 2**70}, "after_version"),
        ({"types": [f"{'x' * 500}{number}.*" for number in range(100)]}, "types"),
    ],
)
async def test_what_cannot_be_meant_is_refused(mp: Milepost, query: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidMessage) as failure:
        await positions(mp, **query)
    assert failure.value.field == field


async def test_too_many_choices(mp: Milepost) -> None:
    with pytest.raises(TooLarge, match="1,001"):
        await positions(mp, types=[str(number) for number in range(1001)])


async def at(mp: Milepost, position: int, time: datetime) -> None:
    """Puts a message at another time."""
    statement = qualified('update {}.messages set time = %(time)s where "position" = %(position)s', mp)
    await mp.log.database.execute(statement, {"time": time, "position": position})


async def test_from_a_time(mp: Milepost) -> None:
    """Times and positions mostly run in step; a stray in front is found all the same."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for number in range(1, 41):
        await mp.append(f"a-{number % 3}", NewMessage("t"))
        await at(mp, number, noon + timedelta(minutes=number))
    assert await positions(mp, since=noon + timedelta(minutes=30)) == list(range(30, 41))
    assert await positions(mp, since=noon) == list(range(1, 41))
    assert await positions(mp, since=noon + timedelta(hours=1)) == []
    await at(mp, 3, noon + timedelta(minutes=35))
    await at(mp, 38, noon)
    assert await positions(mp, since=noon + timedelta(minutes=34)) == [3, 34, 35, 36, 37, 39, 40]
    assert await positions(mp, since=noon + timedelta(minutes=39), backwards=True) == [40, 39]
    assert await positions(mp, stream=["a-0"], since=noon + timedelta(minutes=34)) == [3, 36, 39]
    assert [m.position async for m in mp.read("a-0", since=noon + timedelta(minutes=34))] == [3, 36, 39]


async def test_pages_are_bounded_in_bytes(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(*args: Any, **options: Any) -> Query:
        return replace(query_of(*args, **options), page_bytes=20_000)

    monkeypatch.setattr("milepost.message_methods.query_of", small)
    for number in range(30):
        await mp.append("big-1", NewMessage("t", "x" * 5000))
        await mp.append(f"small-{number}", NewMessage("t"))
    for query in ({}, {"backwards": True}, {"category": ["big", "small"]}, {"stream": "big-1"}):
        pages = [page async for page in mp.read_pages(**query)]
        assert all(len(page) <= 11 for page in pages)
        found = [m.position for page in pages for m in page]
        assert sorted(found) == await positions(mp, **{k: v for k, v in query.items() if k != "backwards"})
        assert found == sorted(found, reverse="backwards" in query)


@pytest.mark.shard(
    "variants",
    fast=["embedded-numbers0-selection0", "embedded-numbers1-selection1", "embedded-numbers2-selection3"],
)
@pytest.mark.parametrize(
    "selection",
    [Selection(), Selection.of(category=["big", "small"]), Selection.of(types="t"), Selection.of(category="big")],
)
@pytest.mark.parametrize("numbers", [{0}, {1, 3}, {0, 1, 2, 3}])
async def test_lanes_in_pages_that_are_bounded(mp: Milepost, selection: Selection, numbers: set[int]) -> None:
    for number in range(30):
        await mp.append(f"big-{number}", NewMessage("t", "x" * 5000))
        await mp.append(f"small-{number}", NewMessage("t"))
    everything = [message async for message in mp.read()]
    wanted = [m.position for m in everything if selection.matches(m) and bucket_of(m.stream) % 4 in numbers]
    query = Query(selection, lanes=SelectedLanes(4, frozenset(numbers)), page=7, page_bytes=12_000)
    history = mp.log.feed.history
    pages = [segment.messages async for segment in history.after(query, 0)]
    assert [message.position for page in pages for message in page] == wanted
    assert all(len(page) <= 7 and sum(m.size for m in page[:-1]) < 12_000 for page in pages)


async def test_positions_in_a_page_that_is_bounded_in_bytes(mp: Milepost) -> None:
    await mp.append("order-1", [NewMessage("t", "x" * 1000) for _ in range(7)])
    page = await mp.log.messages_at([9, 7, 6, 4, 3, 2, 8], max_bytes=2500)
    assert [message.position for message in page] == [2, 3, 4]
    page = await mp.log.messages_at([9, 7, 6, 8], max_bytes=2500)
    assert [message.position for message in page] == [6, 7]
    assert await mp.log.messages_at([8, 9], max_bytes=2500) == []


@pytest.mark.parametrize("together", [True, False])
async def test_a_size_is_that_of_what_is_read(mp: Milepost, together: bool) -> None:
    """A number that is short as it is sent may be long as it is stored: pages are bounded by the latter."""
    messages = [NewMessage("t", [1e300] * 100), NewMessage("t", "x")]
    if together:
        await mp.append("a-1", messages)
    else:
        for message in messages:
            await mp.append("a-1", message)
    long, short = [message async for message in mp.read("a-1")]
    assert len(long.raw) > 30_000
    assert long.size >= len(long.raw)
    assert short.size < 100


@pytest.mark.shard("large")
async def test_selective_reads_over_a_wide_range(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement looks at a bounded range; the ranges join without gap or repetition."""
    monkeypatch.setattr(log_query, "FIRST_SPAN_POSITIONS", 7)
    monkeypatch.setattr(log_query, "MAX_SPAN_POSITIONS", 50)
    for number in range(300):
        await mp.append(f"{'rare' if number % 37 == 0 else 'other'}-1", NewMessage(f"t{number % 23}"))
    everything = [m async for m in mp.read()]
    assert len(everything) == 300
    for query in ({"category": "rare"}, {"types": "t5"}, {"category": "other", "types": ["t1", "t2"]}):
        wanted = [m.position for m in everything if Selection.of(**query).matches(m)]
        assert await positions(mp, **query) == wanted
        assert await positions(mp, **query, backwards=True) == wanted[::-1]
        assert await positions(mp, **query, limit=3) == wanted[:3]


@pytest.mark.shard("large")
async def test_memory_stays_flat_whatever_the_size(mp: Milepost) -> None:
    for number in range(40):
        await mp.append(f"a-{number}", [NewMessage("t", "x" * 10_000)] * 100)
    tracemalloc.start()
    count = 0
    async for _ in mp.read():
        count += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 4_000
    assert peak < 30 * 2**20


async def test_a_read_ends_where_it_began_to_end(mp: Milepost) -> None:
    """It reads what was there when it began, though new messages arrive meanwhile."""
    await mp.append("a-1", [NewMessage("t")] * 10)
    found = []
    async for message in mp.read():
        found.append(message.position)
        await mp.append("a-1", NewMessage("t"))
    assert found == list(range(1, 11))


async def test_what_was_appended_can_be_read_at_once(mp: Milepost, make_mp: Any) -> None:
    """Also while others append."""
    async with make_mp() as busy:
        stop = asyncio.Event()

        async def load(number: int) -> None:
            while not stop.is_set():
                await busy.append(f"busy-{number}", NewMessage("t"))

        tasks = [asyncio.create_task(load(number)) for number in range(3)]
        for _ in range(50):
            result = await mp.append("mine-1", NewMessage("t"))
            assert [m.position async for m in mp.read(category="mine", after=result.position - 1)]
            assert await mp.head() >= result.position
        stop.set()
        await asyncio.gather(*tasks)


async def test_several_kinds_of_followers(shop: Milepost) -> None:
    async with (
        following(shop, category="order", types="order.>") as one,
        following(shop, stream="payment-1") as two,
        following(shop, types=["note"], after=9) as three,
    ):
        assert await one.until(4) == [1, 2, 4, 6]
        assert await two.until(2) == [5, 7]
        await shop.append_many({"order-3": [NewMessage("note"), NewMessage("order.placed")]})
        assert await one.until(5) == [1, 2, 4, 6, 11]
        assert await three.until(1) == [10]


async def fill(mp: Milepost, streams: int = 1_000, versions: int = 20) -> None:
    """Messages of streams in 100 categories, of which PostgreSQL knows nothing yet; by default 20,000."""
    schema = mp.settings["schema"].value
    async with mp.log.database.connection() as connection:
        # Nobody's autovacuum is to learn of them meanwhile.
        await connection.execute(f'alter table "{schema}".messages set (autovacuum_enabled = off)'.encode())
        await connection.execute(f'alter table "{schema}".streams set (autovacuum_enabled = off)'.encode())
        await connection.execute(
            f"""
            insert into "{schema}".streams (name, category, category_hash, bucket)
            select c || '-' || n, c, "{schema}".category_hash(c), 0
            from generate_series(1, {streams}) n, lateral (select 'c' || n % 100) as of_n(c)""".encode()
        )
        await connection.execute(
            f"""
            insert into "{schema}".messages
                (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata)
            select s.stream_id, v, "{schema}".category_hash(s.category), 0, 10, gen_random_uuid(), 't', '1',
                   '{{}}', '{{}}'
            from generate_series(1, {versions}) v, "{schema}".streams s""".encode()
        )
    await mp.head()


@pytest.mark.parametrize("types", [None, "t"])
async def test_a_stream_that_grows_while_it_is_read(mp: Milepost, types: str | None) -> None:
    """Whatever is appended between two pages: no version is passed over."""
    await mp.append("a-1", [NewMessage("t")] * 250)
    query = Query(Selection.of(types=types), page=100)
    pages = mp.log.reader.stream_pages(mp.log.database, "a-1", query, after=0, after_version=0, limit=None)
    found: list[int] = []
    async for page in pages:
        found += [message.version for message in page]
        if found[-1] == 250:
            await mp.append("a-1", [NewMessage("t")] * 150)
    assert found == list(range(1, 401))


class TestPlans:
    """A lost index is a failing test."""

    @pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
    def database_url(self, request: pytest.FixtureRequest) -> str:
        """Both servers: each plans by itself."""
        url: str = request.getfixturevalue(f"{request.param}_url")
        return url

    async def plan(self, mp: Milepost, query: Query, **bounds: Any) -> str:
        schema = mp.settings["schema"].value
        await fill(mp)
        async with mp.log.database.connection() as connection:
            await connection.execute(f'analyze "{schema}".messages, "{schema}".streams'.encode())
        limits = {"limit": 1000, "life": mp.log.horizon.life, "low": 0, "high": 20_000} | bounds
        statement = "explain " + mp.log.reader.log_statement(query)
        rows = await mp.log.database.execute(statement, query.parameters() | limits)
        return "\n".join(row[0] for row in rows)

    async def test_the_head(self, mp: Milepost) -> None:
        plan = await self.plan(mp, Query(), low=19_900, high=2**63 - 1)
        assert "messages_pkey" in plan
        assert "Seq Scan on messages" not in plan

    async def test_one_category_in_a_hundred(self, mp: Milepost) -> None:
        plan = await self.plan(mp, Query(Selection.of(category="c7")))
        assert "messages_category" in plan
        assert "Seq Scan on messages" not in plan

    async def test_several_categories_are_read_in_order(self, mp: Milepost) -> None:
        """By the index, and not by sorting all that there is of them."""
        plan = await self.plan(mp, Query(Selection.of(category=["c7", "c8"])))
        assert "messages_category" in plan
        assert "Seq Scan on messages" not in plan

    @pytest.mark.parametrize(("category", "index"), [(None, "messages_pkey"), ("c7", "messages_category")])
    async def test_some_lanes(self, mp: Milepost, category: str | None, index: str) -> None:
        lanes = SelectedLanes(16, frozenset({0, 3}))
        plan = await self.plan(mp, Query(Selection.of(category=category), lanes=lanes), low=19_900, high=2**63 - 1)
        assert index in plan
        assert "Seq Scan on messages" not in plan

    @pytest.mark.shard("large")
    async def test_several_streams(self, mp: Milepost) -> None:
        plan = await self.plan(mp, Query(Selection.of(stream=["c7-7", "c8-8"])))
        assert "messages_stream" in plan
        assert "Seq Scan on messages" not in plan


async def test_categories_whose_hashes_collide(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has 32 bits of a hash; two names that share them are two categories all the same."""
    one, two = "one", "two"
    schema = mp.settings["schema"].value
    for number in range(20):
        await mp.append(f"{one if number % 5 else two}-1", NewMessage("t"))
    hashed = f'update "{schema}".{{}} set category_hash = 7'
    for table in ("streams", "messages"):
        await mp.log.database.execute(hashed.format(table), {})
    monkeypatch.setattr(log_query, "category_hash", lambda name: 7)
    assert await positions(mp, category=two) == [1, 6, 11, 16]
    assert await positions(mp, category=two, limit=3) == [1, 6, 11]
    assert await positions(mp, category=two, backwards=True, limit=3) == [16, 11, 6]
    assert len(await positions(mp, category=one)) == 16
    assert await positions(mp, category=[one, two]) == list(range(1, 21))


async def test_a_read_ends_before_a_place(mp: Milepost) -> None:
    for n in range(6):
        await mp.append(f"a-{n % 2}", NewMessage("a", n))
    assert [m.data async for m in mp.read(before=4, backwards=True)] == [2, 1, 0]
    assert [m.data async for m in mp.read(before=4)] == [0, 1, 2]
    assert [m.data async for m in mp.read("a-0", before_version=3, backwards=True)] == [2, 0]
    for wrong in ({"stream": "a-0", "before": 3}, {"before_version": 3}, {"after_version": 3}):
        with pytest.raises(InvalidMessage):
            _ = [m async for m in mp.read(**wrong)]


SORTING: LiteralString = "set local enable_indexscan = off"


class Explaining:
    """Runs statements, and notes how PostgreSQL went about each."""

    blocking = False

    def __init__(self, mp: Milepost, setup: LiteralString = "select") -> None:
        self._database = mp.log.database
        self._setup = setup
        self.touched: list[int] = []
        """The most rows that any step of a statement gave."""
        self.scanned: set[tuple[str, str]] = set()
        """How which tables were read."""

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Any]:
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(self._setup)
            [[explained]] = await fetch_rows(connection, "explain (analyze, format json) " + statement, parameters)
        steps = list(_steps(explained[0]["Plan"]))
        self.touched.append(int(max(step["Actual Rows"] * step["Actual Loops"] for step in steps)))
        self.scanned |= {(step["Node Type"], step["Relation Name"]) for step in steps if "Relation Name" in step}
        return await self._database.execute(statement, parameters)


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _steps(part)


class TestNothingKnown:
    """Before a table is analyzed, as after an import or in its first minute: what a page costs is bounded."""

    @pytest.mark.shard("large", fast=["embedded-one-True"])
    @pytest.mark.parametrize("backwards", [False, True])
    @pytest.mark.parametrize(
        ("category", "count"),
        [(None, 20_000), ("c7", 200), (["c7", "c8", "c9"], 600)],
        ids=["all", "one", "three"],
    )
    async def test_pages(
        self, mp: Milepost, monkeypatch: pytest.MonkeyPatch, category: Any, count: int, backwards: bool
    ) -> None:
        """Each has a tenth, and no statement reads a third of what there is.

        PostgreSQL is made to read and sort a range, as it does by itself where it takes it for a short one.
        """
        monkeypatch.setattr(log_query, "FIRST_SPAN_POSITIONS", 1_000)
        await fill(mp)
        explaining, life = Explaining(mp, SORTING), mp.log.horizon.life
        query = Query(Selection.of(category=category), backwards=backwards, page=count // 10)
        pages = mp.log.reader.log_pages(explaining, query, low=0, high=20_000, limit=None, life=life)
        assert sum([len(page) async for page in pages]) == count
        assert max(explaining.touched) < count / 3

    @pytest.mark.shard("large", fast=["embedded-True"])
    @pytest.mark.parametrize("backwards", [False, True])
    async def test_a_long_stream(self, mp: Milepost, backwards: bool) -> None:
        """The first page may cost as much as all of it, and the last as much as what is left."""
        await fill(mp, streams=1, versions=3_000)
        explaining = Explaining(mp, SORTING)
        query = Query(backwards=backwards, page=100)
        pages = mp.log.reader.stream_pages(explaining, "c1-1", query, after=0, after_version=0, limit=None)
        found = [message.version async for page in pages for message in page]
        assert found == sorted(range(1, 3_001), reverse=backwards)
        assert len(explaining.touched) <= 32
        assert max(explaining.touched[1:]) <= 120

    @pytest.mark.shard("large")
    async def test_names_are_found_by_an_index(self, mp: Milepost) -> None:
        """In a few streams PostgreSQL may look at all: that takes milliseconds. In these it took half a second."""
        await fill(mp, streams=5_000)
        explaining, life = Explaining(mp), mp.log.horizon.life
        names = await StreamNameCache(mp.log.statements).of(explaining, set(range(1, 2_001)), life)
        assert len(names) == 2_000
        assert ("Seq Scan", "streams") not in explaining.scanned

    @pytest.mark.shard("large", fast=["embedded-True"])
    @pytest.mark.parametrize("pages", [False, True])
    async def test_messages_at_positions(self, mp: Milepost, pages: bool) -> None:
        """All streams are not read for the names of a few: with many of them that is most of the work."""
        await fill(mp)
        explaining = Explaining(mp)
        wanted = list(range(1, 20_000, 40))
        if pages:
            found = await mp.log.reader.page_at(explaining, wanted, PAGE_BYTES)
        else:
            found = await mp.log.reader.messages_at(explaining, wanted)
        assert [message.position for message in found] == wanted
        assert ("Seq Scan", "streams") not in explaining.scanned
