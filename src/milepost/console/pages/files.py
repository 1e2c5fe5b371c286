"""Static files: the style, the scripts, the mark."""

from litestar import get
from litestar.params import FromPath

from milepost.console.guard import needs
from milepost.console.request import ConsoleResponse, PageResponse
from milepost.console.templating import static_file
from milepost.server.problems import NOT_FOUND, RequestRefused

CACHE_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")


@get("/static/{edition:str}/{name:str}", opt=needs(None))
async def file(edition: FromPath[str], name: FromPath[str]) -> ConsoleResponse:
    """Return a file. The edition in its address changes with it."""
    found = static_file(name)
    if found is None:
        raise RequestRefused(NOT_FOUND, f"There is no file {name!r}.")
    content, kind = found
    return PageResponse(content, kind=kind, headers=[CACHE_FOREVER])


HANDLERS = (file,)
