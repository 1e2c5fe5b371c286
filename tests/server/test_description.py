"""The description: complete, true, and attacked with what it allows and what it does not."""

import asyncio
from contextlib import suppress
from typing import Any, get_args

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from jsonschema_rs import Draft202012Validator
from litestar.handlers import HTTPRouteHandler
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from milepost import Milepost, NewMessage
from milepost.dispatch.routing.routes import STRATEGIES
from milepost.server.description import EXAMPLES
from milepost.server.routes import make_application
from server.websocket.conftest import Serve


@pytest.fixture(scope="module")
def handlers() -> dict[str, HTTPRouteHandler]:
    """The handlers of an application of this module's own, by what they are called in the description.

    Those that `HANDLERS` of each module has stay as they are: Litestar copies them, and cannot copy one of which
    the signature was asked for.
    """
    return {
        handler.operation_id: handler
        for route in make_application().routes
        for handler in getattr(route, "route_handlers", ())
        if handler.resolve_include_in_schema()
    }


@pytest.fixture
async def description(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    found: dict[str, Any] = answer.json()
    return found


def operations(description: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in description["paths"].values() for operation in path.values()]


def test_it_says_what_it_is(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1")
    assert description["info"]["title"] == "Milepost"
    assert description["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}


def test_every_operation_is_described(description: dict[str, Any], handlers: dict[str, HTTPRouteHandler]) -> None:
    found = operations(description)
    assert sorted(operation["operationId"] for operation in found) == sorted(handlers)
    for operation in found:
        assert operation["description"].startswith(operation["summary"])
        assert operation["tags"]
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (operation["operationId"], parameter["name"])


def test_every_value_is_described(description: dict[str, Any]) -> None:
    for name, schema in description["components"]["schemas"].items():
        assert schema["description"], name


def test_fields_have_the_words_of_their_source(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    assert schemas["SubscriptionInfo"]["properties"]["stalled"]["description"] == "Why it is stalled, if it is."
    assert schemas["Delivery"]["properties"]["size"]["description"] == "Of its message, in bytes."


@pytest.mark.shard(
    "variants",
    fast=["SubscriptionToCreate-strategy-words0", "RetryPolicy-factor-words4", "DeliveriesToDecide-up_to-words6"],
)
@pytest.mark.parametrize(
    ("name", "field", "words"),
    [
        ("SubscriptionToCreate", "strategy", {"enum": list(STRATEGIES)}),
        ("SubscriptionToCreate", "on_park", {"enum": ["block", "continue"]}),
        ("SubscriptionToCreate", "timeout", {"exclusiveMinimum": 0}),
        ("SubscriptionToCreate", "lease", {"minimum": 1}),
        ("RetryPolicy", "factor", {"minimum": 1}),
        ("Settlements", "timeout", {"exclusiveMinimum": 0}),
        ("DeliveriesToDecide", "up_to", {"minimum": 0}),
        ("DeliveriesToDecide", "limit", {"minimum": 0, "maximum": 10_000}),
        ("DeliveriesToDecide", "state", {"minItems": 1}),
    ],
)
def test_fields_say_what_is_taken(
    description: dict[str, Any], name: str, field: str, words: dict[str, Any]
) -> None:
    found = description["components"]["schemas"][name]["properties"][field]
    [chosen] = [choice for choice in found.get("anyOf", [found]) if choice.get("type") != "null"]
    assert words.items() <= chosen.items()


@pytest.mark.parametrize(
    ("operation_id", "name", "words"),
    [
        ("list_deliveries", "up_to", {"minimum": 0}),
        ("read", "before", {"minimum": 0}),
        ("pull", "timeout", {"exclusiveMinimum": 0}),
        ("append", "expected", {"minimum": 0}),
    ],
)
def test_parameters_say_what_is_taken(
    description: dict[str, Any], operation_id: str, name: str, words: dict[str, Any]
) -> None:
    [operation] = [each for each in operations(description) if each["operationId"] == operation_id]
    [parameter] = [each for each in operation["parameters"] if each["name"] == name]
    assert words.items() <= parameter["schema"].items()


@pytest.mark.shard("variants", fast=["beginning-True", "2026-03-01T12:00:00Z-True", "-1-False"])
@pytest.mark.parametrize(
    ("place", "is_one"),
    [
        ("beginning", True),
        ("now", True),
        ("0", True),
        ("2026-03-01T12:00:00Z", True),
        ("2026-03-01T12:00:00+01:00", True),
        ("2026-03-01", False),
        ("-1", False),
        ("", False),
        ("end", False),
    ],
)
async def test_a_place_is_described_as_it_is_taken(
    mp: Milepost, client: httpx.AsyncClient, description: dict[str, Any], place: str, is_one: bool
) -> None:
    await mp.create_subscription("shipping")
    [operation] = [each for each in operations(description) if each["operationId"] == "plan_move"]
    [schema] = [each["schema"] for each in operation["parameters"] if each["name"] == "to"]
    assert Draft202012Validator(schema, validate_formats=True).is_valid(place) is is_one
    answer = await client.get("/v1/subscriptions/default/shipping/move", params={"to": place})
    assert answer.status_code == (200 if is_one else 400)


@pytest.mark.parametrize(
    "path", ["/v1/messages?since=null", "/v1/messages?before=NULL", "/v1/messages?after=null"]
)
async def test_null_is_no_parameter(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 400


async def test_null_is_a_text(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/messages", params={"stream": "null", "types": ["null"], "where": "null"})
    assert answer.status_code == 200, answer.text


def test_every_operation_tells_its_problems(description: dict[str, Any]) -> None:
    for operation in operations(description):
        assert "400" in operation["responses"]
        assert "500" not in operation["responses"]
        if "security" in operation:
            assert {"401", "403", "429", "503"} <= operation["responses"].keys()
        for status, answer in operation["responses"].items():
            if status >= "400" and operation["operationId"] != "readyz":
                assert list(answer["content"]) == ["application/problem+json"]


def test_examples_fit_what_they_are_examples_of(
    description: dict[str, Any], handlers: dict[str, HTTPRouteHandler]
) -> None:
    assert EXAMPLES.keys() <= handlers.keys()
    for name, example in EXAMPLES.items():
        handler = handlers[name]
        if example.request is not None:
            field = handler.parsed_fn_signature.parameters["data"]
            msgspec.json.decode(msgspec.json.encode(example.request), type=field.annotation)
        if example.answer is not None:
            returned = handler.parsed_fn_signature.return_type.annotation
            wanted = next(iter(get_args(returned)), returned) if "Response" in str(returned) else returned
            msgspec.json.decode(msgspec.json.encode(example.answer), type=wanted)
    bodies = [operation for operation in operations(description) if "requestBody" in operation]
    assert len(bodies) > 8
    for operation in bodies:
        assert "example" in operation["requestBody"]["content"]["application/json"], operation["operationId"]


CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
    schemathesis.checks.negative_data_rejection,
    schemathesis.checks.unsupported_method,
    schemathesis.checks.allow_header_conformance,
]
REJECTED = ["400", "401", "403", "404", "405", "409", "413", "414", "415"]
"""How requests are answered that the description does not allow: what is too much has statuses of its own."""
PATIENCE = 60
"""Seconds that one request may take."""
QUICK, THOROUGH = 2, pytest.param(25, marks=pytest.mark.shard("hostile"))
"""Requests to each operation."""
BOUNDED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


# The server runs in this process: while hypothesis makes an example, it may draw a number of its own.
@pytest.mark.shard("hostile", fast=["positive-2"])
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", [QUICK, THOROUGH])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
async def test_what_the_description_allows_and_what_it_does_not(
    mp: Milepost, serve: Serve, mode: GenerationMode, examples: int
) -> None:
    """No request has an answer that is not described, and none is the server's own fault."""
    await mp.create_subscription("shipping")
    await mp.create_subscription("emails", tracking="all")
    await mp.append("order-1", [NewMessage("a", 1, properties={"amount": 1})] * 3)
    await asyncio.to_thread(attack, (await serve()).address, mode, examples)


def attack(address: str, mode: GenerationMode, examples: int) -> None:
    config = SchemathesisConfig.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": REJECTED}}})
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", config=config, timeout=PATIENCE)
    attacked = []
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        # One that goes on for ever cannot be waited for.
        if operation.definition.raw["operationId"] == "follow":
            continue
        # Some have nothing that could be wrong.
        with suppress(Unsatisfiable):
            send_all(operation.as_strategy(generation_mode=mode), examples)
            attacked.append(operation.label)
    assert len(attacked) > (25 if mode is GenerationMode.POSITIVE else 15), attacked


def send_all(strategy: Any, examples: int) -> None:
    @settings(BOUNDED, max_examples=examples)
    @given(case=strategy)
    def send(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=PATIENCE)

    send()
