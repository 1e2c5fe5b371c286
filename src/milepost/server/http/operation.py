"""What is said of an operation beside its handler: who may do it, and which problems it can have."""

from typing import Any

from milepost.server.access.role import Role
from milepost.server.problems import Kind


def operation(role: Role | None, *kinds: Kind) -> dict[str, Any]:
    """The options of a handler: the role that it takes, None for everybody, and its own kinds of problems."""
    return {"role": role, "kinds": kinds}
