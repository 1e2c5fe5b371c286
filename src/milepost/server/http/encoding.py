"""Messages of an append: each is checked and encoded for itself, so that many or large ones hold nobody up."""

from collections.abc import Sequence
from typing import Any

import msgspec

from milepost.errors import InvalidMessage
from milepost.log.codec import Codec
from milepost.log.message import EncodedMessage, EncodedObject, NewMessage, Property
from milepost.server.counting import check_containers, check_depth, count_containers
from milepost.server.http.fields import refused_for
from milepost.server.limits import Limits
from milepost.server.turns import Step
from milepost.server.wire.message import MessageToAppend

_anything: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder()
_properties = msgspec.json.Decoder(dict[str, Property])
_metadata = msgspec.json.Decoder(dict[str, Any])


async def encoded(
    messages: Sequence[MessageToAppend], codec: Codec, limits: Limits, step: Step, *, within: str = ""
) -> list[EncodedMessage]:
    """Messages as the library takes them; `within` is the part of the body that has them."""
    found = []
    for number, message in enumerate(messages):
        found.append(encoded_message(message, codec, limits, within=f"{within}[{number}]"))
        await step()
    return found


def encoded_message(message: MessageToAppend, codec: Codec, limits: Limits, *, within: str = "") -> EncodedMessage:
    """One of them; what is wrong with it is said with its place."""
    codec.check_size(message.type, len(message.data) + len(message.properties) + len(message.metadata))
    data, metadata = bytes(message.data), bytes(message.metadata)
    has_metadata = len(metadata) > len(b"{}")
    check_containers("message", count_containers(data + metadata) - (not has_metadata), limits.containers)
    for field, text in (("data", data), ("metadata", metadata)):
        check_depth(field, text, limits.depth)
    _check_data(data)
    try:
        # What is decoded only to be checked is forgotten at once: it may take twenty times as much memory.
        _metadata.decode(metadata)
    except msgspec.ValidationError as error:
        raise refused_for(str(error), f"{within}.metadata") from None
    try:
        properties = _properties.decode(message.properties)
    except msgspec.ValidationError as error:
        raise refused_for(str(error), f"{within}.properties") from None
    return codec.encoded(
        NewMessage(
            message.type,
            message.data,
            properties=properties,
            metadata=EncodedObject(message.metadata) if has_metadata else {},
            id=message.id,
        )
    )


def _check_data(data: bytes) -> None:
    """Refuse a payload that a reader could not decode."""
    try:
        _anything.decode(data)
    except RecursionError:
        raise InvalidMessage("data", "it is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise InvalidMessage("data", str(error)) from None
