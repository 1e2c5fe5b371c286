"""Pydantic models: what was appended is read as the same, however a model is configured."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    RootModel,
    computed_field,
)
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from milepost import InvalidMessage, Message, Milepost, NewMessage

CAMEL = ConfigDict(alias_generator=to_camel)


class Item(BaseModel):
    model_config = CAMEL
    item_name: str
    unit_price: int = 0


class Placed(BaseModel):
    model_config = CAMEL
    order_id: int
    line_items: list[Item] = []


class PlacedByName(Placed):
    model_config = ConfigDict(populate_by_name=True)


class PlacedByAlias(Placed):
    model_config = ConfigDict(serialize_by_alias=True)


class OnlyByName(Placed):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)


class Strict(Placed):
    model_config = ConfigDict(strict=True, extra="forbid")
    placed_at: datetime

    @computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.line_items)


class TwoAliases(BaseModel):
    amount: int = Field(validation_alias="amountIn", serialization_alias="amountOut")
    only_in: int = Field(validation_alias=AliasChoices("a", "b"))
    only_out: int = Field(serialization_alias="c")
    deep: int = Field(validation_alias=AliasPath("list", 0))


class Clashing(BaseModel):
    """The alias of one field is the name of another."""

    id: int = Field(alias="messageId")
    customer_id: int = Field(alias="id")


class Within(BaseModel):
    clashing: Clashing


class Cat(BaseModel):
    model_config = CAMEL
    pet_type: Literal["cat"] = "cat"
    nine_lives: int = 9


class Dog(BaseModel):
    model_config = CAMEL
    pet_type: Literal["dog"] = "dog"
    four_legs: int = 4


class Owner(BaseModel):
    model_config = CAMEL
    the_pet: Annotated[Cat | Dog, Field(discriminator="pet_type")]
    as_text: Json[list[int]]


class Tree(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, defer_build=True)
    sub_trees: list["Tree"] = []
    leaf_count: int = 0


class Several(RootModel[list[Item]]):
    pass


class Typed(TypedDict):
    some_name: Annotated[int, Field(alias="someName")]


class HasTyped(BaseModel):
    typed_dict: Typed


MODELS = [
    Placed.model_validate({"orderId": 1, "lineItems": [{"itemName": "a", "unitPrice": 2}]}),
    PlacedByName(order_id=1, line_items=[Item.model_validate({"itemName": "a"})]),
    PlacedByAlias.model_validate({"orderId": 1, "lineItems": [{"itemName": "a"}]}),
    OnlyByName.model_validate({"order_id": 1}),
    Strict.model_validate({"orderId": 1, "placedAt": datetime(2026, 1, 2, tzinfo=UTC)}),
    TwoAliases.model_validate({"amountIn": 1, "b": 2, "only_out": 3, "list": [4]}),
    Clashing(messageId=1, id=2),
    Within(clashing=Clashing(messageId=1, id=2)),
    Owner.model_validate({"thePet": {"petType": "dog", "fourLegs": 3}, "asText": "[1, 2]"}),
    Tree.model_validate({"subTrees": [{"leafCount": 2}], "leafCount": 1}),
    Several.model_validate([{"itemName": "a"}]),
    HasTyped.model_validate({"typed_dict": {"someName": 1}}),
]


async def stored(mp: Milepost, message: Any) -> Message[Any]:
    """Return the message as it is read after it was appended."""
    await mp.append("thing-1", message)
    return [found async for found in mp.read("thing-1")][-1]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
async def test_it_comes_back(mp: Milepost, model: BaseModel) -> None:
    mp.message("thing.happened")(type(model))
    message = await stored(mp, model)
    assert message.data == model
    assert type(message.data) is type(model)


async def test_it_is_stored_by_the_names_of_its_fields(mp: Milepost) -> None:
    mp.message("order.placed", properties=["order_id"])(PlacedByAlias)
    message = await stored(mp, MODELS[2])
    assert message.raw == '{"order_id": 1, "line_items": [{"item_name": "a", "unit_price": 0}]}'
    assert message.properties == {"order_id": 1}
    # So is one in a message without a class of its own.
    assert (await stored(mp, NewMessage("other", MODELS[0]))).raw == (
        '{"order_id": 1, "line_items": [{"item_name": "a", "unit_price": 2}]}'
    )
    assert (await stored(mp, NewMessage("other", {"placed": MODELS[1]}))).data == {
        "placed": {"order_id": 1, "line_items": [{"item_name": "a", "unit_price": 0}]}
    }


async def test_what_others_wrote_by_the_aliases_is_read_as_well(mp: Milepost) -> None:
    mp.message("order.placed")(Placed)
    message = await stored(mp, NewMessage("order.placed", {"orderId": 7, "lineItems": [{"itemName": "x"}]}))
    assert message.data.order_id == 7
    assert [item.item_name for item in message.data.line_items] == ["x"]


async def test_a_name_that_may_mean_two_fields_is_the_name_of_one(mp: Milepost) -> None:
    mp.message("thing")(Clashing)
    assert (await stored(mp, NewMessage("thing", {"id": 1, "customer_id": 2}))).data == Clashing(messageId=1, id=2)
    with pytest.raises(InvalidMessage, match="does not decode as Clashing"):
        _ = (await stored(mp, NewMessage("thing", {"messageId": 1, "id": 2}))).data


async def test_an_upcast_payload_is_read_by_the_same_rules(mp: Milepost) -> None:
    # A field of a base class is a property like others.
    mp.message("order.placed", version=2, properties=["order_id"])(Strict)

    @mp.upcast("order.placed", from_version=1)
    def with_time(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "placed_at": "2026-01-02T00:00:00Z"}

    message = await stored(mp, NewMessage("order.placed", {"order_id": 1}))
    assert message.data == MODELS[4]


@dataclass
class Parcel:
    """A payload of another kind that has models as fields."""

    sender: Strict
    items: list[Item]
    pets: dict[str, Owner]
    first: Item | None = None


class Letter(msgspec.Struct, rename="camel"):
    placed_order: Strict
    by_number: dict[int, Decimal]


WITHIN = [
    Parcel(MODELS[4], [Item(itemName="a")], {"rex": MODELS[8]}, Item(itemName="b")),  # type: ignore[arg-type, call-arg, dict-item]
    Letter(MODELS[4], {1: Decimal("1.50")}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("upcast", [False, True])
@pytest.mark.parametrize("payload", WITHIN, ids=lambda payload: type(payload).__name__)
async def test_models_within_other_payloads_come_back(mp: Milepost, payload: Any, upcast: bool) -> None:
    mp.message("thing.happened", version=2)(type(payload))
    mp.upcast("thing.happened", from_version=1)(lambda data: data)
    message = await stored(mp, NewMessage("thing.happened", payload) if upcast else payload)
    assert message.data == payload


async def test_a_model_within_another_payload_that_does_not_fit(mp: Milepost) -> None:
    mp.message("thing.happened")(Letter)
    message = await stored(mp, NewMessage("thing.happened", {"placedOrder": {"order_id": "x"}, "byNumber": {}}))
    with pytest.raises(InvalidMessage, match=r"does not decode as Letter: .*(?s:.*)\$\.placedOrder"):
        _ = message.data
