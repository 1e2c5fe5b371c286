"""`milepost config`: every option, its value and where it came from."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from milepost import embedded
from milepost.cli.options import Json, Schema, Url, settings
from milepost.cli.output import show, table, visible, write_json
from milepost.options import OPTIONS

_SECRETS = ("password", "sslpassword", "oauth_client_secret")


def config(as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Prints each option: its value, where it came from, its environment variable, what it is for.

    Passwords are not shown.

    **Example:** `MILEPOST_POOL_SIZE=20 milepost config`
    """
    found = [_described(name, setting.value, setting.source) for name, setting in settings(url, schema).items()]
    if as_json:
        write_json(found)
        return
    rows = table("option", "value", "from", "variable", "what it is for")
    for option in found:
        value = "" if option["value"] is None else visible(str(option["value"]))
        rows.add_row(option["name"], value, option["source"], option["variable"] or "in code", option["help"])
    show(rows)


def _described(name: str, value: Any, source: str) -> dict[str, Any]:
    option = OPTIONS[name]
    return {
        "name": name,
        "value": without_password(value) if name in ("url", "progress") and value is not None else value,
        "source": {"given": "command line"}.get(source, source),
        "variable": option.variable,
        "help": option.help,
    }


def without_password(url: str) -> str:
    """The address with stars for what is secret in it."""
    if embedded.is_embedded(url):
        return url
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return "not an address that PostgreSQL understands"
    if "@" in str(parts.get("host") or ""):
        # Most likely the rest of a password, which must not be shown either.
        return "hidden: an @ in a password is written %40"
    secret = {name: "***" for name in _SECRETS if parts.get(name)}
    # Rebuilt from its parts, so that what is hidden does not depend on how it was written.
    return make_conninfo("", **{**parts, **secret}) if secret else url
