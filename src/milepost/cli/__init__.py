"""The `milepost` command."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        # Loading it takes a moment in which Ctrl-C may come, too.
        from milepost.cli.command import run
    except KeyboardInterrupt:
        return 130
    return run(arguments)
