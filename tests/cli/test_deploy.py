"""What `milepost run` prints when a program declares something else than the one before."""

import asyncio
import signal
from pathlib import Path

import pytest

from cli.program import Program, Start
from milepost import Milepost, NewMessage

SHOP = """
from typing import Any
from milepost import Message, Milepost, by_property

mp = Milepost()

@mp.subscription("{name}", {options})
async def invoice(message: Message[Any]) -> None:
    with open("handled", "a") as file:
        file.write(f"{{message.position}}\\n")
"""


def write(folder: Path, module: str, name: str = "invoices", **options: str) -> None:
    """A version of the program."""
    given = ", ".join(f"{option}={value}" for option, value in options.items())
    (folder / f"{module}.py").write_text(SHOP.format(name=name, options=given))


async def complaint(program: Program) -> str:
    """The next line of its standard error, without the name of the command and of the subscription."""
    line = await asyncio.wait_for(asyncio.to_thread(program.complaint), 60)
    return line.removeprefix("milepost: invoices: ").rstrip("\n")


async def handled(folder: Path, count: int) -> None:
    path = folder / "handled"
    async with asyncio.timeout(60):
        while not path.exists() or len(path.read_text().splitlines()) < count:
            await asyncio.sleep(0.05)


@pytest.mark.shard("deploys")
async def test_what_changes_is_printed_at_start(mp: Milepost, start: Start, tmp_path: Path) -> None:
    write(tmp_path, "first", category='"order"', where='"amount >= 100"', lanes="4", lease="20")
    changed = {"category": '["order", "mail"]', "where": '"amount >= 200"', "lanes": "4", "lease": "20"}
    write(tmp_path, "second", **changed)
    write(tmp_path, "third", **{**changed, "lanes": "2", "ordered_by": 'by_property("customer")'})
    write(tmp_path, "fourth", "bills", **changed, renamed_from='"invoices"')

    old = start("run", "first:mp", cwd=tmp_path)
    await mp.append("order-1", NewMessage("placed", properties={"amount": 300}))
    await handled(tmp_path, 1)
    new = start("run", "second:mp", cwd=tmp_path)
    words = await complaint(new)
    assert words.startswith("category changed: it selected order and now selects mail, order; ")
    assert words.endswith(
        "; filter changed: it selected amount >= 100 and now selects amount >= 200, from position 1 on"
    )
    while "waits" not in (words := await complaint(old)):
        assert "lane" in words
    assert words == (
        "waits until a newer program has ended, which runs it with another definition: "
        "category mail, order, here order; filter amount >= 200, here amount >= 100"
    )
    assert (await asyncio.to_thread(old.end, signal.SIGTERM)).status == 0

    ordered = start("run", "third:mp", cwd=tmp_path)
    assert await complaint(ordered) == (
        "order is to change from stream to property customer; lanes are to change from 4 to 2, "
        "as soon as all lanes have come to one position"
    )
    assert await complaint(ordered) == (
        "order changed from stream to property customer; lanes changed from 4 to 2, from position 1 on"
    )
    assert await complaint(new) == "stands still: it is to order by property customer in 2 lanes"
    # The older one first: it would go back to its own order when the newer has ended.
    for program in (new, ordered):
        assert (await asyncio.to_thread(program.end, signal.SIGTERM)).status == 0

    renamed = start("run", "fourth:mp", cwd=tmp_path)
    assert await complaint(renamed) == (
        "milepost: bills: it was named invoices and is now bills, and goes on where it was; order is to change "
        "from property customer to stream; lanes are to change from 2 to 4, as soon as all lanes have come to one "
        "position"
    )


@pytest.mark.shard("processes")
async def test_what_stays_as_it_was_is_not_worth_a_word(mp: Milepost, start: Start, tmp_path: Path) -> None:
    write(tmp_path, "shop", category='"order"')
    for count in (1, 2):
        program = start("run", "shop:mp", cwd=tmp_path)
        await mp.append("order-1", NewMessage("placed"))
        await handled(tmp_path, count)
        (await asyncio.to_thread(program.end, signal.SIGTERM)).done()
