"""The methods of a client are those of the library, with the same parameters."""

import inspect
from typing import Any

import pytest

from milepost import Milepost
from milepost.client.client import Client
from milepost.client.consumer import ClientConsumer as RemoteConsumer
from milepost.client.delivery import ClientDelivery as RemoteDelivery
from milepost.client.subscriptions import ClientSubscription as RemoteSubscription
from milepost.engine.consumers.consumer import Consumer
from milepost.engine.consumers.delivery import Delivery
from milepost.engine.operate.manage import ManagedSubscription

METHODS = {
    Client: "append append_many read follow head last trace subscriptions create_subscription manage pull settle "
    "consumer nodes message upcast",
    RemoteSubscription: "info statistics progress caught_up deliveries count_deliveries retry skip pause resume "
    "move plan_move replay plan_replay update delete",
    RemoteConsumer: "configure add remove drain settle batches next_batch statistics",
    RemoteDelivery: "ack retry park skip stop extend",
}
THE_SAME: list[tuple[type[Any], type[Any]]] = [
    (Client, Milepost),
    (RemoteSubscription, ManagedSubscription),
    (RemoteConsumer, Consumer),
    (RemoteDelivery, Delivery),
]
ONLY_THERE = {"connection", "wake"}
"""What makes no sense without a database connection."""


@pytest.mark.parametrize(("remote", "local"), THE_SAME)
def test_parameters_and_results(remote: type[Any], local: type[Any]) -> None:
    for name in METHODS[remote].split():
        there, here = inspect.signature(getattr(remote, name)), inspect.signature(getattr(local, name))
        wanted = [(each.name, each.kind, each.default) for each in here.parameters.values()]
        wanted = [each for each in wanted if each[0] not in ONLY_THERE]
        assert [(each.name, each.kind, each.default) for each in there.parameters.values()] == wanted, name


@pytest.mark.parametrize(("remote", "local"), THE_SAME)
def test_what_the_library_has_and_a_client_does_not(remote: type[Any], local: type[Any]) -> None:
    """What is added to the library is thought of here: it is in the client, or in this list."""
    assert {
        name
        for name, value in inspect.getmembers(local, callable)
        if not name.startswith("_") and name not in METHODS[remote].split()
    } <= NOT_REMOTE


NOT_REMOTE = {
    # Of a program with handlers.
    *(
        "subscription",
        "provide",
        "on_event",
        "instrument",
        "declared",
        "create_declared",
        "health",
        "run",
        "running",
        "run_until_idle",
    ),
    # Of the machinery beneath.
    *("read_pages", "follow_pages", "delivery_pages", "forget", "adopt_messages", "address", "adopt"),
    *(
        "check_handlers",
        "declared_subscription",
        "dry_run",
        "leave_schema",
        "program",
        "runtime",
        "twin",
        "puller",
    ),
    *(
        "close",
        "wake",
        "statistics_with",
        "pop_unseen",
        "ack",
        "extend",
        "route_of",
        "settled",
        "stop",
        "take",
        "pop_acked",
    ),
    *("why_refused", "at_hand", "give_back", "go_on", "gone", "leave", "lose", "more", "suspend", "notify_lost"),
    *("has_settled", "is_limited", "late", "recall"),
}
