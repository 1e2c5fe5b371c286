"""`python -m mutations`, in the folder `tests`: makes each mistake in a copy, and runs the tests that find it."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from mutations.listed import MUTATIONS
from mutations.mutation import Copy, Mutation, missed_by


def main(arguments: Sequence[str]) -> int:
    """Tries mistakes and tells of each; 1 if one was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m mutations",
        description="Make each mistake of the list in a copy of the project, and run the tests that find it.",
        epilog="The working tree is not touched. Ends with 1 if a mistake was not found.",
    )
    parser.add_argument("--only", metavar="WORDS", help="those with these words in their file or what they break")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    parser.add_argument("--output", action="store_true", help="show what the tests say")
    asked = parser.parse_args(arguments)
    chosen = [each for each in MUTATIONS if asked.only is None or asked.only in f"{each.file}: {each.breaks}"]
    if asked.list or not chosen:
        say("\n".join(f"{each.file}: {each.breaks}" for each in chosen) or "there is none with these words")
        return 0 if chosen else 2
    not_found = 0
    for number, mutation in enumerate(chosen, start=1):
        say(f"{number}/{len(chosen)} {mutation.file}: {mutation.breaks} … ", end="")
        began = monotonic()
        problem, output = tried(mutation)
        not_found += problem is not None
        say(f"{problem or 'found'} ({monotonic() - began:.0f} s)")
        if asked.output or problem is not None:
            say(output)
    say(f"{len(chosen) - not_found} of {len(chosen)} were found")
    return 1 if not_found else 0


def tried(mutation: Mutation) -> tuple[str | None, str]:
    """What is wrong, if a mistake is not found, and what its tests said."""
    with tempfile.TemporaryDirectory(prefix="milepost-mutation-") as folder:
        copy = Copy(Path(folder))
        copy.mistake(mutation)
        outcome = copy.run(mutation.tests)
    missed = missed_by(mutation, outcome)
    return (f"NOT FOUND by {', '.join(missed)}" if missed else None), outcome.output


def say(text: str, end: str = "\n") -> None:
    """Prints at once, for whoever waits."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
