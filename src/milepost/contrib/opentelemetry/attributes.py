"""Names of the semantic conventions for messaging, and those of Milepost's own."""

from contextlib import suppress
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from milepost import embedded
from milepost.log.message import Message, NewMessage, id_in

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
SUBSCRIPTION: Final = "messaging.destination.subscription.name"
GROUP: Final = "messaging.consumer.group.name"
BATCH: Final = "messaging.batch.message_count"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION: Final = "messaging.message.conversation_id"
SIZE: Final = "messaging.message.envelope.size"
ERROR: Final = "error.type"
SERVER: Final = "server.address"
PORT: Final = "server.port"

TYPE: Final = "messaging.milepost.message.type"
STREAM: Final = "messaging.milepost.message.stream"
VERSION: Final = "messaging.milepost.message.version"
POSITION: Final = "messaging.milepost.message.position"
ATTEMPT: Final = "messaging.milepost.message.attempt"
REPLAY: Final = "messaging.milepost.message.replay"
DUPLICATE: Final = "messaging.milepost.duplicate"
OUTCOME: Final = "messaging.milepost.outcome"
STATE: Final = "messaging.milepost.delivery.state"
LIMIT: Final = "messaging.milepost.limit"
CAUSE: Final = "messaging.milepost.limit.cause"
HOLDER: Final = "messaging.milepost.horizon.holder"
APPLICATION: Final = "messaging.milepost.horizon.application"

MILEPOST: Final = {SYSTEM: "milepost"}
APPEND: Final = {**MILEPOST, OPERATION_NAME: "append", OPERATION_TYPE: "send"}
PROCESS: Final = {**MILEPOST, OPERATION_NAME: "process", OPERATION_TYPE: "process"}


def of_server(url: str | None) -> dict[str, Any]:
    """Where the log is, if its address names one machine."""
    found: dict[str, Any] = {}
    with suppress(ProgrammingError, ValueError):
        known = {} if url is None or embedded.is_embedded(url) else conninfo_to_dict(url)
        if host := known.get("host"):
            found[SERVER] = str(host)
        if port := known.get("port"):
            found[PORT] = int(port)
    return {} if "," in found.get(SERVER, ",") else found


def of_message(message: Message[Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """What describes a message that was read."""
    found = {
        MESSAGE_ID: str(message.id),
        SIZE: message.size,
        TYPE: message.type,
        STREAM: message.stream,
        VERSION: message.version,
        POSITION: message.position,
    }
    correlation = id_in(metadata, "correlation_id")
    return {**found, CONVERSATION: correlation} if isinstance(correlation, str) else found


def of_new_message(stream: str, payload: Any) -> dict[str, Any]:
    """What describes a message that is to be appended."""
    found = {STREAM: stream}
    if isinstance(payload, NewMessage):
        found[TYPE] = payload.type
        if payload.id is not None:
            found[MESSAGE_ID] = str(payload.id)
    return found


def error_type(error: BaseException) -> str:
    """The class of an error, as it is imported."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
