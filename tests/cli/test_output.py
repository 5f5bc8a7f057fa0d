"""Names and answers are shown as they are, and steer nothing; JSON stays JSON everywhere."""

import io
import json
from typing import Any

import pytest
from support.line_ends import TEXT

from slidepack.cli import main
from slidepack.cli.output import print_json, print_table, say

Capture = pytest.CaptureFixture[str]

_NAMES = [
    "map :a: to :x:",
    "[bold]not bold[/bold]",
    "[/]",
    "a folder\\",
    "C:\\[x]\\",
    "\\[x]",
    "10\u202f000\u00a0km",
    "42 'text' https://example.org True",
]
_STEERING = ["x\x1b[2J\x1b]0;owned\x07", "x\x9b2J", "x\u202egpj.exe", "x\rowned", "x\udcff"]
_SEVERAL_LINES = ["a\nb", "a\r\nb", "a\tb", "a\x85b", "a\u2028b", "a\u2029b"]


class _Words(list[str]):
    """Standard output as whoever calls a command may replace it: text alone, no encoding."""

    def write(self, text: str) -> None:
        """Keep a text."""
        self.append(text)

    def flush(self) -> None:
        """Keep all."""


@pytest.fixture(autouse=True)
def _colour_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")


def _stdout(monkeypatch: pytest.MonkeyPatch, encoding: str) -> io.BytesIO:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding, write_through=True))
    return written


@pytest.mark.parametrize("name", _NAMES)
def test_a_sentence_is_said_as_it_is(name: str, capsys: Capture) -> None:
    say(name)
    assert capsys.readouterr().out == f"{name}\n"


@pytest.mark.parametrize("text", _STEERING)
def test_a_sentence_steers_no_terminal(text: str, capsys: Capture) -> None:
    say(text)
    shown = capsys.readouterr().out.removesuffix("\n")
    assert shown.startswith("x")
    assert shown.isprintable()


@pytest.mark.parametrize("name", _NAMES)
def test_a_table_shows_names_as_they_are(name: str, capsys: Capture) -> None:
    print_table(("id", name), [(1, name), (2, None)])
    header, row, none = capsys.readouterr().out.splitlines()
    assert name in header
    assert row.split(maxsplit=1)[1].rstrip(" ") == name
    assert none.split() == ["2"]


@pytest.mark.parametrize("name", [*_STEERING, *_SEVERAL_LINES, TEXT])
def test_nothing_tears_a_row_apart(
    name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR")
    print_table(("name", name), [(name, "end")])
    lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert lines[1].rstrip().endswith("end")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8", "utf-16"])
@pytest.mark.parametrize("text", ["café → Привет", "10\u202f000", "日本 👩\u200d👧", "C:\\é\\"])
def test_every_standard_output_takes_every_text(
    text: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(arguments: list[str]) -> None:
        print_json({text: [text, "\\"]})
        say(text)
        print_table((text,), [(text,)])

    monkeypatch.setattr(main, "app", command)
    written = _stdout(monkeypatch, encoding)
    assert main.run([]) == 0
    value, said, *_ = written.getvalue().decode(encoding).split("\n")
    assert json.loads(value) == {text: [text, "\\"]}
    assert said == text.encode(encoding, "backslashreplace").decode(encoding).removeprefix("\ufeff")
    assert value.isascii() == (encoding != "utf-8")


def test_an_output_of_text_alone_takes_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(arguments: list[str]) -> None:
        print_json("é →")
        say("é →")

    monkeypatch.setattr(main, "app", command)
    words = _Words()
    monkeypatch.setattr("sys.stdout", words)
    assert main.run([]) == 0
    assert "".join(words) == '"é →"\né →\n'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\udcff.jsonl", "a?.jsonl"),
        ({"\ud800": ["\udfff", {"é": 1.5}]}, {"?": ["?", {"é": 1.5}]}),
        ({"a": ("\udc80", None, float("nan"))}, {"a": ["?", None, None]}),
    ],
)
def test_a_name_that_is_no_text_stays_valid_json(
    value: Any, shown: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for encoding in ("utf-8", "latin-1"):
        written = _stdout(monkeypatch, encoding)
        print_json(value)
        assert json.loads(written.getvalue().decode(encoding)) == shown
