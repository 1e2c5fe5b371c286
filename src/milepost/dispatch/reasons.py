"""Why an attempt failed, in words."""


def one_line(reason: str) -> str:
    """Return a reason without its line breaks: it stands in tables, logs and answers that have one line for it."""
    if reason.isprintable():
        return reason
    return " ".join(filter(None, map(str.strip, reason.splitlines())))
