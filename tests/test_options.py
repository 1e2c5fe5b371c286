"""Options: given, by the environment, or their defaults; what is wrong is refused with a suggestion."""

import asyncio
from typing import Any

import pytest

from milepost import Milepost, MilepostError, NewMessage, NoDatabase
from milepost.options import OPTIONS, resolve
from support import MakeMilepost


def test_where_a_value_comes_from() -> None:
    found = resolve({"schema": "shop"}, {"MILEPOST_SCHEMA": "other", "MILEPOST_POOL_SIZE": "3"})
    assert (found["schema"].value, found["schema"].source) == ("shop", "given")
    assert (found["pool_size"].value, found["pool_size"].source) == (3, "MILEPOST_POOL_SIZE")
    assert (found["migrate"].value, found["migrate"].source) == ("auto", "default")
    assert set(found) == set(OPTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", ""),
        ("schema", 'a"; drop schema public; --'),
        ("schema", "pg_catalog"),
        ("schema", "x" * 64),
        ("pool_size", 0),
        ("pool_size", "many"),
        ("pool_size", True),
        ("pool_size", 1.5),
        ("migrate", "always"),
        ("max_message_bytes", -1),
        ("url", ""),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: .*wanted"):
        resolve({name: value}, {})


def test_a_wrong_variable_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="^MILEPOST_POOL_SIZE: "):
        resolve({}, {"MILEPOST_POOL_SIZE": "none"})


def test_a_misspelt_option_is_corrected() -> None:
    with pytest.raises(TypeError, match="did you mean 'schema'"):
        Milepost("postgresql://nowhere", shema="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it has url, group, schema"):
        Milepost(zzz=1)  # type: ignore[arg-type]


async def test_no_database_starts_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILEPOST_URL", raising=False)
    mp = Milepost()
    with pytest.raises(NoDatabase, match="MILEPOST_URL"):
        await mp.__aenter__()
    monkeypatch.setenv("MILEPOST_URL", "postgresql://somewhere/db")
    assert Milepost().url == "postgresql://somewhere/db"


async def test_a_closed_one_says_so() -> None:
    with pytest.raises(MilepostError, match="async with mp"):
        await Milepost("postgresql://nowhere").append("a-1", NewMessage("t"))


async def test_it_can_be_entered_twice_and_again(mp: Milepost) -> None:
    async with mp:
        await mp.append("a-1", NewMessage("t"))
    await mp.append("a-1", NewMessage("t"))
    await mp.__aexit__(None, None, None)
    async with mp:
        assert await mp.head() == 2
    await mp.__aenter__()


async def test_two_that_open_it_at_once_share_one_log(make_mp: MakeMilepost) -> None:
    mp = make_mp()
    opened = await asyncio.gather(*(mp.__aenter__() for _ in range(5)))
    assert len({id(one.log) for one in opened}) == 1
    for _ in range(5):
        await mp.__aexit__(None, None, None)
    with pytest.raises(MilepostError, match="not open"):
        _ = mp.log


@pytest.mark.parametrize("address", ["garbage", "http://user:hunter2@host/"])
async def test_what_is_no_address_is_said_without_its_password(make_mp: MakeMilepost, address: str) -> None:
    with pytest.raises(NoDatabase, match="^this is no address that PostgreSQL understands") as refused:
        await Milepost(address).__aenter__()
    with pytest.raises(
        NoDatabase, match="^progress: this is no address that PostgreSQL understands"
    ) as of_progress:
        await make_mp(progress=address).__aenter__()
    assert "hunter2" not in f"{refused.value} {of_progress.value}"
