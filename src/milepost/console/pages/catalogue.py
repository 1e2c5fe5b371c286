"""What there is in the log: streams, categories, types."""

from litestar import get
from litestar.di import NamedDependency

from milepost.console.admission import needs
from milepost.console.answer import Answer
from milepost.console.catalogue import NEWEST, Catalogue
from milepost.console.visit import Visit
from milepost.errors import InvalidMessage
from milepost.names import MAX_NAME_BYTES
from milepost.server.access.reach import Within
from milepost.server.access.role import Role


@get("/log/streams", opt=needs(Role.READ, Within.ITSELF))
async def streams(visit: NamedDependency[Visit]) -> Answer:
    """Streams by name."""
    prefix, after = _asked(visit, "prefix"), _asked(visit, "after")
    names = await Catalogue(visit.reach).streams(prefix, after)
    return visit.page("streams.html", prefix=prefix, after=after, names=names)


@get("/log/categories", opt=needs(Role.READ, Within.ITSELF))
async def categories(visit: NamedDependency[Visit]) -> Answer:
    """Categories by name."""
    prefix, after = _asked(visit, "prefix"), _asked(visit, "after")
    names = await Catalogue(visit.reach).categories(prefix, after)
    return visit.page("categories.html", prefix=prefix, after=after, names=names)


@get("/log/types", opt=needs(Role.READ, Within.ITSELF))
async def types(visit: NamedDependency[Visit]) -> Answer:
    """Types by name."""
    prefix, category = _asked(visit, "prefix"), _asked(visit, "category")
    found = await Catalogue(visit.reach).types(prefix, category)
    return visit.page("types.html", prefix=prefix, category=category, types=found, newest_count=NEWEST)


def _asked(visit: Visit, name: str) -> str:
    text = visit.query.get(name, "")
    if len(text) > MAX_NAME_BYTES + 1:
        raise InvalidMessage(name, f"no name has more than {MAX_NAME_BYTES} bytes")
    return text


HANDLERS = (streams, categories, types)
