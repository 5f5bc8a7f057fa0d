"""How commands print: tables for people, one JSON value for `--json`."""

import codecs
import io
import json
import re
import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slidepack.cli.terminal_text import one_line, printable

_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def never_fail_to_encode() -> None:
    """Make standard output escape what its encoding lacks; a replaced one stays as it is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_json(value: Any, *, indent: int = 0) -> None:
    """Print one JSON value, on one line of standard output where it is not indented.

    It is UTF-8, and in ASCII alone where standard output has another encoding. Halves of surrogate
    pairs, as in odd file names, are shown as `?`.
    """
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        text = msgspec.json.encode(_encodable(msgspec.to_builtins(value))).decode()
    if indent:
        text = msgspec.json.format(text, indent=indent)
    if not _takes_all(sys.stdout):
        text = _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Print a plain table; a text of several lines is shown as one."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(_cell(column), overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    Console().print(table)


def say(text: str) -> None:
    """Print a sentence for people, with no markup read into it."""
    Console(soft_wrap=True).print(Text(printable(text)))


def _cell(value: object) -> Text:
    return Text("" if value is None else one_line(str(value)))


def _takes_all(stream: TextIO) -> bool:
    """Whether a stream is UTF-8, or of text alone: then it has no encoding."""
    encoding: str | None = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name == "utf-8"


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_encodable(key): _encodable(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_encodable(entry) for entry in value]
    return value
