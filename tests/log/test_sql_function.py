"""Appending in SQL, `milepost.append(...)` and `append_messages(...)`: from psql, a trigger, another language."""

import re
import subprocess
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from milepost import Milepost
from servers import embedded_binaries
from support import MakeMilepost, qualified

ID = UUID("00000000-0000-4000-8000-000000000001")
OTHER_ID = UUID("00000000-0000-4000-8000-000000000002")


@pytest.fixture(params=["embedded", "postgresql_15"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Both servers: what is tested here rests on what each of them does."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def mp(make_mp: MakeMilepost) -> Iterator[Milepost]:
    mp = make_mp()
    with mp.sync:
        yield mp


class Session:
    """A program that knows SQL only; `{}` is the schema."""

    def __init__(self, mp: Milepost) -> None:
        self._mp = mp
        self.connection = psycopg.connect(mp.url, row_factory=dict_row)

    def run(self, statement: str, *parameters: Any) -> Any:
        """The first row, if there is one."""
        cursor = self.connection.execute(qualified(statement, self._mp), parameters or None)
        return cursor.fetchone() if cursor.description else None

    def append(self, arguments: str, *parameters: Any) -> dict[str, Any]:
        """What a call for one message says."""
        row: dict[str, Any] = self.run(f"select * from {{}}.append({arguments})", *parameters)
        return row

    def append_messages(self, arguments: str, *parameters: Any) -> dict[str, Any]:
        """What a call for an array of messages says."""
        row: dict[str, Any] = self.run(f"select * from {{}}.append_messages({arguments})", *parameters)
        return row


@pytest.fixture
def session(mp: Milepost) -> Iterator[Session]:
    session = Session(mp)
    with session.connection:
        yield session


def psql(mp: Milepost, script: str) -> str:
    """What psql prints for a script, a line a row; an error is part of it, with its SQLSTATE."""
    schema = mp.settings["schema"].value
    done = subprocess.run(
        [embedded_binaries() / "psql", "-XAtq", "-v", "VERBOSITY=verbose", "-v", f"schema={schema}", "-d", mp.url],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


# -- psql


def test_one_message_from_psql(mp: Milepost) -> None:
    shown = psql(mp, """select * from :"schema".append('order-1', 'order.placed', '{"amount": 3}');""")
    assert shown == "order-1|appended|1|1|\n"
    shown = psql(
        mp,
        """select * from :"schema".append('order-1', 'order.paid', 'null', properties => '{"amount": 3}',
            metadata => '{"correlation_id": "a"}', id => '00000000-0000-4000-8000-000000000001',
            expected => 1, wake => false);""",
    )
    assert shown == "order-1|appended|2|2|\n"

    placed, paid = mp.sync.read("order-1")
    assert (placed.type, placed.data, placed.properties, placed.metadata) == (
        "order.placed",
        {"amount": 3},
        {},
        {},
    )
    assert (paid.id, paid.data, paid.properties) == (ID, None, {"amount": 3})
    assert paid.metadata == {"correlation_id": "a"}


def test_several_messages_from_psql(mp: Milepost) -> None:
    messages = """'[{"type": "placed", "data": {"amount": 3}, "properties": {"amount": 3}}, {"type": "paid"}]'"""
    append = f"""select * from :"schema".append_messages('order-1', {messages}"""
    assert psql(mp, f"{append});") == "order-1|appended|2|2|\n"
    assert psql(mp, f"{append}, 2);") == "order-1|appended|4|4|\n"
    assert psql(mp, f"{append}, expected => 2);") == "order-1|wrong_version|4||\n"
    assert [message.type for message in mp.sync.read("order-1")] == ["placed", "paid"] * 2
    assert next(mp.sync.read("order-1")).properties == {"amount": 3}


def test_a_transaction_of_psql(mp: Milepost) -> None:
    append = """select outcome from :"schema".append('order-1', 'placed', '1');"""
    assert psql(mp, f"begin; {append} rollback;") == "appended\n"
    assert mp.sync.last("order-1") == 0
    assert psql(mp, f"begin; {append} {append} commit;") == "appended\nappended\n"
    assert mp.sync.last("order-1") == 2


def test_psql_shows_what_is_wrong(mp: Milepost) -> None:
    shown = psql(mp, """select * from :"schema".append('order-1', 'placed', '1', '{"amount": 1.5}');""")
    assert "ERROR:  22023: properties: at most 255 flat integers of 64 bits, strings or booleans" in shown


# -- Outcomes


def test_a_wrong_version_is_an_outcome(mp: Milepost, session: Session) -> None:
    nothing_there = {"stream": "order-1", "outcome": "wrong_version", "version": 0, "position": None, "id": None}
    assert session.append("'order-1', 'placed', '1', expected => 1") == nothing_there
    assert session.append("'order-1', 'placed', '1', expected => -1") == nothing_there
    assert session.append("'order-1', 'placed', '1', expected => 0")["outcome"] == "appended"
    assert session.append("'order-1', 'placed', '1', expected => 0") == nothing_there | {"version": 1}
    assert session.append("'order-1', 'placed', '1', expected => -1")["version"] == 2
    session.connection.commit()
    assert mp.sync.last("order-1") == 2


def test_a_known_id_is_an_outcome(mp: Milepost, session: Session) -> None:
    first = session.append("'order-1', 'placed', '1', id => %s", ID)
    assert session.append("'order-1', 'placed', '1', id => %s, expected => 0", ID) == first | {
        "outcome": "duplicate"
    }
    in_the_way = {"stream": "order-1", "version": None, "position": None, "id": ID}
    assert session.append("'order-1', 'placed', '2', id => %s", ID) == in_the_way | {"outcome": "id_reused"}
    both = Jsonb([{"type": "placed", "data": 1, "id": str(ID)}, {"type": "paid", "id": str(OTHER_ID)}])
    assert session.append_messages("'order-1', %s", both) == in_the_way | {"outcome": "ids_partly_known"}
    session.connection.commit()
    assert mp.sync.last("order-1") == 1


# -- What is refused

INVALID_TYPES: list[dict[str, Any]] = [{}, {"type": None}, {"type": ""}, {"type": "ü" * 257}]
INVALID_METADATA = [1, "a", [1]]
INVALID_PROPERTIES: list[Any] = [
    *(1, "a", [], [1], {"a": 1.5}, {"a": 2**63}, {"a": -(2**63) - 1}, {"a": None}, {"a": {"b": 1}}, {"a": [1]}),
    *({"": 1}, {"1a": 1}, {"a b": 1}, {"ä": 1}, {"a\n": 1}, {"and": 1}, {"true": 1}, {"a" * 513: 1}),
    *({"good": 1, "bad-name": 1}, {f"p{number}": number for number in range(256)}),
]


def test_invalid_messages_are_refused(mp: Milepost, session: Session) -> None:
    cases = [
        *((message, "type: 1 to 512 bytes are wanted") for message in INVALID_TYPES),
        *(
            ({"type": name}, f"type: '{re.escape(name)}' has \\* or >, which stand")
            for name in ("a.*", "a>b", ">")
        ),
        *(({"type": "a", "metadata": m}, "metadata: a JSON object is wanted") for m in INVALID_METADATA),
        *(({"type": "a", "properties": p}, "properties: at most 255 flat integers") for p in INVALID_PROPERTIES),
    ]
    for message, problem in cases:
        with pytest.raises(errors.InvalidParameterValue, match=problem) as refused:
            session.append_messages("'order-1', %s", Jsonb([{"type": "good"}, message]))
        assert refused.value.sqlstate == "22023"
        session.connection.rollback()
    assert mp.sync.last("order-1") == 0


@pytest.mark.shard(
    "variants",
    fast=["embedded-messages0", "embedded-messages2", "postgresql_15-messages0", "postgresql_15-messages2"],
)
@pytest.mark.parametrize("messages", [[], {}, {"type": "a"}, 1, None])
def test_messages_are_an_array(session: Session, messages: Any) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="messages: an array of at least one message"):
        session.append_messages("'order-1', %s::jsonb", Jsonb(messages) if messages is not None else None)


@pytest.mark.parametrize("stream", [None, "", "-1", "x" * 513])
def test_a_name_that_no_stream_can_have(session: Session, stream: str | None) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="stream: "):
        session.append("%s, 'a', '1'", stream)


def test_one_id_twice_in_an_append(session: Session) -> None:
    messages = Jsonb([{"type": "a", "id": str(ID)}, {"type": "a", "id": str(ID)}])
    with pytest.raises(errors.InvalidParameterValue, match="twice"):
        session.append_messages("'thing-1', %s", messages)


def test_null_for_properties_and_metadata_means_none(mp: Milepost, session: Session) -> None:
    session.append("'thing-1', 'a', '1', properties => null, metadata => null")
    session.connection.commit()
    [message] = mp.sync.read("thing-1")
    assert (message.properties, message.metadata) == ({}, {})


def test_a_whole_number_with_a_fraction_is_no_property(session: Session) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="properties: "):
        session.append("""'thing-1', 'a', '1', '{{"a": 1.0}}'""")


