"""The servers on one database."""

import msgspec
from litestar import get
from litestar.di import NamedDependency

from milepost.app import Milepost
from milepost.progress.nodes import Node
from milepost.server.access.role import Role
from milepost.server.http.operation import operation


class Nodes(msgspec.Struct, frozen=True):
    """Servers, the first that came first."""

    nodes: list[Node]


@get("/nodes", operation_id="list_nodes", opt=operation(Role.READ))
async def list_(mp: NamedDependency[Milepost]) -> Nodes:
    """The servers on this database that clients can connect to, each with its address."""
    return Nodes(await mp.nodes())


HANDLERS = (list_,)
