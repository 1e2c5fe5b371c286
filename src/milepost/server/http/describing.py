"""The description of the API."""

from litestar import Response, get
from litestar.di import NamedDependency

from milepost.server.description import Description
from milepost.server.http.operation import operation


@get("/openapi.json", include_in_schema=False, opt=operation(None))
async def describe(description: NamedDependency[Description]) -> Response[bytes]:
    """OpenAPI 3.1."""
    return Response(description.encoded, media_type="application/json")


HANDLERS = (describe,)
