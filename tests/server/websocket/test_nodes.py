"""Several servers on one database, in this process; those that are killed in processes of their own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest

from engine.consuming.taking import orders, take, until
from milepost import Milepost
from server.answers import done
from server.process import ServerProcess, StartServer
from server.websocket.conftest import Serve, Serving
from server.websocket.following import Follower
from server.websocket.talking import consuming, talking
from support import qualified

LEASE = 2
"""Seconds: the shortest time in which somebody else can know that a server is gone."""


@pytest.fixture
def lease() -> int:
    """Seconds: where nobody is killed, nobody is to be taken for dead because the machine is busy."""
    return 30


@pytest.fixture
async def shipping(mp: Milepost, lease: int) -> str:
    await mp.create_subscription("shipping", lease=lease)
    return "default/shipping"


Node = ServerProcess | Serving
Nodes = Callable[[int], Awaitable[list[Serving]]]
Processes = Callable[[int], list[ServerProcess]]
Follow = Callable[..., Follower]


@pytest.fixture
def nodes(serve: Serve) -> Nodes:
    """Starts so many servers."""

    async def start(count: int) -> list[Serving]:
        return [await serve() for _ in range(count)]

    return start


@pytest.fixture
def processes(shipping: str, start_server: StartServer) -> Processes:
    """Starts so many servers, each in a process of its own."""
    return lambda count: [start_server() for _ in range(count)]


@pytest.fixture
async def follow() -> AsyncIterator[Follow]:
    """Starts clients; an error of one is the test's."""
    async with AsyncExitStack() as stack:

        def start(servers: Sequence[Node], first: int = 0, **hello: object) -> Follower:
            addresses = [server.address for server in servers]
            follower = Follower(addresses[first:] + addresses[:first], **hello)
            stack.push_async_callback(follower.stop)
            return follower

        yield start


def got(*followers: Follower) -> Callable[[set[int]], Callable[[], bool]]:
    """Whether these have got all of them, together."""
    return lambda wanted: lambda: wanted <= {n for follower in followers for n in follower.got}


def all_welcome(followers: list[Follower]) -> Callable[[], bool]:
    return lambda: all(follower.path for follower in followers)


def all_in_one_place(followers: list[Follower]) -> Callable[[], bool]:
    return lambda: len({follower.path[-1] for follower in followers}) == 1


async def is_settled(mp: Milepost) -> bool:
    info = await mp.manage("shipping").info()
    return info.lag.positions == 0 and not info.in_flight and not info.retrying


def settled(mp: Milepost) -> Callable[[], Awaitable[bool]]:
    return lambda: is_settled(mp)


async def test_each_is_listed_until_it_stops(mp: Milepost, nodes: Nodes) -> None:
    first, second = await nodes(2)
    await until(lambda: lists(mp, first, second))
    async with second.client() as client:
        listed = done(await client.get("/v1/nodes"))["nodes"]
        assert [node["address"] for node in listed] == [first.address, second.address]
        assert listed[0]["version"].startswith("milepost ")
    await first.end()
    assert [node.address for node in await mp.nodes()] == [second.address]


async def lists(mp: Milepost, *servers: Node) -> bool:
    return [node.address for node in await mp.nodes()] == [server.address for server in servers]


async def test_the_loopback_of_another_machine_is_nowhere(mp: Milepost, nodes: Nodes) -> None:
    """Whoever were sent there would reach something else, or nothing: they stand by."""
    owner, other = await nodes(2)
    await until(lambda: lists(mp, owner, other))
    elsewhere = "update {}.nodes set machine = 'laptop' where address = %(address)s"
    await mp.log.database.execute(qualified(elsewhere, mp), {"address": owner.address})
    assert await lists(mp, other)
    async with consuming(owner.address) as first, talking(other.address) as talk:
        await talk.say("hello")
        assert (await talk.expect("welcome"))["standby"]
        await first.say("leave")
        await first.closed()
        await talk.expect("standby", standby=False)


async def test_clients_of_other_machines_are_not_sent_to_loopback(mp: Milepost, serve: Serve) -> None:
    owner, other = [await serve(access="open") for _ in range(2)]
    await until(lambda: lists(mp, owner, other))
    through_proxy = {"x-forwarded-for": "192.0.2.1"}
    async with other.client() as client:
        assert len(done(await client.get("/v1/nodes"))["nodes"]) == 2
        assert done(await client.get("/v1/nodes", headers=through_proxy))["nodes"] == []
    async with consuming(owner.address), talking(other.address, additional_headers=through_proxy) as talk:
        await talk.say("hello")
        assert (await talk.expect("welcome"))["standby"]
        other.stop()
        assert (await talk.ended("going away", 1001))["to"] is None


async def test_who_comes_to_another_is_sent_to_the_owner(mp: Milepost, nodes: Nodes) -> None:
    owner, other = await nodes(2)
    async with consuming(owner.address) as low:
        async with talking(other.address) as talk:
            await talk.say("hello")
            end = await talk.ended("moved", 4001)
            assert end["to"] == owner.address
        # Priorities hold over all of them, wherever they came first.
        async with consuming(end["to"], routes=[{"priority": 5}]) as high:
            await orders(mp, 3)
            assert len(await high.take(3)) == 3
            await low.is_dry()


