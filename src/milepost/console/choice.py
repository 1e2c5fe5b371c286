"""Which messages of the log somebody wants to see."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from milepost.engine.query import query_of
from milepost.filter import compile_filter
from milepost.log.reader import Query
from milepost.log.selection import Selection
from milepost.server.access.scope import UNLIMITED, TokenScope


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a form says; an empty text leaves it open."""

    stream: str = ""
    category: str = ""
    type: str = ""
    """May be a pattern: `*` is one dotted part and `>` is the rest."""
    where: str = ""
    scope: TokenScope = UNLIMITED
    """Of whoever looks: what is outside of it is left out."""

    @classmethod
    def of(cls, query: Mapping[str, str], scope: TokenScope) -> "Choice":
        """What the parameters of an address say; what names something outside of the scope is refused."""
        choice = cls(
            stream=query.get("stream", ""),
            category=query.get("category", ""),
            type=query.get("type", ""),
            where=query.get("where", "").strip(),
            scope=scope,
        )
        scope.narrowed([choice.category] if choice.category else None, [choice.stream] if choice.stream else None)
        return choice

    @property
    def categories(self) -> list[str] | None:
        """The categories that a reader gets; None: any."""
        return self.scope.narrowed([self.category] if self.category else None, None)

    @property
    def selection(self) -> Selection:
        """The same for a reader; what cannot be meant is refused."""
        return Selection.of(category=self.categories, stream=self.stream or None, types=self.type or None)

    def query(self, *, backwards: bool) -> Query:
        """What a reader asks for; raises `FilterError` if the filter cannot be used."""
        where = compile_filter(self.where) if self.where else None
        return query_of(self.selection, where, backwards=backwards)

    @property
    def everything(self) -> bool:
        """Whether it leaves all of it open."""
        return self == Choice(scope=self.scope)

    @property
    def unfiltered(self) -> "Choice":
        """The same without the filter."""
        return replace(self, where="")

    @property
    def parameters(self) -> dict[str, str]:
        """As parameters of an address."""
        return {"stream": self.stream, "category": self.category, "type": self.type, "where": self.where}
