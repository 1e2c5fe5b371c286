"""An example of each operation: its body and its answer, as they are shown in the description."""

from typing import Any, NamedTuple


class Example(NamedTuple):
    """What is sent, and what is answered."""

    request: Any = None
    answer: Any = None


_ID = "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f"
_MESSAGE = {
    "position": 81244,
    "stream": "order-42",
    "version": 4,
    "id": _ID,
    "type": "order.placed",
    "time": "2026-03-01T12:00:00.250000Z",
    "data": {"order": 42, "amount": 120},
    "properties": {"amount": 120, "region": "EU"},
    "metadata": {"correlation_id": "7d1f"},
}
_TO_APPEND = {
    "type": "order.placed",
    "data": {"order": 42, "amount": 120},
    "properties": {"amount": 120, "region": "EU"},
    "metadata": {"correlation_id": "7d1f"},
    "id": _ID,
}
_APPENDED = {"stream": "order-42", "version": 4, "position": 81244, "duplicate": False, "count": 1}
_PLAN = {"position": 81000, "again": 244, "passed_over": 0, "rows": {"parked": 2}}
_DECIDED = {"moved": 1, "refused": {"81250": "it is running: wait for how that ends"}}

_OTHER = "3-81250-0cc175b9c0f1b6a831c399e269772661"
_CLAIM = "3-81244-92eb5ffee6ae2fec3ad71c777531578f"

EXAMPLES: dict[str, Example] = {
    "append": Example(_TO_APPEND, _APPENDED),
    "append_many": Example(
        [
            {"stream": "order-42", "messages": [_TO_APPEND], "expected": 3},
            {"stream": "stock-7", "messages": [{"type": "stock.reserved", "data": {"pieces": 2}}]},
        ],
        {
            "appended": [
                _APPENDED,
                {"stream": "stock-7", "version": 12, "position": 81245, "duplicate": False, "count": 1},
            ]
        },
    ),
    "read_stream": Example(answer={"messages": [_MESSAGE], "next": 4, "more": False}),
    "read": Example(answer={"messages": [_MESSAGE], "next": 81244, "more": False}),
    "last": Example(answer={"stream": "order-42", "version": 4}),
    "head": Example(answer={"position": 81244}),
    "list_nodes": Example(
        answer={
            "nodes": [
                {
                    "address": "https://milepost-1.internal:8480",
                    "version": "milepost 0.1.0",
                    "since": "2026-11-15T09:12:44.180Z",
                }
            ]
        }
    ),
    "plan_move": Example(answer=_PLAN),
    "plan_replay": Example(answer=_PLAN),
    "create_subscription": Example(
        {
            "name": "shipping",
            "category": "order",
            "where": 'region == "EU"',
            "start": "now",
            "ordered_by": {"property": "customer"},
            "retry": {"attempts": 5, "delay": 10},
        }
    ),
    "update_subscription": Example({"where": 'region == "EU" && amount >= 100', "timeout": 60}),
    "move_subscription": Example({"to": "2026-03-01T12:00:00Z"}, {"forgotten": 2}),
    "replay_subscription": Example({"start": 81000, "end": 81244}, {"again": 244}),
    "list_deliveries": Example(
        answer={
            "deliveries": [
                {
                    "position": 81244,
                    "state": "parked",
                    "key": "order-42",
                    "attempts": 11,
                    "total": 11,
                    "size": 51,
                    "since": "2026-03-01T12:34:56.500000Z",
                    "due": None,
                    "reason": "KeyError: 'amount'",
                    "error": "Traceback (most recent call last): …",
                    "consumer": None,
                    "waiting_behind": 2,
                    "message": _MESSAGE,
                }
            ],
            "next": 81244,
            "more": False,
        }
    ),
    "count_deliveries": Example(answer={"count": 2}),
    "retry_deliveries": Example({"positions": [81244, 81250]}, _DECIDED),
    "skip_deliveries": Example({"up_to": 81250, "limit": 100, "reason": "KeyError"}, _DECIDED),
    "pull": Example(
        answer={
            "deliveries": [
                {
                    "token": _CLAIM,
                    "attempt": 1,
                    "replay": False,
                    "expires": "2026-03-01T12:05:00.250000Z",
                    "message": _MESSAGE,
                }
            ],
            "more": False,
        }
    ),
    "settle": Example(
        {
            "ack": [_CLAIM],
            "retry": {_OTHER: "the printer is on fire"},
            "after": 60,
            "id": "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f",
        },
        {"moved": [_CLAIM], "refused": [_OTHER]},
    ),
    "progress": Example(answer={"stream": "order-42", "handled": 3, "known": 4, "lagging": True, "exact": True}),
    "check_filter": Example(
        {"where": '(amount>=100) and region = "EU"'},
        {"canonical": 'amount >= 100 && region == "EU"', "properties": ["amount", "region"]},
    ),
    "evaluate_filter": Example({"where": "amount >= 100", "properties": {"amount": 120}}, {"matches": True}),
    "explain_filter": Example(
        {"where": "amount >= 100", "properties": {"amount": 120}},
        {
            "matches": True,
            "explanation": {
                "text": "amount >= 100",
                "status": "value",
                "value": True,
                "children": [
                    {"text": "amount", "status": "value", "value": 120, "children": []},
                    {"text": "100", "status": "value", "value": 100, "children": []},
                ],
            },
        },
    ),
    "healthz": Example(answer={"status": "ok", "reasons": []}),
    "readyz": Example(answer={"status": "ok", "reasons": []}),
}