async def test_who_cannot_reach_the_owner_stands_by(mp: Milepost, nodes: Nodes) -> None:
    owner, other = await nodes(2)
    async with talking(owner.address) as first:
        await first.hello()
        async with talking(other.address) as second:
            welcome = await second.hello(avoid=[owner.address])
            assert welcome["standby"] is True
            await orders(mp, 1)
            [delivery] = await first.take(1)
            await first.say("settle", ref=1, ack=[delivery["id"]])
            await first.expect("settled", ref=1)
            await second.is_dry()
            await first.say("leave")
            await first.closed()
            await second.expect("standby", standby=False)
            await orders(mp, 1, first=1)
            assert [each["message"]["data"]["n"] for each in await second.take(1)] == [1]


async def test_behind_a_library_consumer_clients_stand_by(mp: Milepost, nodes: Nodes) -> None:
    [server] = await nodes(1)
    async with mp.consumer("shipping") as consumer:
        async with consuming(server.address) as talk:
            assert talk.welcome["standby"] is True
            await orders(mp, 1)
            [delivery] = await take(consumer, 1)
            await delivery.ack()
            await consumer.__aexit__(None, None, None)
            await talk.expect("standby", standby=False)
            await orders(mp, 1, first=1)
            assert [each["message"]["data"]["n"] for each in await talk.take(1)] == [1]


async def test_who_comes_everywhere_at_the_same_moment_ends_in_one_place(
    mp: Milepost, nodes: Nodes, follow: Follow
) -> None:
    servers = await nodes(2)
    for first in range(0, 20, 10):
        followers = [follow(servers, first=n % 2) for n in range(6)]
        await until(all_welcome(followers))
        await orders(mp, 10, first=first)
        await until(got(*followers)(set(range(first, first + 10))))
        await until(all_in_one_place(followers))
        assert not any(follower.standby for follower in followers)
        for follower in followers:
            await follower.stop()
            assert len(follower.path) <= 4, follower.path


async def test_stopped_another_goes_on_and_nothing_comes_twice(mp: Milepost, nodes: Nodes, follow: Follow) -> None:
    servers = await nodes(2)
    followers = [follow(servers) for _ in range(3)]
    await until(all_welcome(followers))
    await orders(mp, 30)
    await until(got(*followers)({10}))
    await servers[0].end()
    await orders(mp, 30, first=30)
    await until(got(*followers)(set(range(60))))
    await until(settled(mp))
    everything = [n for follower in followers for n in follower.got]
    assert sorted(everything) == list(range(60))
    assert all(follower.path[-1] == servers[1].address for follower in followers)


@pytest.mark.shard("processes")
@pytest.mark.parametrize("lease", [LEASE])
async def test_killed_another_takes_over(mp: Milepost, processes: Processes, follow: Follow) -> None:
    servers = processes(2)
    followers = [follow(servers) for _ in range(3)]
    await until(all_welcome(followers))
    await orders(mp, 30)
    await until(got(*followers)(set(range(30))))
    servers[0].kill()
    await orders(mp, 30, first=30)
    await until(got(*followers)(set(range(60))))
    await until(settled(mp))


@pytest.mark.shard("processes")
@pytest.mark.parametrize("lease", [LEASE])
async def test_three_killed_stopped_and_started_again_under_load(
    mp: Milepost, processes: Processes, follow: Follow, start_server: StartServer
) -> None:
    """Whatever happens to servers: everything comes, and again only what was open or not written yet."""
    servers = processes(3)
    addresses = [server.address for server in servers]
    followers = [follow(servers, first=n % 3, routes=[{"capacity": 5}]) for n in range(6)]
    count = 0
    for end in ("kill", "stop", "kill"):
        await orders(mp, 40, first=count)
        count += 40
        owner = await owner_of(mp, servers)
        if end == "kill":
            owner.kill()
        else:
            assert await asyncio.to_thread(owner.end) == (0, "")
        servers.remove(owner)
        servers.append(start_server())
        for follower in followers:
            follower.addresses += [servers[-1].address]
        await orders(mp, 20, first=count)
        count += 20
        await until(got(*followers)(set(range(count))))
    await until(settled(mp))
    assert set(addresses) != {server.address for server in servers}
    for follower in followers:
        await follower.stop()


async def owner_of(mp: Milepost, servers: list[ServerProcess]) -> ServerProcess:
    """Who serves it now."""
    found: list[ServerProcess] = []

    async def is_known() -> bool:
        for server in servers:
            async with talking(server.address) as talk:
                await talk.say("hello", routes=[{"capacity": 0}])
                frame = await talk.hear()
                if frame["type"] == "welcome" and not frame["standby"]:
                    found.append(server)
                    return True
        return False

    await until(is_known)
    return found[0]
