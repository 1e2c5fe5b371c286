"""Parameters that several operations share."""

from typing import Annotated

from litestar.params import Parameter

from milepost.server.limits import LONGEST_PAGE, LONGEST_WAIT, USUAL_PAGE

LAST = 2**63 - 1
"""Above every position and version."""

Category = Annotated[list[str] | None, Parameter(description="One category, or any of several.")]
Streams = Annotated[list[str] | None, Parameter(description="One stream, or any of several.")]
Types = Annotated[
    list[str] | None,
    Parameter(description="One type, or any of several; `*` is one dotted part and `>` is the rest."),
]
Where = Annotated[
    str | None,
    Parameter(description='A filter over the properties, such as `amount >= 100 && region == "EU"`.'),
]
After = Annotated[
    int, Parameter(ge=0, le=LAST, description="Only higher positions. Defaults to 0: from the first.")
]
Limit = Annotated[int, Parameter(ge=1, le=LONGEST_PAGE, description=f"At most so many. Defaults to {USUAL_PAGE}.")]
Seconds = Annotated[
    float,
    Parameter(ge=0, le=LONGEST_WAIT, description="How many seconds to wait for workers to let it go."),
]
