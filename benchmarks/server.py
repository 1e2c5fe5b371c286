"""The PostgreSQL that is measured: an embedded one of the run's own, or that of `MILEPOST_BENCH_URL`."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from milepost import embedded


@contextmanager
def server() -> Iterator[str]:
    """The address of a server with default settings; an embedded one is deleted at the end."""
    given = os.environ.get("MILEPOST_BENCH_URL")
    if given:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="milepost-bench-"))
    try:
        yield embedded.start(f"embedded:{folder / 'data'}")
    finally:
        embedded.stop(f"embedded:{folder / 'data'}")
        shutil.rmtree(folder)


def version_of(url: str) -> str:
    """The version of the PostgreSQL at this address."""
    with psycopg.connect(url) as connection:
        return str(connection.info.parameter_status("server_version"))


def without_waiting(url: str) -> str:
    """The same server, whose commits do not wait for the disk: what is left is what the work itself costs."""
    return make_conninfo(url, options="-c synchronous_commit=off")


@contextmanager
def other_database(url: str, name: str) -> Iterator[str]:
    """A second database on the same server, dropped at the end."""
    drop = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            yield make_conninfo(url, dbname=name)
        finally:
            connection.execute(drop)


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """Somebody else's transaction that looked once and stays open: no dead row of its database can go."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from pg_class")
        yield


def processor_seconds(url: str) -> float:
    """What this process and a server on this machine have used of its processors so far."""
    with psycopg.connect(url) as connection:
        server = psutil.Process(connection.info.backend_pid).parent()
    if server is None:
        raise RuntimeError("the server is not on this machine")
    own, ended = psutil.Process().cpu_times(), server.cpu_times()
    living = sum(map(_processor_seconds, server.children()))
    return own.user + own.system + ended.children_user + ended.children_system + living


def _processor_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system
