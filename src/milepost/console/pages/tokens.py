"""Tokens: who may do what, and until when. They are made and revoked with `milepost token`."""

from litestar import get
from litestar.di import NamedDependency

from milepost.console.admission import needs
from milepost.console.answer import Answer
from milepost.console.entry import Entry
from milepost.console.visit import Visit
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.access.tokens import Tokens

ENTRY = Entry("Tokens", "tokens", Role.OPERATE)


@get("/tokens", opt=needs(Role.OPERATE, Within.ITSELF))
async def tokens(visit: NamedDependency[Visit]) -> Answer:
    """Every token that was made; whoever has one with a scope sees that one."""
    stored = Tokens(visit.mp.log.database, visit.mp.settings["schema"].value)
    own = visit.visitor.token
    found = [
        token
        for token in await stored.all()
        if own is None or not own.scope.limited or (token.in_force and token.name == own.name)
    ]
    return visit.page("tokens.html", tokens=found)


HANDLERS = (tokens,)
