"""The command: `python -m benchmarks [WORK]`."""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import (
    analyzing,
    append,
    batches,
    comparing,
    consoling,
    consuming,
    dispatching,
    doctoring,
    draining,
    filtering,
    following,
    growth,
    latency,
    memory,
    observing,
    operating,
    pauses,
    pausing,
    pulling,
    reading,
    results,
    rights,
    serving,
)
from benchmarks.bench import FULL, QUICK, Bench, Sizes
from benchmarks.results import Result
from benchmarks.server import server, version_of
from benchmarks.table import tables

Work = Callable[[Bench], list[Result]]

WORKS: dict[str, Work] = {
    "append": append.measure,
    "append-batch": batches.measure,
    "rights": rights.measure,
    "analyzed": analyzing.measure,
    "read": reading.measure,
    "follow": following.measure,
    "growth": growth.measure,
    "filter": filtering.measure,
    "dispatch": dispatching.measure,
    "drain": draining.measure,
    "latency": latency.measure,
    "memory": memory.measure,
    "observe": observing.measure,
    "trace": operating.measure,
    "doctor": doctoring.measure,
    "pause": pausing.measure,
    "pauses": pauses.measure,
    "console": consoling.measure,
    "serve": serving.measure,
    "peers": comparing.measure,
    "consume": consuming.measure,
    "pull": pulling.measure,
}


def _known(work: str | None) -> str | None:
    if work is None or work in WORKS:
        return work
    near = get_close_matches(work, WORKS, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise typer.BadParameter(f"{work!r} is not a work: {meant}There are {', '.join(WORKS)}.")


def main(
    work: Annotated[
        str | None,
        typer.Argument(callback=_known, help=f"One of {', '.join(WORKS)}. All of them if left out."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: to see that it works, not how fast it is.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Turns of each contender, of which the middle one counts.")
    ] = None,
    history: Annotated[int | None, typer.Option(min=1_000, help="Messages of history in the work growth.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Where the figures go. By default benchmarks/results.json, and nowhere with --quick."),
    ] = None,
) -> None:
    """Measures Milepost beside a raw psycopg loop that does the same rows.

    It starts an embedded PostgreSQL of its own with default settings, unless
    MILEPOST_BENCH_URL names another: there it makes schemas, and a database,
    called milepost_bench_… and drops them again.

    A full run takes about an hour, of which drain, peers and serve take seven
    each, memory and observe five and latency two. The figures of a work replace only that
    work's in the file. peers installs other libraries into .venv-peers.
    """
    sizes = _sizes(QUICK if quick else FULL, rounds, history)
    path = output or (None if quick else results.FILE)
    found: list[Result] = []
    with server() as url, _progress() as progress:
        bench = Bench(url, sizes, progress)
        for name in [work] if work else WORKS:
            of_work = WORKS[name](bench)
            found += of_work
            if path is not None:
                results.save(path, of_work, postgresql=version_of(url))
    console = Console()
    console.print(tables(found))
    if path is not None:
        console.print(f"written to {path}")


def _sizes(sizes: Sizes, rounds: int | None, history: int | None) -> Sizes:
    if rounds is not None:
        sizes = replace(
            sizes,
            rounds=rounds,
            follow_rounds=rounds,
            growth_rounds=rounds,
            drain_rounds=rounds,
            team_rounds=rounds,
            serve_rounds=rounds,
            peer_rounds=rounds,
        )
    return sizes if history is None else replace(sizes, growth_history=history)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
    )


if __name__ == "__main__":
    typer.run(main)
