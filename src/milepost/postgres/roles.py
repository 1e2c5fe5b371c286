"""The roles that users need in the database: a reader, an appender, a worker and an operator."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import fill
from typing import Literal

from psycopg import sql

from milepost.postgres.statements import in_schema

ObjectKind = Literal["table", "sequence", "function"]

MAX_ROLE_NAME_BYTES = 63
"""What PostgreSQL keeps of a name."""
LINE_CHARACTERS = 115


@dataclass(frozen=True)
class DatabaseRight:
    """One privilege on one thing in the schema. A function is given with the types of its arguments."""

    kind: ObjectKind
    name: str
    privilege: str

    def __str__(self) -> str:
        return f"{self.privilege} on {self.name.partition('(')[0]}"


@dataclass(frozen=True)
class DatabaseRole:
    """A kind of user. None includes another: each has all that it needs."""

    name: str
    may: str
    """For people: this user may …"""
    rights: frozenset[DatabaseRight]
    own: frozenset[DatabaseRight]
    """Those that no smaller role has. Who has one of them is meant to be this, or something larger."""

    @property
    def titled(self) -> str:
        """The name with its article."""
        return f"{'an' if self.name[0] in 'ao' else 'a'} {self.name}"


def _table_rights(privileges: str, names: str) -> frozenset[DatabaseRight]:
    return frozenset(
        DatabaseRight("table", name, privilege) for privilege in privileges.split(", ") for name in names.split()
    )


LOG_TABLES = "messages streams horizon identity migrations server_life sleeps"
PROGRESS_TABLES = (
    "subscriptions definitions cursors lanes workers serving reports attending nodes deliveries counts replays "
    "memories leaps followed settled"
)
SERVER_TABLES = "tokens ended_sessions"

_READER_RIGHTS = _table_rights("select", f"{LOG_TABLES} {PROGRESS_TABLES}") | {
    DatabaseRight("sequence", "messages_position_seq", "select"),
    DatabaseRight("function", "life()", "execute"),
    DatabaseRight("function", "mark_sleep(interval, interval)", "execute"),
}
_APPENDER_RIGHTS = _table_rights("select", "migrations identity") | {
    DatabaseRight("function", "write(text, jsonb, bigint, boolean)", "execute")
}
_WORKER_RIGHTS = (
    _READER_RIGHTS
    | _APPENDER_RIGHTS
    | _table_rights("update", "horizon")
    | _table_rights("insert, update", "subscriptions definitions")
    | _table_rights("insert, delete", "cursors")
    | _table_rights(
        "insert, update, delete",
        "lanes workers serving reports attending nodes deliveries counts replays leaps followed settled",
    )
    | {DatabaseRight("sequence", "epochs", "usage")}
)
_OPERATOR_RIGHTS = (
    _WORKER_RIGHTS
    | _table_rights("delete", "subscriptions")
    | _table_rights("insert, update, delete", "memories")
    | _table_rights("update", "server_life")
    | _table_rights("select, insert, update, delete", SERVER_TABLES)
)

READER = DatabaseRole(
    "reader",
    "read and follow messages, and look at subscriptions",
    _READER_RIGHTS,
    _READER_RIGHTS - _APPENDER_RIGHTS,
)
APPENDER = DatabaseRole("appender", "append", _APPENDER_RIGHTS, _APPENDER_RIGHTS - _READER_RIGHTS)
WORKER = DatabaseRole(
    "worker",
    "read, append, and run subscriptions, consumers and pulls",
    _WORKER_RIGHTS,
    _WORKER_RIGHTS - _READER_RIGHTS - _APPENDER_RIGHTS,
)
OPERATOR = DatabaseRole(
    "operator",
    "do what a worker may, move, replay and delete subscriptions, make tokens and serve",
    _OPERATOR_RIGHTS,
    _OPERATOR_RIGHTS - _WORKER_RIGHTS,
)
ROLES = {role.name: role for role in (READER, APPENDER, WORKER, OPERATOR)}
"""By their names, each after those whose work it can do."""

# No name stands in a comment: there may be a new line in one.
_HEADER_SQL = """\
-- Lets users in, as {titled}. Run it as the owner of the schema, who
-- has to be allowed to create roles, and again after each migration. Then say who is what:
--     grant milepost_worker to shop;
begin;
"""
_ROLE_SQL = """
-- May {may}.
do $$
begin
    if not exists (select from pg_roles where rolname = {literal}) then
        create role {role} nologin;
    end if;
end $$;
revoke all on all tables in schema :"schema" from {role};
revoke all on all sequences in schema :"schema" from {role};
revoke all on all functions in schema :"schema" from {role};
grant usage on schema :"schema" to {role};
"""
_STATISTICS_SQL = """\
-- It sees who holds the horizon. That is for a superuser to allow, or who may grant this role.
do $$
begin
    grant pg_read_all_stats to {role};
exception when insufficient_privilege then
    raise warning 'pg_read_all_stats was not granted to %: it does not see who holds the horizon', {literal};
end $$;
"""


def role_name(role: DatabaseRole, prefix: str) -> str:
    """Return what a role is called in the database. Raise ValueError where that is no name."""
    name = f"{prefix}_{role.name}"
    if not prefix or "\0" in name or len(name.encode()) > MAX_ROLE_NAME_BYTES:
        most = MAX_ROLE_NAME_BYTES - len(role.name) - 1
        raise ValueError(f"prefix {prefix!r}: 1 to {most} bytes are wanted, for a role called {name!r}")
    return name


def roles_sql(schema: str, prefix: str, roles: Iterable[DatabaseRole]) -> str:
    """Return the SQL that makes roles, and gives each what it needs and nothing else. It can be run again."""
    roles = list(roles)
    *first, last = [role.titled for role in roles]
    parts = [_HEADER_SQL.format(titled=f"{', '.join(first)} and {last}" if first else last)]
    for role in roles:
        name = role_name(role, prefix)
        quoted = sql.Identifier(name).as_string(None)
        words = {"may": role.may, "role": quoted, "literal": sql.Literal(name).as_string(None)}
        parts += [_ROLE_SQL.format(**words), *(grant.replace(':"role"', quoted) for grant in _grants(role))]
        if role is OPERATOR:
            parts.append(_STATISTICS_SQL.format(**words))
    return in_schema("".join([*parts, "\ncommit;\n"]), schema)


def _grants(role: DatabaseRole) -> Iterator[str]:
    """One statement for all things of a kind on which a role has the same privileges."""
    privileges: dict[tuple[ObjectKind, str], list[str]] = {}
    for right in role.rights:
        privileges.setdefault((right.kind, right.name), []).append(right.privilege)
    names: dict[tuple[ObjectKind, str], list[str]] = {}
    for (kind, name), several in sorted(privileges.items()):
        names.setdefault((kind, ", ".join(sorted(several, key=_privilege_order))), []).append(f':"schema".{name}')
    for (kind, together), alike in sorted(names.items(), reverse=True):
        text = f'grant {together} on {kind} {", ".join(alike)} to :"role";'
        wrapped = fill(
            text, LINE_CHARACTERS, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        yield f"{wrapped}\n"


def _privilege_order(privilege: str) -> int:
    return ("select", "insert", "update", "delete", "usage", "execute").index(privilege)
