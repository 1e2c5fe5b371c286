"""Appending: versions, ids, atomicity."""

import asyncio
from uuid import UUID, uuid4

import pytest

from milepost import (
    ANY,
    NO_STREAM,
    STREAM_EXISTS,
    IdReused,
    InvalidMessage,
    Milepost,
    NewMessage,
    TooLarge,
    WrongVersion,
)
from milepost.names import bucket_of, category_hash
from support import positions

M = NewMessage("placed", {"amount": 3})


async def test_versions_count_from_one_in_each_stream(mp: Milepost) -> None:
    first = await mp.append("order-1", M)
    assert (first.stream, first.version, first.position, first.duplicate) == ("order-1", 1, 1, False)
    several = await mp.append("order-1", [M, M, M])
    assert (several.version, several.position) == (4, 4)
    assert (await mp.append("order-2", M)).version == 1
    assert await mp.last("order-1") == 4
    assert await mp.last("unknown-1") == 0


async def test_expected_versions(mp: Milepost) -> None:
    await mp.append("order-1", M, expected=NO_STREAM)
    await mp.append("order-1", M, expected=1)
    await mp.append("order-1", M, expected=STREAM_EXISTS)
    await mp.append("order-1", M, expected=ANY)
    await mp.append("order-2", M, expected=0)
    assert await mp.last("order-1") == 4


@pytest.mark.parametrize(
    ("stream", "expected", "actual"),
    [
        ("order-1", NO_STREAM, 2),
        ("order-1", 1, 2),
        ("order-1", 3, 2),
        ("unknown-1", STREAM_EXISTS, 0),
        ("unknown-1", 5, 0),
    ],
)
async def test_a_wrong_version_writes_nothing(mp: Milepost, stream: str, expected: int, actual: int) -> None:
    await mp.append("order-1", [M, M])
    with pytest.raises(WrongVersion) as failure:
        await mp.append(stream, M, expected=expected)
    error = failure.value
    assert (error.stream, error.expected, error.actual) == (stream, expected, actual)
    assert await mp.head() == 2
    assert await mp.last("unknown-1") == 0


async def test_an_expected_version_that_is_none(mp: Milepost) -> None:
    for wrong in (-3, 2**63, True, "1", 1.0):
        with pytest.raises(InvalidMessage, match="expected"):
            await mp.append("order-1", M, expected=wrong)  # type: ignore[arg-type]


