"""Payloads to JSON and back: which class belongs to which type, and how old payloads become new ones.

A Pydantic model is stored by the names of its fields, whatever aliases they have: it may be dumped by one alias
and
validated by another, or by several, and the names are the only ones that both sides have. What others wrote by the
aliases is read as well.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from milepost.errors import InvalidMessage, TooLarge
from milepost.log.message import EncodedMessage, EncodedObject, Message, NewMessage
from milepost.names import MAX_INTEGER, MAX_NAME_BYTES, MAX_PROPERTIES, MIN_INTEGER, is_property_name


def is_model(cls: type) -> bool:
    """Return True for a class of Pydantic models, without importing Pydantic."""
    return hasattr(cls, "model_dump_json")


def model_to_json(model: Any) -> msgspec.Raw:
    """Return a model as JSON that `read_model_json` takes: by the names of its fields, without computed ones."""
    return msgspec.Raw(model.model_dump_json(by_alias=False, round_trip=True).encode())


def model_to_plain(model: Any) -> Any:
    """Return the same as values that JSON has."""
    return model.model_dump(mode="json", by_alias=False, round_trip=True)


def read_model_json(cls: Any, raw: str | bytes) -> Any:
    """Return the model of a JSON text; raises what Pydantic raises."""
    return cls.model_validate_json(raw, **_name_options(cls))


def read_model(cls: Any, value: Any) -> Any:
    """Return the model of a value that is not JSON, such as an instance; raises what Pydantic raises."""
    return cls.model_validate(value, **_name_options(cls))


@lru_cache(maxsize=10_000)
def _name_options(cls: Any) -> Mapping[str, bool]:
    """Return which names a class of models is read by; nothing where none of its fields has an alias."""
    clashes = list(_alias_clashes(cls.__pydantic_core_schema__))
    if not clashes:
        return {}
    # Where an alias is also the name of another field, only names are unequivocal.
    return {"by_name": True, "by_alias": not any(clashes)}


def _alias_clashes(schema: object) -> Iterator[bool]:
    """Yield for each field with an alias, also of models within, whether another field beside it has that name."""
    parts = [schema]
    while parts:
        match parts.pop():
            case Mapping() as part:
                fields = part.get("fields")
                if isinstance(fields, list):
                    fields = {
                        each["name"]: each for each in fields if isinstance(each, Mapping) and "name" in each
                    }
                if isinstance(fields, Mapping):
                    for name, field in fields.items():
                        if isinstance(field, Mapping) and (aliases := _alias_names(field.get("validation_alias"))):
                            yield not aliases.isdisjoint(fields.keys() - {name})
                parts += part.values()
            case list() | tuple() as several:
                parts += several


def _alias_names(alias: Any) -> set[str]:
    """Return the names in an alias: a text, a path, or a choice of paths."""
    if isinstance(alias, str):
        return {alias}
    paths = [each if isinstance(each, list) else [each] for each in alias or ()]
    return {path[0] for path in (paths if alias and isinstance(alias[0], list) else paths[:1])}


Upcast = Callable[[Any], Any]

_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_VERSION_KEY = "schema_version"
_NO_METADATA: Mapping[str, str] = {}

# Names that were found to be good, so that each is looked at once: a program has few.
_checked_types: set[str] = set()
_checked_properties: set[str] = set()
_MAX_CHECKED_NAMES = 10_000


@dataclass(frozen=True)
class MessageClass:
    """A class of payloads and the type it is stored under."""

    cls: type
    name: str
    version: int
    aliases: tuple[str, ...]
    properties: tuple[str, ...]


class NewerVersion(InvalidMessage):
    """A payload of a version that this program does not know yet; of the message at this `position`."""

    def __init__(self, message: Message[Any], version: int, known: int) -> None:
        self.position = message.position
        self.stream = message.stream
        super().__init__("data", f"{message!r} has version {version}, and this program knows {known}")

    def is_of(self, message: Message[Any]) -> bool:
        """Return True if it is about this message, and not about another one that somebody has read as well."""
        return (self.position, self.stream) == (message.position, message.stream)


class Codec:
    """Knows the registered classes; turns payloads into JSON and JSON into payloads."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._by_class: dict[type, MessageClass] = {}
        self._by_name: dict[str, MessageClass] = {}
        self._upcasts: dict[tuple[str, int], Upcast] = {}

    def without_classes(self) -> "Codec":
        """Return a codec that knows no class: it reads payloads as they are stored."""
        return Codec(self._max_message_bytes)

    def register(self, declared: MessageClass) -> None:
        """Add a class; refuse a name that another class has, and a second name for one class.

        Handlers find their messages by the one name of the class: of two, nobody would get those of the first.
        """
        if declared.version < 1:
            raise ValueError(f"version of {declared.name!r}: 1 or more is wanted, not {declared.version}")
        _check_declared_properties(declared)
        names = (declared.name, *declared.aliases)
        for name in names:
            check_type(name)
            taken = self._by_name.get(name)
            if taken is not None and taken.cls is not declared.cls:
                raise ValueError(f"type {name!r} belongs to {taken.cls.__qualname__} already")
        known = self._by_class.get(declared.cls)
        if known is not None and known.name != declared.name:
            raise ValueError(
                f"{declared.cls.__qualname__} is registered as {known.name!r} already: if {declared.name!r} is an "
                f"older name of the same type, write @mp.message({known.name!r}, aliases=[{declared.name!r}]), if "
                "it is the newer one, the other way round; another type needs a class of its own"
            )
        self._by_name |= dict.fromkeys(names, declared)
        self._by_class[declared.cls] = declared

    def registered(self, cls: type) -> MessageClass | None:
        """What a class was registered as, if it was."""
        return self._by_class.get(cls)

    def register_upcast(self, name: str, from_version: int, upcast: Upcast) -> None:
        """Adds the function that takes a payload of `from_version` to the version after it."""
        if (name, from_version) in self._upcasts:
            raise ValueError(f"type {name!r} has an upcast from version {from_version} already")
        self._upcasts[name, from_version] = upcast

    def adopt(self, other: "Codec") -> None:
        """Knows from now on what another knows."""
        self._by_class |= other._by_class
        self._by_name |= other._by_name
        self._upcasts |= other._upcasts

    def encode(self, payloads: Iterable[Any], along: Mapping[str, str] = _NO_METADATA) -> bytes:
        """The messages of one append as a JSON array, each checked.

        What is to go `along` is in the metadata of each message that has none of these names itself.
        """
        messages = list(map(self.wrapped, payloads))
        if len(messages) > 1:
            _refuse_repeated_ids(messages)
        unchecked = [message for message in messages if not isinstance(message, EncodedMessage)]
        try:
            encoded = _ENCODER.encode([_message_fields(message, along) for message in messages])
        except _ENCODING_ERRORS:
            self._look_closer(unchecked)
            raise
        # Almost all that cannot be stored shows in the whole text; only where it might, each message is looked at.
        if unchecked and (len(encoded) > self._max_message_bytes or b"null" in encoded or b"\\u0000" in encoded):
            self._look_closer(unchecked)
        return encoded

    def encoded(self, message: NewMessage) -> EncodedMessage:
        """The same message, checked and encoded: an append of many can prepare one after the other."""
        return EncodedMessage(
            message.type,
            message.data,
            properties=message.properties,
            metadata=message.metadata,
            id=message.id,
            encoded=msgspec.Raw(self.encode([message])[1:-1]),
        )

    def _look_closer(self, messages: Iterable[NewMessage]) -> None:
        """Refuses what PostgreSQL's JSON cannot hold, or what is too large, by its message and field."""
        for message in messages:
            size = len(_encode("data", message.data))
            if message.properties:
                size += len(_encode("properties", message.properties))
            if message.metadata:
                size += len(_encode("metadata", message.metadata))
            self.check_size(message.type, size)

    def check_size(self, type: str, size: int) -> None:
        """Refuse a message whose payload, properties and metadata have too many bytes of JSON together."""
        if size > self._max_message_bytes:
            raise TooLarge(
                "message",
                f"{type!r} has {size:,} bytes of JSON, over the limit of {self._max_message_bytes:,}: "
                "keep large content elsewhere and its address here, or raise max_message_bytes",
            )

    def wrapped(self, payload: Any) -> NewMessage:
        """An instance of a registered class as a message; one that is a message already as it is."""
        if isinstance(payload, NewMessage):
            return payload
        declared = self._by_class.get(type(payload))
        if declared is None:
            raise InvalidMessage(
                "message",
                f"{type(payload).__name__} is not a registered class: "
                "decorate it with @mp.message or wrap it, NewMessage(type, data)",
            )
        found = {name: getattr(payload, name) for name in declared.properties}
        return NewMessage(
            declared.name,
            payload,
            properties={name: value for name, value in found.items() if value is not None},
            metadata={} if declared.version == 1 else {_VERSION_KEY: declared.version},
        )

    def decode(self, message: Message[Any]) -> Any:
        """The payload of a message, brought to the newest version of its class."""
        declared = self._by_name.get(message.type)
        if declared is None:
            return _decode(message, Any)
        version = message.metadata.get(_VERSION_KEY, 1)
        if version == declared.version:
            return _decode(message, declared.cls)
        if type(version) is not int or version < 1:
            raise InvalidMessage(
                "metadata", f"{_VERSION_KEY} of {message!r}: a version is wanted, not {version!r}"
            )
        if version > declared.version:
            raise NewerVersion(message, version, declared.version)
        return _convert(message, self._upcasted(message, declared, version), declared.cls)

    def _upcasted(self, message: Message[Any], declared: MessageClass, version: int) -> Any:
        data = _decode(message, Any)
        while version < declared.version:
            upcast = self._upcast_of(declared, message.type, version)
            if upcast is None:
                raise InvalidMessage(
                    "data",
                    f"{message!r} has version {version} and nothing takes it to {version + 1}: "
                    f'declare @mp.upcast("{declared.name}", from_version={version})',
                )
            data = upcast(data)
            version += 1
        return data

    def _upcast_of(self, declared: MessageClass, stored: str, version: int) -> Upcast | None:
        for name in (stored, declared.name, *declared.aliases):
            if (name, version) in self._upcasts:
                return self._upcasts[name, version]
        return None


