"""What the types of Arrow become in a row: numbers as text, moments in ISO form, bytes as text."""

import importlib
import re
from collections.abc import Callable
from typing import Any, Final

from slidepack.engine.data.rows import Number

Convert = Callable[[Any], Any]

_NUMBER_WORDS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""As JSON files write them."""

_FRACTION: Final = re.compile(r"(?:(\.\d*[1-9])|\.)0*(?=Z|[+-]\d{4}$|$)")
"""A fraction of a second, up to its last digit that is not 0."""


class NotTextError(Exception):
    """Bytes of a row are no UTF-8."""


class KeyTwiceError(Exception):
    """A map has two values for one key."""

    def __init__(self, key: str) -> None:
        """Take the key."""
        super().__init__(key)
        self.key = key


def _stored_type(kind: Any) -> Any:
    """Return the type of the values, without the ways in which they are named or encoded."""
    arrow = importlib.import_module("pyarrow")
    types = arrow.types
    while True:
        if isinstance(kind, arrow.BaseExtensionType):
            kind = kind.storage_type
        elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def plain_type(kind: Any) -> Any:
    """Return the type to cast to before values are taken: what Python would alter becomes text."""
    arrow = importlib.import_module("pyarrow")
    types, kind = arrow.types, _stored_type(kind)
    if types.is_struct(kind):
        return arrow.struct([field.with_type(plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return arrow.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_large_list(kind):
        return arrow.large_list(kind.value_field.with_type(plain_type(kind.value_type)))
    if types.is_fixed_size_list(kind):
        value = kind.value_field.with_type(plain_type(kind.value_type))
        return arrow.list_(value, kind.list_size)
    if types.is_list(kind):
        return arrow.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    if types.is_null(kind):
        # A cast of nulls to nulls below a list has the length of the list, not of its items.
        return arrow.bool_()
    if _is_text_in_python(types, kind):
        return arrow.string()
    return kind


def _is_text_in_python(types: Any, kind: Any) -> bool:
    # A timestamp of nanoseconds has no Python type; a float of 32 bits would grow digits.
    return bool(
        types.is_temporal(kind)
        or types.is_decimal(kind)
        or types.is_float16(kind)
        or types.is_float32(kind)
    )


def holds_moments(kind: Any) -> bool:
    """Return whether a type holds dates, times or decimals, which become text."""
    types, kind = importlib.import_module("pyarrow").types, _stored_type(kind)
    if types.is_temporal(kind) or types.is_decimal(kind):
        return True
    return any(holds_moments(kind.field(i).type) for i in range(kind.num_fields))


def text_converter(kind: Any) -> Convert | None:
    """Return what makes row values of a type's values, after the cast; None where they are."""
    types, kind = importlib.import_module("pyarrow").types, _stored_type(kind)
    if types.is_struct(kind):
        return _of_struct({field.name: text_converter(field.type) for field in kind})
    if types.is_map(kind):
        return _of_map(text_converter(kind.key_type), text_converter(kind.item_type))
    if hasattr(kind, "value_type"):
        return _of_list(text_converter(kind.value_type))
    return _of_leaf(types, kind)


def _of_leaf(types: Any, kind: Any) -> Convert | None:
    if types.is_boolean(kind) or types.is_null(kind) or "string" in str(kind):
        return None
    if types.is_temporal(kind):
        return _optional(_iso)
    if types.is_decimal(kind):
        return _optional(str)
    if types.is_floating(kind):
        return _optional(_float)
    if types.is_integer(kind):
        return _optional(lambda value: Number(str(value)))
    return _optional(_text)


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _of_list(item: Convert | None) -> Convert | None:
    if item is None:
        return None
    return _optional(lambda values: [item(value) for value in values])


def _of_struct(fields: dict[str, Convert | None]) -> Convert | None:
    converts = {name: convert for name, convert in fields.items() if convert is not None}
    if not converts:
        return None

    def convert_fields(value: dict[str, Any]) -> dict[str, Any]:
        return value | {name: convert(value[name]) for name, convert in converts.items()}

    return _optional(convert_fields)


def _of_map(key: Convert | None, item: Convert | None) -> Convert:
    def convert_pairs(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for name, value in pairs:
            text = str(key(name) if key else name)
            content = item(value) if item else value
            if content != converted.setdefault(text, content):
                raise KeyTwiceError(text)
        return converted

    return _optional(convert_pairs)


def _iso(text: str) -> str:
    return _FRACTION.sub(r"\1", text.replace(" ", "T", 1))


def _float(value: float | str) -> Number:
    """Return the shortest decimal that is this number; one of 32 bits comes as text."""
    text = repr(value) if isinstance(value, float) else value
    text = _NUMBER_WORDS.get(text, text)
    return Number(f"{text}.0" if text.removeprefix("-").isdigit() else text)


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise NotTextError from error
