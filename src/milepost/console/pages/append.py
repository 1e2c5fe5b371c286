"""The page that appends a message by hand."""

from dataclasses import dataclass

import msgspec
from litestar import get, post
from litestar.di import NamedDependency

from milepost.console.forms import check_json, parse_object
from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse
from milepost.errors import IdReused, InvalidMessage, WrongVersion
from milepost.log.codec import Codec
from milepost.log.message import ANY, NO_STREAM, STREAM_EXISTS, Appended, NewMessage
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.limits import Limits
from milepost.server.problems import RequestRefused

_EXPECTED_VERSIONS: dict[str, int] = {"any": ANY, "no_stream": NO_STREAM, "stream_exists": STREAM_EXISTS}
_MAX_VERSION_DIGITS = 18
"""Digits that always fit into 64 bits."""


@dataclass(frozen=True, kw_only=True)
class MessageDraft:
    """A message as it was typed into the form."""

    stream: str = ""
    type: str = ""
    data: str = "{}"
    properties: str = ""
    metadata: str = ""
    id: str = ""
    expected: str = "any"
    """`any`, `no_stream`, `stream_exists` or `version`."""
    version: str = ""
    """The version, if `expected` is `version`."""

    @classmethod
    def sent(cls, console: ConsoleRequest) -> "MessageDraft":
        """Return the draft of a form that was sent."""
        names = ("stream", "type", "data", "properties", "metadata", "id", "expected", "version")
        return cls(**{name: console.sent(name) for name in names})

    def message(self, codec: Codec, limits: Limits) -> NewMessage:
        """Return the message; `InvalidMessage` says which field is wrong, and why."""
        codec.check_size(self.type, sum(map(len, (self.data, self.properties, self.metadata))))
        return NewMessage(
            self.type,
            msgspec.Raw(check_json("data", self.data or "null", limits)),
            properties=parse_object("properties", self.properties, limits),
            metadata=parse_object("metadata", self.metadata, limits),
            id=self.id.strip() or None,
        )

    def expected_version(self) -> int:
        """Return the version that the stream must have."""
        text = self.version.strip().replace(",", "")
        if self.expected in _EXPECTED_VERSIONS and not text:
            return _EXPECTED_VERSIONS[self.expected]
        if self.expected in _EXPECTED_VERSIONS:
            raise InvalidMessage("version", 'choose "at this version" as well, or leave the number out')
        if not text.isascii() or not text.isdigit() or len(text) > _MAX_VERSION_DIGITS:
            raise InvalidMessage("version", "a number from 0 on is wanted, such as the stream's last version")
        return int(text)


PATH = "/log/append"
FORM_FIELDS = ("stream", "type", "data", "properties", "metadata", "id", "version")


@get(PATH, opt=needs(TokenRole.APPEND, ScopeRule.ANY_SCOPE))
async def form(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show the form."""
    given = {name: console.query[name] for name in ("stream", "type") if name in console.query}
    return console.page("append.html", draft=MessageDraft(**given), problem=None, field=None)


@post(PATH, status_code=200, opt=needs(TokenRole.APPEND, ScopeRule.ITSELF))
async def append(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Append a message. Mistakes are shown beside what was typed."""
    draft = MessageDraft.sent(console)
    try:
        console.principal.scope.check_streams([draft.stream])
    except RequestRefused as refused:
        return _show_again(console, draft, str(refused), "stream", status=refused.kind.status)
    try:
        message = draft.message(console.mp.codec, console.limits)
        appended = await console.mp.append(draft.stream, message, expected=draft.expected_version())
    except InvalidMessage as error:
        return _show_again(console, draft, str(error), error.field)
    except WrongVersion as error:
        return _show_again(console, draft, _conflict_in_words(error), "version", status=409)
    except IdReused as error:
        return _show_again(console, draft, str(error), "id", status=409)
    path = console.url("log", appended.position) if console.may(TokenRole.READ) else console.url("log", "append")
    return console.redirect_with_flash(path, _appended_in_words(appended))


def _show_again(
    console: ConsoleRequest, draft: MessageDraft, problem: str, field: str, *, status: int = 400
) -> ConsoleResponse:
    part = field.partition("[")[0]
    return console.page(
        "append.html", status=status, draft=draft, problem=problem, field=part if part in FORM_FIELDS else None
    )


def _conflict_in_words(error: WrongVersion) -> str:
    if error.actual == 0:
        return f"Nothing was appended: the stream {error.stream} has no message yet."
    return (
        f"Nothing was appended: the stream {error.stream} is at version {error.actual:,}. Look at what came, and "
        "decide anew."
    )


def _appended_in_words(appended: Appended) -> str:
    if appended.duplicate:
        return "It was there already, with this id and content: nothing was written."
    return f"Appended to {appended.stream} as version {appended.version:,}, at position {appended.position:,}."


HANDLERS = (form, append)
