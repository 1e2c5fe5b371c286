"""What a server was asked for, from its log."""

from servers import Server

SETTINGS = {"log_statement": "all"}
"""Of a server that writes down every statement."""


def statements(server: Server) -> list[str]:
    """The statements that a server was asked for, cut to their first line."""
    lines = (server.folder / "log").read_text().splitlines()
    return [line for line in lines if "LOG:  statement: " in line or "LOG:  execute " in line]
