"""Where consumers connect, for whoever asks without a WebSocket."""

from litestar import get

from milepost.server.http.operation import operation
from milepost.server.http.parameters import Group, Name
from milepost.server.http.subscriptions import ONE
from milepost.server.problems import INVALID, Refused


@get(f"{ONE}/consume", include_in_schema=False, opt=operation(None))
async def consume(group: Group, name: Name) -> None:
    """Says what is wanted."""
    raise Refused(INVALID, "Consumers connect here by WebSocket: send the headers of an upgrade", field="upgrade")


HANDLERS = (consume,)
