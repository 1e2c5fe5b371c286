"""`milepost bench`: figures, and nothing left behind."""

from time import sleep

import psycopg

from cli.program import Run, Start

SCHEMAS = "select nspname from pg_namespace where nspname like 'milepost_bench_%'"


def schemas(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        return {row[0] for row in connection.execute(SCHEMAS)}


def test_figures_beside_postgresql_alone(run: Run, database_url: str) -> None:
    figures = run("bench", "--seconds", "2", "--json").done().json
    assert [figure["work"] for figure in figures] == [
        "append, 1 writer",
        "append, 8 writers",
        "append, batches of 100",
        "read everything",
        "follow at 200 a second, median",
        "follow at 200 a second, 99th %",
    ]
    for figure in figures[:4]:
        assert figure["milepost"] > 0
        assert figure["ratio"] == figure["milepost"] / figure["raw"]
    assert figures[4]["raw"] is None


def test_control_c_leaves_nothing_behind(start: Start, database_url: str) -> None:
    before = schemas(database_url)
    program = start("bench", "--seconds", "60")
    while not (made := schemas(database_url) - before):
        assert program.process.poll() is None
        sleep(0.02)
    outcome = program.interrupt()
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "")
    assert not made & schemas(database_url)
