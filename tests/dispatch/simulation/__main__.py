"""`python -m dispatch.simulation KIND FIRST LAST` runs schedules with these seeds.

With `trace` before the kind it prints all that came out of them.
"""

import sys

from dispatch.simulation.search import found_by, traced


def main(arguments: list[str]) -> int:
    """Prints what was found; 1 if anything was."""
    trace = arguments[0] == "trace"
    kind, first, last = arguments[1:] if trace else arguments
    seeds = range(int(first), int(last))
    if trace:
        sys.stdout.write(traced(kind, seeds))
        return 0
    found = found_by(kind, seeds)
    sys.stdout.write(found or "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
