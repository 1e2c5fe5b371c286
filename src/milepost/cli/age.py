"""How long something has been so, for a person."""


def age(seconds: float) -> str:
    """Seconds in the largest unit of which there are at least two."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds else "0 s"
