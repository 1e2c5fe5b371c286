"""Durable subscriptions on PostgreSQL, for Python."""

from milepost.app import Milepost
from milepost.errors import (
    FilterError,
    IdReused,
    InvalidMessage,
    MilepostError,
    NoDatabase,
    SchemaMismatch,
    TooLarge,
    Unavailable,
    WrongVersion,
)
from milepost.log.feed import NOW
from milepost.log.message import ANY, NO_STREAM, STREAM_EXISTS, Appended, Message, NewMessage
from milepost.sync import SyncMilepost

__all__ = [
    "ANY",
    "NOW",
    "NO_STREAM",
    "STREAM_EXISTS",
    "Appended",
    "FilterError",
    "IdReused",
    "InvalidMessage",
    "Message",
    "Milepost",
    "MilepostError",
    "NewMessage",
    "NoDatabase",
    "SchemaMismatch",
    "SyncMilepost",
    "TooLarge",
    "Unavailable",
    "WrongVersion",
]
