"""The error of a subscription that there is not: it says which one may be meant, in whatever group that is."""

from collections.abc import Collection

from milepost.errors import UnknownSubscription
from milepost.suggestions import closest

LISTED = 10
"""How many subscriptions are named where none is like the one that was asked for."""


def unknown_subscription(
    group: str | None, name: str | None, known: Collection[tuple[str, str]], *, otherwise: str | None = None
) -> UnknownSubscription:
    """Return the error of a group and a name that no subscription has; `known` has those of all that there are.

    `group` or `name` is None where any was asked for. `otherwise` ends the sentence where none is like it; without
    it that lists what there is.
    """
    asked = f"{group or '*'}/{name or '*'}"
    if meant := _meant(group, name, known):
        return UnknownSubscription(asked, f": did you mean {meant!r}?")
    return UnknownSubscription(asked, otherwise or _there_is(known))


def _meant(group: str | None, name: str | None, known: Collection[tuple[str, str]]) -> str | None:
    """The address that is meant: the name tells more than the group, which one leaves out more easily."""
    if name is None:
        like = closest(group or "", {each for each, _ in known})
        return None if like is None else f"{like}/*"
    names = {each for _, each in known}
    like = name if name in names else closest(name, sorted(names))
    if like is None:
        return closest(f"{group or '*'}/{name}", sorted(f"{each}/{of}" for each, of in known))
    groups = sorted(each for each, of in known if of == like)
    own = group if group in groups else closest(group or "", groups) or groups[0]
    return f"{own}/{like}"


def _there_is(known: Collection[tuple[str, str]]) -> str:
    if not known:
        return "; there is none at all"
    addresses = sorted(f"{group}/{name}" for group, name in known)
    more = len(addresses) - LISTED
    return f"; there is {', '.join(addresses[:LISTED])}{f' and {more:,} more' if more > 0 else ''}"
