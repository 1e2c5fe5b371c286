"""Durable subscriptions on PostgreSQL, for Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.app import Milepost
    from milepost.client import connect
    from milepost.dispatch.retry import Retry
    from milepost.dispatch.routing.route import Route
    from milepost.engine.declare.context import Context, Transaction
    from milepost.engine.declare.declaration import Checkpoint
    from milepost.engine.declare.handler import Instrument
    from milepost.engine.declare.order import by_correlation, by_function, by_property
    from milepost.engine.declare.outcomes import Failed, Park, RetryLater, Skip
    from milepost.errors import (
        AlreadyExists,
        Busy,
        ConsumerClosed,
        DeclaredInCode,
        FilterError,
        IdReused,
        InvalidMessage,
        LogMismatch,
        Lost,
        MilepostError,
        NoDatabase,
        NotAllowed,
        NotConfirmed,
        NotHandled,
        NotHandledYet,
        SchemaMismatch,
        TooLarge,
        Unavailable,
        Unhealthy,
        UnknownSubscription,
        WrongVersion,
    )
    from milepost.log.message import ANY, NO_STREAM, STREAM_EXISTS, Appended, Message, NewMessage
    from milepost.log.query import NOW
    from milepost.progress.leases import MemoryLeases
    from milepost.progress.memory import MemoryProgress
    from milepost.progress.postgres.leases import AdvisoryLeases, PostgresLeases
    from milepost.progress.protocol import Leases, Progress
    from milepost.sync import SyncMilepost

__all__ = [
    "ANY",
    "NOW",
    "NO_STREAM",
    "STREAM_EXISTS",
    "AdvisoryLeases",
    "AlreadyExists",
    "Appended",
    "Busy",
    "Checkpoint",
    "ConsumerClosed",
    "Context",
    "DeclaredInCode",
    "Failed",
    "FilterError",
    "IdReused",
    "Instrument",
    "InvalidMessage",
    "Leases",
    "LogMismatch",
    "Lost",
    "MemoryLeases",
    "MemoryProgress",
    "Message",
    "Milepost",
    "MilepostError",
    "NewMessage",
    "NoDatabase",
    "NotAllowed",
    "NotConfirmed",
    "NotHandled",
    "NotHandledYet",
    "Park",
    "PostgresLeases",
    "Progress",
    "Retry",
    "RetryLater",
    "Route",
    "SchemaMismatch",
    "Skip",
    "SyncMilepost",
    "TooLarge",
    "Transaction",
    "Unavailable",
    "Unhealthy",
    "UnknownSubscription",
    "WrongVersion",
    "by_correlation",
    "by_function",
    "by_property",
    "connect",
]

# Imported when first asked for, so that `milepost.filter` can be used without a driver.
_MODULES = (
    "milepost.client",
    "milepost.errors",
    "milepost.log.message",
    "milepost.log.query",
    "milepost.dispatch.retry",
    "milepost.dispatch.routing.route",
    "milepost.progress.leases",
    "milepost.progress.memory",
    "milepost.progress.protocol",
    "milepost.progress.postgres.leases",
    "milepost.engine.declare.outcomes",
    "milepost.engine.declare.order",
    "milepost.engine.declare.declaration",
    "milepost.engine.declare.context",
    "milepost.engine.declare.handler",
    "milepost.sync",
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'milepost' has no attribute {name!r}")
    for module in map(import_module, _MODULES):
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module 'milepost' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