def test_what_is_at_its_limit_is_accepted(mp: Milepost, session: Session) -> None:
    properties: dict[str, Any] = {f"p{number}": number for number in range(252)}
    properties |= {"a" * 512: 2**63 - 1, "b.c_1": -(2**63), "d": True}
    assert session.append("'order-1', %s, '1', %s", "ü" * 256, Jsonb(properties))["outcome"] == "appended"
    session.connection.commit()
    (message,) = mp.sync.read("order-1")
    assert (message.type, message.properties) == ("ü" * 256, properties)


# -- A trigger

ANNOUNCE = """
create table {0}.orders (id bigint primary key, amount bigint not null);
create function {0}.announce() returns trigger language plpgsql as $$
declare
    appended {0}.appended;
begin
    appended := {0}.append(
        'order-' || new.id, 'order.placed', to_jsonb(new),
        properties => jsonb_build_object('amount', new.amount), expected => 0);
    if appended.outcome <> 'appended' then
        raise exception 'order % is at version % already', new.id, appended.version;
    end if;
    return new;
end $$;
create trigger announce after insert on {0}.orders for each row execute function {0}.announce();
"""


def test_a_trigger_appends_with_the_row(mp: Milepost, session: Session) -> None:
    session.run(ANNOUNCE)
    session.connection.commit()
    session.run("insert into {}.orders values (1, 30), (2, 40)")
    session.connection.rollback()
    assert list(mp.sync.read()) == []
    assert session.run("select count(*) as rows from {}.orders") == {"rows": 0}

    session.run("insert into {}.orders values (1, 30), (2, 40)")
    assert mp.sync.last("order-1") == 0
    session.connection.commit()
    placed = list(mp.sync.read(category="order"))
    assert [message.data for message in placed] == [{"id": 1, "amount": 30}, {"id": 2, "amount": 40}]
    assert [message.properties for message in placed] == [{"amount": 30}, {"amount": 40}]


def test_a_trigger_refuses_the_row_for_an_outcome(mp: Milepost, session: Session) -> None:
    session.run(ANNOUNCE)
    assert session.append("'order-2', 'order.placed', '0'")["version"] == 1
    session.connection.commit()
    with pytest.raises(errors.RaiseException, match="order 2 is at version 1 already"):
        session.run("insert into {}.orders values (1, 30), (2, 40)")
    session.connection.rollback()
    assert session.run("select count(*) as rows from {}.orders") == {"rows": 0}
    assert mp.sync.last("order-1") == 0


def test_the_position_is_the_one_that_readers_see(mp: Milepost, session: Session) -> None:
    appended = session.append_messages("'order-1', %s", Jsonb([{"type": "a"}, {"type": "b", "id": str(uuid4())}]))
    session.connection.commit()
    assert [message.position for message in mp.sync.read("order-1")][-1] == appended["position"] == mp.sync.head()
