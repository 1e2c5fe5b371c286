"""Checks of what the user may do that the doctor runs as."""

from collections.abc import Sequence
from typing import LiteralString

from milepost.cli.checks.finding import Examined, Finding, Verdict
from milepost.log.rights import APPENDER, OPERATOR, READER, WORKER, Right, Role

NAMED = 6
"""Missing rights that are named; of the others it is said how many they are."""
SEES_OTHERS: LiteralString = "select pg_has_role('pg_read_all_stats', 'usage')"
"""Whether this user sees what others do, and since when."""

_ROLES = (OPERATOR, WORKER, READER, APPENDER)
# Half a worker starts its subscriptions, and they fail. Half of another may be meant.
_URGENT = (WORKER, READER, APPENDER, OPERATOR)


async def rights(examined: Examined) -> list[Finding]:
    """Whether this user can do the work of one of the roles that there are statements for, and of which."""
    if examined.elsewhere is None:
        return [await _judged(examined, _ROLES, "this user")]
    # Of the log's database a program needs to read and append only, and a worker is one where progress is.
    return [
        await _judged(examined, (READER, APPENDER), "this user, in the log's database,"),
        await _judged(examined.elsewhere, (OPERATOR, WORKER), "this user, in that of progress,"),
    ]


async def _judged(examined: Examined, roles: Sequence[Role], who: str) -> Finding:
    held = await _held(examined)
    able: list[Role] = []
    for role in roles:
        # An operator need not hear that it can read as well.
        if role.rights <= held and not any(role.rights <= other.rights for other in able):
            able.append(role)
    for role in sorted(roles, key=_URGENT.index):
        if role.own & held and not role.rights <= held:
            return Finding("rights", _verdict(role), f"{who} {_partly(examined.schema, role, held)}")
    if able:
        return Finding("rights", "ok", f"{who} may {'; '.join(role.may for role in able)}")
    needed = " or ".join(f"{examined.schema}_{role.name}" for role in reversed(roles))
    words = f"{who} may do nothing here: have the owner run `milepost schema roles`, and grant it {needed}"
    return Finding("rights", "warning", words)


def _verdict(role: Role) -> Verdict:
    return "problem" if role is WORKER else "warning"


def _partly(schema: str, role: Role, held: frozenset[Right]) -> str:
    missing = sorted(map(str, role.rights - held))
    named = ", ".join(missing[:NAMED])
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return (
        f"has a part of the rights of {role.titled} and lacks {named}{more}: have the owner run what "
        f"`milepost schema roles` prints, and grant it {schema}_{role.name}"
    )


async def _held(examined: Examined) -> frozenset[Right]:
    """All rights of any role that this user has."""
    every = sorted(OPERATOR.rights, key=str)
    rows = await examined.ask(
        "rights",
        kinds=[right.kind for right in every],
        names=[right.name for right in every],
        privileges=[right.privilege for right in every],
    )
    return frozenset(right for right, (is_held,) in zip(every, rows, strict=True) if is_held)
