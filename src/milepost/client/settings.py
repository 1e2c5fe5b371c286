"""The options of a subscription as they are sent."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from milepost.dispatch.retry import Retry
from milepost.engine.order import ByProperty, by_correlation
from milepost.engine.start import Start


def sent(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that the library takes, as JSON has them."""
    return {name: _CONVERSIONS[name](value) if name in _CONVERSIONS else value for name, value in options.items()}


def place(start: Start) -> str | int:
    """A place in the log."""
    return start.isoformat() if isinstance(start, datetime) else start


def _retry(retry: Retry) -> dict[str, Any]:
    return {name: value for name, value in asdict(retry).items() if name != "rules"}


def _order(order: Any) -> Any:
    if isinstance(order, ByProperty):
        return {"property": order.name}
    return "correlation" if order is by_correlation else order


_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "retry": _retry,
    "checkpoint": asdict,
    "ordered_by": _order,
    "start": place,
    "category": lambda names: names if names is None or isinstance(names, str) else list(names),
    "stream": lambda names: names if names is None or isinstance(names, str) else list(names),
    "types": lambda names: names if names is None or isinstance(names, str) else list(names),
}
