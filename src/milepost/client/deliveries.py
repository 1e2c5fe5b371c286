"""Messages that need attention, over HTTP."""

from typing import Any

import msgspec

from milepost.client.messages import ReceivedMessage
from milepost.engine.deliveries import DeliveryInfo
from milepost.log.codec import Codec
from milepost.progress.deliveries import StoredDelivery

_STORED = StoredDelivery.__struct_fields__


class ReceivedInfo(StoredDelivery, frozen=True, kw_only=True):
    """A delivery as a server tells it."""

    message: ReceivedMessage | None

    def info(self, codec: Codec) -> DeliveryInfo:
        """The same as the library gives it."""
        stored: dict[str, Any] = {name: getattr(self, name) for name in _STORED}
        return DeliveryInfo(message=None if self.message is None else self.message.message(codec), **stored)


class ReceivedInfos(msgspec.Struct, frozen=True):
    """The deliveries of one answer."""

    deliveries: list[ReceivedInfo]
    next: int
    more: bool


class Count(msgspec.Struct, frozen=True):
    """How many there are."""

    count: int