def _message_fields(message: NewMessage, along: Mapping[str, str]) -> dict[str, Any] | msgspec.Raw:
    if isinstance(message, EncodedMessage) and (not along or not along.keys().isdisjoint(message.metadata)):
        return message.encoded
    if type(message.type) is not str or message.type not in _checked_types:
        check_type(message.type)
        _remember_name(_checked_types, message.type)
    data = message.data
    fields = {"type": message.type, "data": model_to_json(data) if is_model(type(data)) else data}
    if message.properties:
        check_properties(message.properties)
        fields["properties"] = message.properties
    if message.metadata:
        _check_mapping("metadata", message.metadata)
        fields["metadata"] = message.metadata
    if along and along.keys().isdisjoint(message.metadata):
        fields["metadata"] = {**message.metadata, **along}
    if message.id is not None:
        fields["id"] = _uuid(message.id)
    return fields


def check_text(field: str, text: str) -> int:
    """Refuse what is no text, or none that PostgreSQL stores. Return its length in bytes of UTF-8."""
    if not isinstance(text, str):
        raise InvalidMessage(field, f"a string is wanted, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidMessage(field, f"{text!r} has a NUL character, which PostgreSQL does not store")
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(field, f"{text!r} has a lone surrogate, which is not text") from None


def check_name(field: str, name: str) -> None:
    """Refuses a name of a stream or a type that cannot be stored."""
    length = check_text(field, name)
    if not length:
        raise InvalidMessage(field, "it is empty")
    if length > MAX_NAME_BYTES:
        raise TooLarge(field, f"{name[:40]!r}… has {length:,} bytes, over the limit of {MAX_NAME_BYTES}")


def check_type(name: str) -> None:
    """Refuse a name that no type can have."""
    check_name("type", name)
    if "*" in name or ">" in name:
        raise InvalidMessage("type", f"{name!r} has * or >, which stand for other types where types are selected")


def check_stream(stream: str) -> None:
    """Refuses a name that no stream can have."""
    check_name("stream", stream)
    if stream.startswith("-"):
        raise InvalidMessage("stream", f"{stream!r} has no category: name it category-id")


def check_properties(properties: Mapping[str, Any]) -> None:
    """Refuses properties that a filter cannot look at, with the name of the first."""
    _check_mapping("properties", properties)
    if len(properties) > MAX_PROPERTIES:
        raise TooLarge("properties", f"{len(properties)} of them, over the limit of {MAX_PROPERTIES}")
    for name, value in properties.items():
        if name not in _checked_properties:
            _check_property_name(name)
        if not isinstance(value, int | str):
            raise InvalidMessage(
                f"properties[{name!r}]",
                f"an integer, a string or a boolean is wanted, not {type(value).__name__}",
            )
        if isinstance(value, int) and not MIN_INTEGER <= value <= MAX_INTEGER:
            raise InvalidMessage(f"properties[{name!r}]", f"{value} does not fit into 64 bits")


def _check_mapping(field: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise InvalidMessage(field, f"a dict is wanted, not {type(value).__name__}")


def _check_property_name(name: str) -> None:
    check_name(f"properties[{name!r}]", name)
    if not is_property_name(name):
        raise InvalidMessage(
            f"properties[{name!r}]",
            "a filter cannot say this name: a letter, then letters, digits, _ and . are wanted",
        )
    _remember_name(_checked_properties, name)


def _remember_name(good: set[str], name: str) -> None:
    if len(good) < _MAX_CHECKED_NAMES:
        good.add(name)


def _check_declared_properties(declared: MessageClass) -> None:
    fields = {name for cls in declared.cls.__mro__ for name in getattr(cls, "__annotations__", ())}
    for name in declared.properties:
        if not is_property_name(name):
            raise ValueError(f"property {name!r} of {declared.name!r}: a filter cannot say this name")
        if fields and name not in fields and not hasattr(declared.cls, name):
            raise ValueError(
                f"property {name!r} of {declared.name!r}: {declared.cls.__qualname__} has no such field"
            )


def _refuse_repeated_ids(messages: list[NewMessage]) -> None:
    given = [_uuid(message.id) for message in messages if message.id is not None]
    if len(set(given)) < len(given):
        repeated = next(known for known in given if given.count(known) > 1)
        raise InvalidMessage("id", f"{repeated} is there twice in one append")


def _uuid(given: UUID | str) -> str:
    try:
        return str(given if isinstance(given, UUID) else UUID(given))
    except (ValueError, AttributeError, TypeError):
        raise InvalidMessage(
            "id",
            f"{given!r} is not a UUID: make one of your own key, uuid.uuid5(uuid.NAMESPACE_URL, key)",
        ) from None


def _encode_model(value: Any) -> Any:
    if isinstance(value, EncodedObject):
        return value.raw
    if is_model(type(value)):
        return model_to_plain(value)
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_model)
_ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


def _encode(field: str, value: Any) -> bytes:
    try:
        encoded = _ENCODER.encode(model_to_json(value) if is_model(type(value)) else value)
    except _ENCODING_ERRORS as error:
        raise InvalidMessage(field, f"it cannot be stored as JSON: {error}") from error
    if b"\\u0000" in encoded and _ESCAPED_NUL.search(encoded):
        raise InvalidMessage(field, "it has a NUL character, which PostgreSQL does not store")
    # NaN and the infinities are encoded as null: without a null there are none.
    if b"null" in encoded and _has_non_finite(value):
        raise InvalidMessage(field, "it has a NaN or an infinity, which JSON does not have")
    return encoded


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, EncodedObject):
        return False
    if isinstance(value, Mapping):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return any(map(_has_non_finite, value))
    if is_model(type(value)):
        return _has_non_finite(value.model_dump())
    if isinstance(value, msgspec.Struct) or is_dataclass(value):
        return _has_non_finite(msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else vars(value))
    return False


