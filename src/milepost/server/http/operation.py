"""What is said of an operation beside its handler: who may do it, and which problems it can have."""

from typing import Any

from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.problems import Kind


def operation(
    role: Role | None, *kinds: Kind, large: bool = False, within: Within | None = None
) -> dict[str, Any]:
    """Return the options of a handler.

    Args:
        role: The role that it takes; None: anybody may, without a token.
        kinds: The kinds of problems that are its own.
        large: Whether its body may be as large as those of appends.
        within: How it keeps to the scope of a token. Defaults to none: it refuses tokens with a scope.
    """
    return {"role": role, "kinds": kinds, "large": large, "within": within}
