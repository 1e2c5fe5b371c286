"""Keep requests and answers within the scope of a token."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from milepost.app import Milepost
from milepost.engine.operate.trace.results import Neighbour, Trace
from milepost.errors import UnknownSubscription
from milepost.log.message import Message
from milepost.progress.deliveries import Claim
from milepost.server.access.permissions import TokenScope
from milepost.server.problems import FORBIDDEN, RequestRefused

SubscriptionVisibility = Callable[[str, str], bool]
"""Returns True if the subscription of a group and a name is within a scope."""


class ScopeRule(Enum):
    """How an operation keeps to the scope of a token. One that does not say is refused to a token with a scope."""

    ANY_SCOPE = "any scope"
    """It tells and changes nothing of messages or subscriptions."""
    STREAM = "stream"
    """It is about the stream in its path alone, which is checked before."""
    SUBSCRIPTION = "subscription"
    """It is about the subscription in its path alone, which is checked before, and a stream if there is one."""
    ITSELF = "itself"
    """Its handler asks `ScopeGuard`."""


class SubscriptionSelection(msgspec.Struct, frozen=True):
    """What a subscription selects."""

    category: list[str] | None
    stream: list[str] | None


class ScopeGuard:
    """Checks what somebody asks for, and leaves out of answers what they may not see.

    A subscription is within a scope if its group is, and if it selects messages of the scope's categories alone.
    """

    def __init__(self, mp: Milepost, scope: TokenScope) -> None:
        self.mp = mp
        self.scope = scope

    async def admit(self, scope_rule: ScopeRule | None, path: Mapping[str, Any]) -> None:
        """Check an operation before its handler runs, by the parameters of its path."""
        if not self.scope.limited:
            return
        match scope_rule:
            case None:
                raise RequestRefused(
                    FORBIDDEN,
                    f"This takes a token for everything, made without --group and --category; yours is "
                    f"for {self.scope.words}",
                )
            case ScopeRule.STREAM:
                self.scope.check_streams([path["stream"]])
            case ScopeRule.SUBSCRIPTION:
                await self.check_subscription(path["group"], path["name"])
                if "stream" in path:
                    self.scope.check_streams([path["stream"]])

    async def check_subscription(self, group: str, name: str) -> SubscriptionSelection | None:
        """Refuse a subscription outside of the scope, and one that is not there. Return what it selects.

        None: nothing was looked up, since the scope leaves nothing out.
        """
        if not self.scope.limited:
            return None
        self.scope.check_group(group)
        found = await self.find(group, name)
        if found is None:
            # Without a word on what there is: that may be somebody else's.
            raise UnknownSubscription(f"{group}/{name}")
        self.scope.check_selection(found.category, found.stream)
        return found

    def check_selections_shown(self, *selections: Mapping[str, Any] | None) -> None:
        """Refuse to show what was read of a subscription that has come to select more than the scope has.

        `check_subscription` alone does not suffice: another program may change the subscription between it and the
        statement that reads what is shown. None: nothing of its selection is shown.
        """
        for selection in selections:
            if selection is not None:
                self.scope.check_selection(
                    _name_list(selection.get("category")), _name_list(selection.get("stream"))
                )

    async def check_creation(self, group: str, name: str, options: Mapping[str, Any]) -> None:
        """Refuse to create a subscription outside of the scope, and to take over one that is there."""
        if not self.scope.limited:
            return
        self.scope.check_group(group)
        self.scope.check_selection(_name_list(options.get("category")), _name_list(options.get("stream")))
        if (found := await self.find(group, name)) is not None:
            self.scope.check_selection(found.category, found.stream)

    async def check_change(self, group: str, name: str, options: Mapping[str, Any]) -> None:
        """Refuse to have a subscription select more than the scope has."""
        if (before := await self.check_subscription(group, name)) is not None:
            self.scope.check_selection(
                _name_list(options.get("category", before.category)),
                _name_list(options.get("stream", before.stream)),
            )

    async def find(self, group: str, name: str) -> SubscriptionSelection | None:
        """Return what a subscription selects; None: there is none, or nobody can tell."""
        # Together they would be read as an address, in which the last slash counts.
        if "/" in group or "/" in name:
            return None
        return next((selected for _, _, _, selected in await self._selections(group=group, name=name)), None)

    async def visible_subscriptions(self) -> SubscriptionVisibility:
        """Return what tells which subscriptions are within the scope, as of now."""
        if self.scope.categories is None:
            return lambda group, name: self.scope.has_group(group)
        visible = {
            (group, name)
            for _, group, name, selected in await self._selections()
            if self.scope.has_group(group) and self.scope.has_selection(selected.category, selected.stream)
        }
        return lambda group, name: (group, name) in visible

    async def check_claims(self, tokens: Iterable[str]) -> None:
        """Refuse tokens of deliveries whose subscriptions are outside of the scope."""
        if not self.scope.limited:
            return
        claims = [claim for token in tokens if (claim := Claim.of(token)) is not None]
        for _, group, _, selected in await self._selections(ids=sorted({claim.subscription for claim in claims})):
            self.scope.check_group(group)
            self.scope.check_selection(selected.category, selected.stream)

    def check_messages(self, messages: Iterable[Message[Any]]) -> None:
        """Refuse messages of other categories: a subscription that selected more before may still have some."""
        if self.scope.categories is not None:
            self.scope.check_streams(message.stream for message in messages)

    async def trace(self, target: str, *, group: str | None, subscription: str | None, **options: Any) -> Trace:
        """Trace messages, and leave out those, and subscriptions, that are outside of the scope."""
        if not self.scope.limited:
            return await self.mp.trace(target, group=group, subscription=subscription, **options)
        if not _is_message_id(target):
            self.scope.check_streams([target])
        sees = await self._check_asked(group, subscription)
        found = await self.mp.trace(target, group=group, subscription=subscription, **options)
        return Trace(
            messages=tuple(message for message in found.messages if self.scope.has_stream(message.stream)),
            traced=tuple(
                msgspec.structs.replace(
                    each,
                    waiting_behind=None if each.waiting_behind is None else self._shown(each.waiting_behind),
                    holds_first=tuple(map(self._shown, each.holds_first)),
                )
                for each in found
                if self.scope.has_stream(each.message.stream) and sees(each.group, each.subscription)
            ),
            before_version=found.before_version if self.scope.has_stream(target) else None,
        )

    async def _check_asked(self, group: str | None, subscription: str | None) -> SubscriptionVisibility:
        """Refuse a trace for subscriptions of which none is there that may be seen."""
        sees = await self.visible_subscriptions()
        of, slash, name = (subscription or "").rpartition("/")
        asked = of if slash else group
        if asked is not None:
            self.scope.check_group(asked)
        if (asked is not None or name) and not any(
            (asked is None or own == asked) and (not name or own_name == name) and sees(own, own_name)
            for _, own, own_name, _ in await self._selections()
        ):
            raise UnknownSubscription(f"{asked or '*'}/{name or '*'}")
        return sees

    def _shown(self, neighbour: Neighbour) -> Neighbour:
        if neighbour.stream is None or self.scope.has_stream(neighbour.stream):
            return neighbour
        return msgspec.structs.replace(neighbour, stream=None, version=None)

    async def _selections(
        self, *, group: str | None = None, name: str | None = None, ids: Sequence[int] | None = None
    ) -> list[tuple[int, str, str, SubscriptionSelection]]:
        overview = self.mp.services.overview
        if overview is None:
            # Progress is kept outside of PostgreSQL: what is not known is not within any scope.
            return []
        found = await overview.selections(group=group, name=name, ids=ids)
        return [
            (each.id, each.group, each.name, msgspec.json.decode(each.selects, type=SubscriptionSelection))
            for each in found
        ]


def _name_list(given: Any) -> list[str] | None:
    """One name, or several, as an option has them."""
    return [given] if isinstance(given, str) else None if given is None else list(given)


def _is_message_id(target: str) -> bool:
    try:
        UUID(target)
    except ValueError:
        return False
    return True
