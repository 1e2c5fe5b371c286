"""Users of a schema as `milepost schema roles` makes them: a fixture for whoever tests what each may do."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from milepost.postgres import roles

User = Callable[[str], str]


@pytest.fixture
def user(database_url: str, schema: str) -> Iterator[User]:
    """Return a function that gives the address for a new user who has one of the roles."""
    made = [sql.Identifier(f"{schema}_{name}") for name in roles.ROLES]
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(roles.roles_sql(schema, schema, roles.ROLES.values()).encode())

        def user(role: str) -> str:
            name = f"{schema}_a_{role}"
            login, group = sql.Identifier(name), sql.Identifier(f"{schema}_{role}")
            admin.execute(sql.SQL("create role {0} login; grant {1} to {0}").format(login, group))
            made.append(login)
            return make_conninfo(database_url, user=name)

        yield user
        for role in made:
            admin.execute(sql.SQL("drop owned by {0}; drop role {0}").format(role))