async def test_of_two_appends_with_the_same_expectation_one_wins(mp: Milepost) -> None:
    await mp.append("order-1", M)
    results = await asyncio.gather(
        *(mp.append("order-1", M, expected=1) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(result, WrongVersion) for result in results) == 7
    assert await mp.last("order-1") == 2


async def test_new_streams_made_at_once_are_one_stream(mp: Milepost) -> None:
    results = await asyncio.gather(*(mp.append("order-1", M) for _ in range(20)))
    assert sorted(result.version for result in results) == list(range(1, 21))
    assert await mp.last("order-1") == 20


class TestIds:
    """The same id again is the same message."""

    async def test_a_repeated_append_returns_the_first_result(self, mp: Milepost) -> None:
        message = NewMessage("placed", {"amount": 3}, properties={"vip": True}, id=uuid4())
        first = await mp.append("order-1", message)
        await mp.append("order-1", M)
        again = await mp.append("order-1", message)
        assert (again.version, again.position, again.duplicate) == (first.version, first.position, True)
        assert await mp.last("order-1") == 2

    async def test_a_repeated_append_with_an_expected_version_is_a_duplicate(self, mp: Milepost) -> None:
        message = NewMessage("placed", id=uuid4())
        await mp.append("order-1", message, expected=NO_STREAM)
        assert (await mp.append("order-1", message, expected=NO_STREAM)).duplicate

    async def test_several_repeated(self, mp: Milepost) -> None:
        messages = [NewMessage("placed", number, id=uuid4()) for number in range(3)]
        await mp.append("order-1", messages)
        again = await mp.append("order-1", messages)
        assert (again.version, again.position, again.duplicate) == (3, 3, True)

    @pytest.mark.parametrize(
        "changed",
        [
            NewMessage("cancelled", {"amount": 3}),
            NewMessage("placed", {"amount": 4}),
            NewMessage("placed", {"amount": 3}, properties={"vip": True}),
        ],
    )
    async def test_the_same_id_with_other_content(self, mp: Milepost, changed: NewMessage) -> None:
        known = uuid4()
        await mp.append("order-1", NewMessage("placed", {"amount": 3}, id=known))
        with pytest.raises(IdReused, match=str(known)):
            other = NewMessage(changed.type, changed.data, properties=changed.properties, id=known)
            await mp.append("order-1", [NewMessage("new", id=uuid4()), other])
        assert await mp.last("order-1") == 1

    async def test_metadata_may_differ(self, mp: Milepost) -> None:
        """A repeated append has another trace."""
        known = uuid4()
        await mp.append("order-1", NewMessage("placed", id=known, metadata={"trace": "1"}))
        assert (await mp.append("order-1", NewMessage("placed", id=known, metadata={"trace": "2"}))).duplicate

    async def test_ids_partly_known(self, mp: Milepost) -> None:
        known = NewMessage("placed", id=uuid4())
        await mp.append("order-1", known)
        with pytest.raises(IdReused, match="others of this append are not"):
            await mp.append("order-1", [known, NewMessage("placed", id=uuid4())])
        with pytest.raises(IdReused, match="others of this append are not"):
            await mp.append("order-1", [known, M])
        assert await mp.last("order-1") == 1

    async def test_one_id_twice_in_an_append(self, mp: Milepost) -> None:
        twice = NewMessage("placed", id=uuid4())
        with pytest.raises(InvalidMessage, match="twice"):
            await mp.append("order-1", [twice, twice])
        assert await mp.head() == 0

    async def test_the_same_id_in_another_stream_is_another_message(self, mp: Milepost) -> None:
        message = NewMessage("placed", id=uuid4())
        await mp.append("order-1", message)
        assert not (await mp.append("order-2", message)).duplicate

    async def test_an_id_may_be_a_text(self, mp: Milepost) -> None:
        text = "6F9619FF-8B86-D011-B42D-00C04FC964FF"
        await mp.append("order-1", NewMessage("placed", id=text))
        assert [m.id async for m in mp.read("order-1")] == [UUID(text)]

    @pytest.mark.parametrize("wrong", ["", "evt_1", "'; drop table messages", 5])
    async def test_an_id_that_is_no_uuid(self, mp: Milepost, wrong: str) -> None:
        with pytest.raises(InvalidMessage, match=r"^id: .*uuid5"):
            await mp.append("order-1", NewMessage("placed", id=wrong))


class TestMany:
    """Several streams, all or nothing."""

    async def test_all_are_appended(self, mp: Milepost) -> None:
        results = await mp.append_many({"order-2": [M, M], "order-1": M})
        assert {stream: result.version for stream, result in results.items()} == {"order-1": 1, "order-2": 2}
        assert await positions(mp) == [1, 2, 3]

    async def test_one_wrong_version_undoes_all(self, mp: Milepost) -> None:
        await mp.append("order-2", M)
        with pytest.raises(WrongVersion) as failure:
            await mp.append_many({"order-1": M, "order-2": M, "order-3": M}, expected={"order-2": NO_STREAM})
        assert failure.value.stream == "order-2"
        assert await positions(mp) == [1]
        rows = await mp.log.database.execute(f'select name from "{mp.settings["schema"].value}".streams', {})
        assert rows == [("order-2",)]

    async def test_an_expectation_of_a_stream_that_is_not_there(self, mp: Milepost) -> None:
        with pytest.raises(InvalidMessage, match="'order-2' is not among"):
            await mp.append_many({"order-1": M}, expected={"order-2": 4})

    async def test_streams_are_locked_in_one_order(self, mp: Milepost) -> None:
        """Whatever order callers name them in: two that cross would deadlock."""
        names = [f"order-{number}" for number in range(10)]
        both = [dict.fromkeys(names, M), dict.fromkeys(reversed(names), M)]
        await asyncio.gather(*(mp.append_many(both[number % 2]) for number in range(40)))
        assert await mp.last("order-0") == 40


@pytest.mark.parametrize("messages", [[], {}])
async def test_nothing_to_append(mp: Milepost, messages: object) -> None:
    with pytest.raises(InvalidMessage, match="at least one"):
        if isinstance(messages, dict):
            await mp.append_many(messages)
        else:
            await mp.append("order-1", messages)


async def test_too_many_messages(mp: Milepost) -> None:
    with pytest.raises(TooLarge, match="10,000"):
        await mp.append("order-1", [M] * 10_001)


async def test_bucket_and_category_hash_are_the_same_in_sql(mp: Milepost) -> None:
    """The vectors are part of the contract: stored lanes rely on them."""
    vectors = {"order-42": 1016, "a": 663, "": 944, "straße-ü😀": 800}
    schema = mp.settings["schema"].value
    statement = f'select n, "{schema}".bucket(n), "{schema}".category_hash(n) from unnest(%(names)s::text[]) n'
    rows = await mp.log.database.execute(statement, {"names": list(vectors)})
    assert [(bucket, hashed) for _, bucket, hashed in rows] == [
        (bucket_of(name), category_hash(name)) for name in vectors
    ]
    assert {name: bucket for name, bucket, _ in rows} == vectors


@pytest.mark.parametrize("stream", ["a\0", "\ud800", "", "-1"])
async def test_last_of_a_name_that_no_stream_can_have(mp: Milepost, stream: str) -> None:
    with pytest.raises(InvalidMessage, match="^stream: "):
        await mp.last(stream)


async def test_large_batches_keep_their_order(mp: Milepost) -> None:
    await mp.append("order-1", [NewMessage("placed", number) for number in range(5000)])
    read = [(m.version, m.position, m.data) async for m in mp.read("order-1")]
    assert read == [(n + 1, n + 1, n) for n in range(5000)]
