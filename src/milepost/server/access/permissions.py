"""What a token allows: its roles, and the groups and categories it is for."""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

import msgspec

from milepost.engine.declare.declaration import checked_name
from milepost.errors import InvalidMessage
from milepost.log.codec import check_name
from milepost.names import category_of
from milepost.server.problems import FORBIDDEN, RequestRefused


class TokenRole(StrEnum):
    """One kind of thing that may be done; a token has one or several, and none includes another."""

    READ = "read"
    """Look at everything: messages, subscriptions, deliveries, traces, metrics."""
    APPEND = "append"
    """Append messages."""
    CONSUME = "consume"
    """Take deliveries and settle them."""
    OPERATE = "operate"
    """Create, change, pause, move, replay and delete subscriptions; retry and skip messages."""


ALL_ROLES = frozenset(TokenRole)


MAX_SCOPE_NAMES = 100
"""The most groups, and the most categories, that a token may be for."""


class TokenScope(msgspec.Struct, frozen=True):
    """What a token is for. Outside of it, its roles allow nothing."""

    groups: frozenset[str] | None = None
    """The groups of subscriptions; None: all."""
    categories: frozenset[str] | None = None
    """The categories of streams; None: all."""

    @classmethod
    def of(cls, groups: Collection[str] | None, categories: Collection[str] | None) -> "TokenScope":
        """Return the scope of these names; what is no name of a group or a category is refused."""
        for field, names in (("groups", groups), ("categories", categories)):
            if names is not None and not 0 < len(names) <= MAX_SCOPE_NAMES:
                raise InvalidMessage(field, f"must be 1 to {MAX_SCOPE_NAMES} names, got {len(names)}")
        for group in groups or ():
            try:
                checked_name(group)
            except ValueError as error:
                raise InvalidMessage("group", f"{group!r}: {error}") from None
        for category in categories or ():
            check_name("category", category)
            if category_of(category) != category:
                raise InvalidMessage(
                    "category", f"{category!r}: a category ends before the first dash of a stream"
                )
        return cls(_frozen_names(groups), _frozen_names(categories))

    @property
    def limited(self) -> bool:
        """True if it leaves anything out."""
        return self.groups is not None or self.categories is not None

    def has_group(self, group: str) -> bool:
        """Return True if subscriptions of this group are in it."""
        return self.groups is None or group in self.groups

    def has_stream(self, stream: str) -> bool:
        """Return True if a stream is in it: its category is."""
        return self.categories is None or category_of(stream) in self.categories

    def has_selection(self, categories: Collection[str] | None, streams: Collection[str] | None) -> bool:
        """Return True if nothing is selected outside of it. None: any category, any stream."""
        if self.categories is None:
            return True
        # A message has to be of both, so one of them being inside is enough.
        return (categories is not None and self.categories.issuperset(categories)) or (
            streams is not None and self.categories.issuperset(map(category_of, streams))
        )

    def check_group(self, group: str) -> None:
        """Refuse another group."""
        if not self.has_group(group):
            raise RequestRefused(FORBIDDEN, f"Your token is for {self.words}: group {group!r} is not among them")

    def check_streams(self, streams: Iterable[str]) -> None:
        """Refuse a stream of another category."""
        for stream in streams:
            if not self.has_stream(stream):
                of = category_of(stream)
                raise RequestRefused(
                    FORBIDDEN,
                    f"Your token is for {self.words}: stream {stream!r} is of category {of!r}, another one",
                )

    def check_selection(self, categories: Collection[str] | None, streams: Collection[str] | None) -> None:
        """Refuse a subscription that selects messages outside of it."""
        if not self.has_selection(categories, streams):
            raise RequestRefused(
                FORBIDDEN,
                f"Your token is for {self.words}: the subscription has to select some of these categories and no "
                "others. Name them as its `category`",
            )

    def narrowed(self, categories: Sequence[str] | None, streams: Sequence[str] | None) -> list[str] | None:
        """Return the categories that a reader gets who asked for these: by default all of the token's.

        None: any category. A name outside of the scope is refused.
        """
        if self.categories is None:
            return None if categories is None else list(categories)
        for category in categories or ():
            if category not in self.categories:
                raise RequestRefused(
                    FORBIDDEN, f"Your token is for {self.words}: category {category!r} is not among them"
                )
        self.check_streams(streams or ())
        return sorted(self.categories) if categories is None else list(categories)

    @property
    def words(self) -> str:
        """What it is for, in words."""
        parts = [
            f"{noun if len(names) == 1 else plural} {', '.join(sorted(names))}"
            for noun, plural, names in (
                ("the group", "the groups", self.groups),
                ("the category", "the categories", self.categories),
            )
            if names is not None
        ]
        return " and ".join(parts) or "everything"


UNLIMITED_SCOPE = TokenScope()
"""Where nothing is left out."""


def _frozen_names(names: Collection[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)
