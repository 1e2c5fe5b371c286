"""The page of tokens: their roles, scopes and expiry. Tokens are made and revoked with `milepost token`."""

from litestar import get
from litestar.di import NamedDependency

from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse, NavItem
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.access.tokens import TokenStore

NAV_ITEM = NavItem("Tokens", "tokens", TokenRole.OPERATE)


@get("/tokens", opt=needs(TokenRole.OPERATE, ScopeRule.ITSELF))
async def tokens(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show every token. A reader whose own token has a scope sees only that one."""
    stored = TokenStore(console.mp)
    own = console.principal.token
    found = [
        token
        for token in await stored.all()
        if own is None or not own.scope.limited or (token.in_force and token.name == own.name)
    ]
    return console.page("tokens.html", tokens=found)


HANDLERS = (tokens,)