def _decode(message: Message[Any], cls: Any) -> Any:
    try:
        if is_model(cls):
            return read_model_json(cls, message.raw)
        return msgspec.json.decode(message.raw, type=cls, dec_hook=_decode_model)
    except (ValueError, TypeError, RecursionError) as error:
        raise _undecodable(message, cls, error) from error


def _convert(message: Message[Any], data: Any, cls: Any) -> Any:
    try:
        if is_model(cls):
            return _model_from_upcast(data, cls)
        return msgspec.convert(data, cls, str_keys=True, dec_hook=_decode_model)
    except (ValueError, TypeError) as error:
        raise _undecodable(message, cls, error) from error


def _model_from_upcast(data: Any, cls: Any) -> Any:
    """Return what an upcast made as a model: read as JSON, as a payload is that no upcast has changed."""
    try:
        raw = None if isinstance(data, cls) else _ENCODER.encode(data)
    except _ENCODING_ERRORS:
        raw = None
    return read_model(cls, data) if raw is None else read_model_json(cls, raw)


def _decode_model(cls: type, value: Any) -> Any:
    """Read a model that is a field of another payload; leave what else msgspec does not know for it to refuse."""
    return _model_from_upcast(value, cls) if is_model(cls) else value


def _undecodable(message: Message[Any], cls: Any, error: Exception) -> InvalidMessage:
    return InvalidMessage("data", f"{message!r} does not decode as {getattr(cls, '__name__', cls)}: {error}")


