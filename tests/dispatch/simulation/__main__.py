"""`python -m dispatch.simulation find KIND FIRST LAST` looks for schedules that fail, with these seeds.

`find` makes the first one small, `check` only says what is wrong with it, `trace` prints all that came out;
of several kinds, if commas are between them.
"""

import sys

from dispatch.simulation.search import found_by, traced, wrong_with


def main(command: str, kind: str, first: str, last: str) -> int:
    """Prints what a command has to say; 1 if something is wrong."""
    seeds = range(int(first), int(last))
    if command == "trace":
        sys.stdout.writelines(traced(each, seeds) for each in kind.split(","))
        return 0
    found = found_by(kind, seeds) if command == "find" else wrong_with(kind, seeds)
    sys.stdout.write(found or "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
