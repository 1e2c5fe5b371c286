"""What a server was asked for, from its log."""

from servers import Server

SETTINGS = {"log_statement": "all"}
"""Of a server that writes down every statement."""
LOOK = "opened(g.id, g.number)"
"""Part of the statement with which a worker looks at its subscriptions, every two seconds."""
MOST = 20
"""Statements that a worker may ask for with each look, though it has nothing to do."""


def statements(server: Server) -> list[str]:
    """The statements that a server was asked for, cut to their first line."""
    lines = (server.folder / "log").read_text().splitlines()
    return [line for line in lines if "LOG:  statement: " in line or "LOG:  execute " in line]


def looks(asked: list[str]) -> list[int]:
    """The places of a worker's looks among statements."""
    return [place for place, statement in enumerate(asked) if LOOK in statement]


def idle(asked: list[str]) -> int:
    """How many of these a worker may have asked for without any work, however long it took."""
    return MOST * len(looks(asked))
