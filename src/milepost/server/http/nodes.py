"""The servers on one database."""

from typing import cast

import msgspec
from litestar import get
from litestar.di import NamedDependency

from milepost.app import Milepost
from milepost.progress.nodes import Node, is_loopback_url
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.asgi import Scope
from milepost.server.hosts import is_local
from milepost.server.http.operation import operation
from milepost.server.http.request import JsonRequest


class Nodes(msgspec.Struct, frozen=True):
    """Servers, the first that came first."""

    nodes: list[Node]


@get("/nodes", operation_id="list_nodes", opt=operation(Role.READ, within=Within.ANY_SCOPE))
async def list_(mp: NamedDependency[Milepost], request: JsonRequest) -> Nodes:
    """The servers on this database that you can connect to, each with its address."""
    nodes, scope = await mp.nodes(), cast(Scope, request.scope)
    return Nodes(nodes if is_local(scope) else [node for node in nodes if not is_loopback_url(node.address)])


HANDLERS = (list_,)
