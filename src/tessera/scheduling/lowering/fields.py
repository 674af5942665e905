"""Fields of specifications as attributes: numbers, texts, lists of these, and records of them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Attribute

from tessera.ir.attributes import to_attribute, to_value

_KINDS: Final[Mapping[type, str]] = {bool: "boolean", int: "integer", str: "text"}


class MalformedError(Exception):
    """What is wrong with a part of a kernel."""


class FieldType(NamedTuple):
    """The type of a field, and whether there may be nothing in its place."""

    kind: Any
    is_optional: bool


@cache
def field_types(record: type[Any]) -> Mapping[str, FieldType]:
    """The fields of a class of records, by name."""
    hints = get_type_hints(record)
    found: dict[str, FieldType] = {}
    for field in dataclasses.fields(record):
        hint = hints[field.name]
        options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        (kind,) = [option for option in options if option is not types.NoneType]
        found[field.name] = FieldType(kind, types.NoneType in options)
    return found


def write_field(value: Any) -> Attribute:
    """The attribute of a value; a record is a dictionary of what is in it."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return write_record(fields)
    return to_attribute(value)


def write_record(fields: Mapping[str, Any]) -> DictionaryAttr:
    """The dictionary of values, without those that are None."""
    return DictionaryAttr({name: write_field(each) for name, each in fields.items() if each is not None})


def read_field(attribute: Attribute | None, wanted: FieldType) -> Any:
    """The value that `write_field` wrote. Raises MalformedError for an attribute of another kind."""
    if attribute is None:
        if not wanted.is_optional:
            raise MalformedError("is missing")
        return None
    if dataclasses.is_dataclass(wanted.kind):
        return read_record(attribute, wanted.kind)
    value = to_value(attribute)
    if get_origin(wanted.kind) is tuple:
        _expect_list(value, attribute, *get_args(wanted.kind))
    elif type(value) is not wanted.kind:
        raise MalformedError(f"{attribute} should be a {_KINDS[wanted.kind]}")
    return value


def _expect_list(value: object, attribute: Attribute, *kinds: Any) -> None:
    """Looks at a list of as many elements as there are kinds, or of any number where `...` is the last one."""
    count = None if kinds[-1] is Ellipsis else len(kinds)
    if not isinstance(value, tuple) or len(value) != (len(value) if count is None else count):
        raise MalformedError(f"{attribute} should be a list" + (f" of {count}" if count is not None else ""))
    if any(type(each) is not kinds[0] for each in value):
        raise MalformedError(f"{attribute} should be a list of {_KINDS[kinds[0]]}s")


def read_record(attribute: Attribute, record: Any) -> Any:
    """The record that `write_record` wrote. Raises MalformedError."""
    if not isinstance(attribute, DictionaryAttr):
        raise MalformedError(f"{attribute} should be a dictionary")
    fields = field_types(record)
    unknown = sorted(attribute.data.keys() - fields.keys())
    if unknown:
        raise MalformedError(f"{unknown[0]!r} is none of {', '.join(fields)}")
    values = {}
    for name, wanted in fields.items():
        try:
            values[name] = read_field(attribute.data.get(name), wanted)
        except MalformedError as error:
            raise MalformedError(f"{name} {error}") from error
    return record(**values)
