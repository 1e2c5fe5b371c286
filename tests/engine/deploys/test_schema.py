"""Programs of an older Milepost on a newer schema, and back."""

import pytest

from engine.deploys.deploy import Deploy
from engine.deploys.load import Load
from engine.deploys.record import by_stream, disorders, repeated
from engine.deploys.stored import Stored
from engine.deploys.version import Version

OLD = Version(label="v1", lease=15)
NEW = OLD.but("v2", migrations=1)

NEWEST = "select max(number) from {0}.migrations"


@pytest.mark.shard("deploys")
async def test_an_older_program_runs_on_a_newer_schema_and_a_newer_one_again(
    deploy: Deploy, load: Load, stored: Stored
) -> None:
    [(known,)] = await stored.ask(NEWEST)
    async with load.going_on():
        first = deploy.start(OLD)
        await deploy.until_handled(OLD, 10)
        # Both at a time, on the newer schema.
        second = deploy.start(NEW)
        await deploy.until_handled(NEW, 10)
        assert await stored.ask(NEWEST) == [(known + 1,)]
        assert await first.stop() == 0
        # Back: it starts where the schema is newer than what it knows.
        back = OLD.but("v3")
        third = deploy.start(back)
        await deploy.until_handled(back, 10)
        assert await second.stop() == 0
        again = NEW.but("v4", migrations=2)
        deploy.start(again)
        await deploy.until_handled(again, 10)
        assert await stored.ask(NEWEST) == [(known + 2,)]
        assert await third.stop() == 0
    await deploy.until_all(load.positions)
    assert repeated(deploy.record.positions()) == []
    assert disorders(deploy.record.handled(), by_stream) == []


@pytest.mark.shard("deploys")
async def test_a_schema_that_asks_for_a_newer_program_says_so(deploy: Deploy, load: Load, stored: Stored) -> None:
    await load.append(20)
    new = NEW.but("v2", breaking=True)
    deploy.start(new)
    await deploy.until_all(load.positions)
    refused = deploy.start(OLD)
    assert await refused.ended() == 1
    [(number,)] = await stored.ask(NEWEST)
    assert f"asks for a program that knows at least {number}" in refused.said
    assert "install a newer milepost" in refused.said
    assert deploy.record.positions("v1") == []