PayloadClass = TypeVar("PayloadClass", bound=type)
UpcastFunction = TypeVar("UpcastFunction", bound=Callable[..., Any])


class MessageDeclarations:
    """The declarations of messages: decorators of whatever appends and reads."""

    _codec: Codec

    def adopt_messages(self, other: "MessageDeclarations") -> None:
        """Take over the classes and upcasts of messages that another one has."""
        self._codec.adopt(other._codec)

    def message(
        self,
        name: str | None = None,
        *,
        version: int = 1,
        aliases: Iterable[str] = (),
        properties: Iterable[str] = (),
    ) -> Callable[[PayloadClass], PayloadClass]:
        """Registers a dataclass, a msgspec struct or a Pydantic model as the payload of a type.

        Args:
            name: The stored type. Defaults to the class's own name.
            version: Grows when old payloads no longer fit; `upcast` then takes them along. Defaults to 1.
            aliases: Older names of the type, which decode to this class too.
            properties: Fields that are copied to the message's properties, where filters see them.
        """

        if isinstance(name, type):
            raise TypeError(f"write @mp.message() above {name.__name__}, with parentheses")

        def register(cls: PayloadClass) -> PayloadClass:
            declared = MessageClass(cls, name or cls.__name__, version, tuple(aliases), tuple(properties))
            self._codec.register(declared)
            return cls

        return register

    def upcast(self, name: str, *, from_version: int) -> Callable[[UpcastFunction], UpcastFunction]:
        """Registers the function that takes a decoded payload of `from_version` to the next version."""

        def register(function: UpcastFunction) -> UpcastFunction:
            self._codec.register_upcast(name, from_version, function)
            return function

        return register
