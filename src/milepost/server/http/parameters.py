"""Parameters that several operations share."""

from typing import Annotated

from litestar.params import PathParameter, QueryParameter

from milepost.filter.filter import MAX_BYTES
from milepost.log.selection import MAX_CHOICES
from milepost.server.limits import LONGEST_PAGE, LONGEST_WAIT, USUAL_PAGE

LAST = 2**63 - 1
"""Above every position and version."""

Stream = Annotated[str, PathParameter(description="The name of a stream, percent-encoded.")]
Target = Annotated[str, PathParameter(description="A stream, or the id of a message.")]
Group = Annotated[str, PathParameter(description="The group of a subscription.")]
Name = Annotated[str, PathParameter(description="The name of a subscription within its group.")]
Category = Annotated[
    list[str] | None,
    QueryParameter(description="One category, or any of several.", schema_extra={"maxItems": MAX_CHOICES}),
]
Streams = Annotated[
    list[str] | None,
    QueryParameter(description="One stream, or any of several.", schema_extra={"maxItems": MAX_CHOICES}),
]
Types = Annotated[
    list[str] | None,
    QueryParameter(
        description="One type, or any of several; `*` is one dotted part and `>` is the rest.",
        schema_extra={"maxItems": MAX_CHOICES},
    ),
]
Where = Annotated[
    str | None,
    QueryParameter(
        description='A filter over the properties, such as `amount >= 100 && region == "EU"`.',
        schema_extra={"maxLength": MAX_BYTES},
    ),
]
After = Annotated[
    int, QueryParameter(ge=0, le=LAST, description="Only higher positions. Defaults to 0: from the first.")
]
Limit = Annotated[
    int, QueryParameter(ge=1, le=LONGEST_PAGE, description=f"At most so many. Defaults to {USUAL_PAGE}.")
]
Force = Annotated[
    bool,
    QueryParameter(
        description="Wait for nobody: what does not end within half a second is taken back, which is no attempt."
    ),
]
Seconds = Annotated[
    float,
    QueryParameter(ge=0, le=LONGEST_WAIT, description="How many seconds to wait for workers to let it go."),
]
