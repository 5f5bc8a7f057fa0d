"""What a chat template may spend: steps, sizes and time, measured before they are spent.

A template is somebody else's program. `Budget` is renewed for each render; the checks below look at
the operations in which one step could take for ever, or fill the memory.
"""

import operator
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import jinja2
import jinja2.exceptions

_MAX_STEPS: Final = 200_000
"""Chat templates take about twenty steps a turn."""
_MAX_SIZE: Final = 4_000_000
"""Characters and items of one value, beside eight times what the conversation itself has."""
_MAX_SECONDS: Final = 1.5
"""Of processor time, whatever the steps cost; a render takes some tens of microseconds."""
_MAX_DEPTH: Final = 100
_MAX_INTEGER_BITS: Final = 4096
_CHARACTERS_A_STEP: Final = 64
_SEQUENCES: Final[tuple[type, ...]] = (
    list,
    tuple,
    range,
    type({}.keys()),
    type({}.items()),
    type({}.values()),
)

_TEXT_METHODS: Final = """
    capitalize casefold count endswith find format format_map index isalnum isalpha isascii
    isdecimal isdigit isidentifier islower isnumeric isspace istitle isupper join lower lstrip
    partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split
    splitlines startswith strip swapcase title upper
"""
_METHODS: Final[dict[type, frozenset[str]]] = {
    str: frozenset(_TEXT_METHODS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}
"""Methods whose result is no larger than what goes in; `replace` and `join` are measured first."""
_PERCENT_WIDTH: Final = re.compile(r"%(?:\([^()]*\))?[^a-zA-Z%()]*(?:\d{4}|\*)|%\([^()]*\(")
"""In a `%` pattern: a width of thousands, one that an argument gives, or a key with brackets of its
own, behind which a width could stand."""
_BRACE_WIDTH: Final = re.compile(r":[^{}]*(\d{4}|\{)")


_TOO_WIDE: Final = "it formats with a width that is not a small number"


class TemplateLimitError(Exception):
    """A template goes beyond its limits, so that it cannot be used at all."""


class Budget(threading.local):
    """What the render that runs in this thread may still spend."""

    steps = 0
    taken = 0
    size = _MAX_SIZE
    deadline = 0.0
    marked = False
    """Whether `{% generation %}` leaves marks in the output."""

    def renew(self, values: object = None, *, marked: bool = False) -> None:
        """Start a render."""
        self.steps = self.size = sys.maxsize
        self.deadline = time.thread_time() + _MAX_SECONDS
        self.marked = marked
        given = self.measure(values)
        self.steps, self.size = _MAX_STEPS + given, _MAX_SIZE + 8 * given

    def take(self, steps: int = 1) -> bool:
        """Spend steps; always true, so that it can stand in a condition."""
        self.steps -= steps
        self.taken += 1
        if self.steps < 0:
            raise TemplateLimitError("it takes more steps than any conversation needs")
        if not self.taken & 63 and time.thread_time() > self.deadline:
            raise TemplateLimitError(f"it runs longer than {_MAX_SECONDS} s")
        return True

    def allow(self, size: int) -> None:
        """Refuse a value of this size, and spend the steps that it costs."""
        if size > self.size:
            raise TemplateLimitError(f"it makes a value of {size} characters or items")
        self.take(1 + size // _CHARACTERS_A_STEP)

    def measure(self, value: object, *, plain: bool = False, indent: int = 0) -> int:
        """Return the size of a value written out, where a shared part counts each time.

        Args:
            value: any value that a template can hold.
            plain: refuse what has no written form of its own.
            indent: characters that each level of nesting may add to a part.
        """
        size = self._measured(value, plain, indent, 0)
        self.allow(size)
        return size

    def _measured(self, value: object, plain: bool, indent: int, depth: int) -> int:
        if isinstance(value, str):
            return len(value) + 1
        if value is None or isinstance(value, bool | int | float | jinja2.Undefined):
            return 1
        if isinstance(value, dict):
            parts: Iterable[object] = (part for item in value.items() for part in item)
        elif isinstance(value, _SEQUENCES):
            parts = cast(Iterable[object], value)
        elif plain:
            raise jinja2.exceptions.SecurityError(f"the template prints a {type(value).__name__}")
        else:
            return 1
        if depth > _MAX_DEPTH:
            raise TemplateLimitError("it nests values too deeply")
        size = 1
        for part in parts:
            self.take()
            size += 1 + (depth + 1) * indent + self._measured(part, plain, indent, depth + 1)
            if size > self.size:
                break
        return size


def check_method(
    budget: Budget, method: types.BuiltinMethodType, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Refuse methods of Python's own types that no template needs, and results that are huge.

    Returns:
        The arguments, with what can be walked only once in a list.
    """
    owner, name = method.__self__, method.__name__
    allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), ())
    if name not in allowed:
        raise jinja2.exceptions.SecurityError(
            f"the template calls {name!r} of a {type(owner).__name__}"
        )
    if isinstance(owner, str) and name == "replace":
        _check_replace(budget, owner, *args[:2])
    elif isinstance(owner, str) and name == "join":
        args = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
        for argument in args:
            budget.allow(budget.measure(argument) + len(argument) * len(owner))
    return args


def _check_replace(budget: Budget, text: str, old: str = "", new: str = "", **_: Any) -> None:
    budget.allow(len(text) + text.count(str(old)) * len(str(new)))


def _check_format(budget: Budget, pattern: str, fields: int, arguments: tuple[object, ...]) -> None:
    """Refuse many copies of a long argument."""
    longest = max((budget.measure(argument, plain=True) for argument in arguments), default=0)
    budget.allow(len(pattern) + fields * (longest + 1000))


def check_braces(budget: Budget, pattern: str, arguments: tuple[object, ...]) -> None:
    """Refuse a `format` whose result could be huge."""
    if _BRACE_WIDTH.search(pattern):
        raise TemplateLimitError(_TOO_WIDE)
    _check_format(budget, pattern, pattern.count("{"), arguments)


def check_operation(budget: Budget, sign: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be huge, before it is carried out."""
    check_integer(left)
    check_integer(right)
    if sign == "+":
        return
    if sign == "%" and isinstance(left, str):
        _check_percent(budget, None, (left, right), {})
    elif sign == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                budget.allow(budget.measure(value) * max(times, 0))
    if sign in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if sign == "**" else left.bit_length() + right.bit_length()
        _check_bits(bits)


def check_integer(value: object) -> None:
    """Refuse a number with which a single division could take minutes."""
    if isinstance(value, int):
        _check_bits(value.bit_length())


def _check_bits(bits: int) -> None:
    if bits > _MAX_INTEGER_BITS:
        raise TemplateLimitError("it makes a number of thousands of digits")


def _check_tojson(
    budget: Budget, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    indent = kwargs.get("indent", args[2] if len(args) > 2 else None) or 0
    width = len(indent) if isinstance(indent, str) else max(operator.index(indent), 0)
    separators = tuple(kwargs.get("separators", args[3] if len(args) > 3 else None) or ())
    budget.measure(args[0], indent=width + sum(len(str(one)) for one in separators))
    return args


def _check_indent(
    budget: Budget, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    width = kwargs.get("width", args[1] if len(args) > 1 else 4)
    spaces = len(width) if isinstance(width, str) else operator.index(width)
    budget.allow((str(args[0]).count("\n") + 2) * max(spaces, 0))
    return args


def _check_join(
    budget: Budget, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    context, items, *rest = args
    gathered = list(items)
    between = str(kwargs.get("d", rest[0] if rest else ""))
    budget.allow(budget.measure(gathered, plain=True) + len(gathered) * len(between))
    return (context, gathered, *rest)


def _check_filter_replace(
    budget: Budget, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    _check_replace(budget, str(args[1]), *args[2:4], **kwargs)
    return args


def _check_percent(
    budget: Budget, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    pattern = str(args[0])
    if _PERCENT_WIDTH.search(pattern):
        raise TemplateLimitError(_TOO_WIDE)
    _check_format(budget, pattern, pattern.count("%"), (*args[1:], *kwargs.values()))
    return args


def _check_written(
    budget: Budget, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    budget.measure(args[0], plain=True)
    return args


def _check_round(
    budget: Budget, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    precision = kwargs.get("precision", args[1] if len(args) > 1 else 0)
    if abs(operator.index(precision)) > 30:
        raise TemplateLimitError("it rounds to more than 30 places")
    return args


def _check_sum(
    budget: Budget, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    start = kwargs.get("start", args[3] if len(args) > 3 else 0)
    if not isinstance(start, int | float):
        raise jinja2.exceptions.SecurityError("the template sums what is not a number")
    return args


FILTER_CHECKS: Final[dict[str, Callable[..., tuple[Any, ...]]]] = {
    "indent": _check_indent,
    "safe": _check_written,
    "tojson": _check_tojson,
    "join": _check_join,
    "replace": _check_filter_replace,
    "format": _check_percent,
    "string": _check_written,
    "round": _check_round,
    "sum": _check_sum,
}
