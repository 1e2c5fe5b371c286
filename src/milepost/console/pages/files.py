"""Static files: the style, the scripts, the mark."""

from litestar import get
from litestar.params import FromPath

from milepost.console.admission import needs
from milepost.console.answer import Answer, Page
from milepost.console.templating import static
from milepost.server.problems import NOT_FOUND, Refused

FOR_EVER = (b"cache-control", b"public, max-age=31536000, immutable")


@get("/static/{edition:str}/{name:str}", opt=needs(None))
async def file(edition: FromPath[str], name: FromPath[str]) -> Answer:
    """A file; the edition in its address changes with it."""
    found = static(name)
    if found is None:
        raise Refused(NOT_FOUND, f"There is no file {name!r}.")
    content, kind = found
    return Page(content, kind=kind, headers=[FOR_EVER])


HANDLERS = (file,)
