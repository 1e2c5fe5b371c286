"""What a simulation finds."""


class Violation(AssertionError):
    """Something that always holds did not."""


def ensure(holds: bool, what: str) -> None:
    """Raises unless it holds."""
    if not holds:
        raise Violation(what)
