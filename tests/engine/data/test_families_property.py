"""Any list of conversations survives: written in any form, recognised, and read as it was."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidepack.engine.data.check import judge_file
from slidepack.engine.data.report import DataReport
from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Format,
    Row,
    TextRow,
    TokensRow,
    Turn,
    decode_row,
    is_blank,
)

Talk = list[tuple[str, str]]
"""Roles and what is said."""

# Surrogates and NUL are mended, which other tests show. A lone carriage return ends a line of a
# table for some writers, and a byte-order mark at the start of a file is one.
_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\ufeff"),
    min_size=1,
    max_size=40,
).filter(lambda text: not is_blank(text))


@st.composite
def _talks(draw: st.DrawFn) -> list[Talk]:
    talks = []
    for _ in range(draw(st.integers(1, 4))):
        talk: Talk = [("system", draw(_TEXT))] if draw(st.booleans()) else []
        for _ in range(draw(st.integers(1, 3))):
            talk += [("user", draw(_TEXT)), ("assistant", draw(_TEXT))]
        talks.append(talk)
    return talks


_PAIRS = st.lists(st.tuples(_TEXT, _TEXT), min_size=1, max_size=5)
_FEW = settings(max_examples=12)


def _read(data: bytes, name: str = "data") -> tuple[DataReport, list[Row]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        report = judge_file(path, Path(folder) / "rows", Path(folder) / "rejects")
        lines = (Path(folder) / "rows").read_bytes().splitlines()
        return report, [decode_row(line) for line in lines]


def _jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _raw_jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows).encode()


def _array(rows: list[Any]) -> bytes:
    return json.dumps(rows, indent=2).encode("utf-16")


def _wrapped(rows: list[Any]) -> bytes:
    return json.dumps({"version": 1, "data": rows}).encode()


def _parquet(rows: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue().to_pybytes())


def _csv(rows: list[Any]) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
            writer.writeheader()
            writer.writerows(rows)
        return path.read_bytes()


Writer = Callable[[list[Any]], bytes]
_NESTED: dict[str, Writer] = {
    "jsonl": _jsonl,
    "raw jsonl": _raw_jsonl,
    "array": _array,
    "wrapped": _wrapped,
    "parquet": _parquet,
}
_FLAT: dict[str, Writer] = {**_NESTED, "csv": _csv}


def _openai(talk: Talk) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in talk]}


def _parts(talk: Talk) -> dict[str, Any]:
    """Content in parts, each text cut in two."""
    return {
        "dialogue": [
            {
                "role": role,
                "content": [
                    {"type": "text", "text": text[: len(text) // 2]},
                    {"type": "text", "text": text[len(text) // 2 :]},
                ],
            }
            for role, text in talk
        ]
    }


def _sharegpt(talk: Talk) -> dict[str, Any]:
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    return {
        "id": "x",
        "conversations": [{"from": names[role], "value": text} for role, text in talk],
    }


def _sharegpt_system(talk: Talk) -> dict[str, Any]:
    row = _sharegpt([turn for turn in talk if turn[0] != "system"])
    return row | {"system": talk[0][1] if talk[0][0] == "system" else ""}


def _history(talk: Talk) -> dict[str, Any]:
    texts = [text for role, text in talk if role != "system"]
    rounds = [list(pair) for pair in zip(texts[::2], texts[1::2], strict=True)]
    return {
        "instruction": rounds[-1][0],
        "input": "",
        "output": rounds[-1][1],
        "system": talk[0][1] if talk[0][0] == "system" else "",
        "history": rounds[:-1],
    }


_FORMS: dict[str, tuple[Callable[[Talk], dict[str, Any]], Format]] = {
    "openai": (_openai, "chat"),
    "parts": (_parts, "chat"),
    "sharegpt": (_sharegpt, "sharegpt"),
    "sharegpt with a system column": (_sharegpt_system, "sharegpt"),
    "alpaca with history": (_history, "alpaca"),
}


@pytest.mark.parametrize("writer", _NESTED)
@pytest.mark.parametrize("form", _FORMS)
@_FEW
@given(talks=_talks())
def test_conversations_in_every_form(form: str, writer: str, talks: list[Talk]) -> None:
    write, family = _FORMS[form]
    report, rows = _read(_NESTED[writer]([write(talk) for talk in talks]))
    assert report.error is None
    assert (report.family, report.rows, report.rejected) == (family, len(talks), 0)
    expected = [
        tuple(Turn(role, text, role == "assistant") for role, text in talk)  # type: ignore[arg-type]
        for talk in talks
    ]
    assert [row.messages for row in rows if isinstance(row, ChatRow)] == expected


_PAIR_FORMS: dict[str, tuple[str, str, Format]] = {
    "alpaca": ("instruction", "output", "alpaca"),
    "dolly": ("instruction", "response", "alpaca"),
    "question": ("question", "answer", "qa"),
    "upper": ("Question", "Answer", "qa"),
    "problem": ("problem", "solution", "qa"),
    "completion": ("prompt", "completion", "completion"),
    "response": ("prompt", "response", "completion"),
}


@pytest.mark.parametrize("writer", _FLAT)
@pytest.mark.parametrize("form", _PAIR_FORMS)
@_FEW
@given(pairs=_PAIRS)
def test_pairs_in_every_form(form: str, writer: str, pairs: list[tuple[str, str]]) -> None:
    asked, answered, family = _PAIR_FORMS[form]
    data = _FLAT[writer]([{"n": "7", asked: one, answered: other} for one, other in pairs])
    report, rows = _read(data)
    assert report.error is None
    assert (report.family, report.accepted, report.rejected) == (family, len(pairs), 0)
    assert report.ignored_columns == ("n",)
    for row, (question, answer) in zip(rows, pairs, strict=True):
        if family == "completion":
            assert isinstance(row, CompletionRow)
            assert (row.prompt, row.completion) == (question, answer)
        else:
            assert isinstance(row, ChatRow)
            assert row.messages == (Turn("user", question, False), Turn("assistant", answer))


@pytest.mark.parametrize("writer", _FLAT)
@_FEW
@given(texts=st.lists(_TEXT, min_size=1, max_size=5))
def test_texts_in_every_form(writer: str, texts: list[str]) -> None:
    report, rows = _read(_FLAT[writer]([{"text": text, "url": "u"} for text in texts]))
    assert (report.family, report.rejected) == ("text", 0)
    assert [row.text for row in rows if isinstance(row, TextRow)] == texts


@pytest.mark.parametrize("writer", _NESTED)
@_FEW
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 200_000), st.booleans()), min_size=1, max_size=9).filter(
            lambda tokens: any(learned for _, learned in tokens)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_tokens_in_every_form(writer: str, rows: list[list[tuple[int, bool]]]) -> None:
    written = [
        {
            "input_ids": [token for token, _ in row],
            "labels": [token if learned else -100 for token, learned in row],
        }
        for row in rows
    ]
    report, read = _read(_NESTED[writer](written))
    assert (report.family, report.rejected) == ("tokens", 0)
    for row, tokens in zip(read, rows, strict=True):
        assert isinstance(row, TokensRow)
        assert list(zip(row.ids, row.supervised, strict=True)) == tokens


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "role", "content", "from", "value", "tool_calls", "function", "name"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [
                    *("messages", "conversations", "tools", "system", "instruction", "output"),
                    *("history", "prompt", "completion", "question", "answer", "text"),
                    *("input_ids", "labels", "chosen", "rejected"),
                ]
            ),
            _JSON,
            max_size=4,
        ),
        max_size=4,
    )
)
def test_any_rows_get_a_verdict(rows: list[Any]) -> None:
    report, read = _read(_jsonl(rows))
    assert report.verdict in ("ok", "warn", "ask", "refuse")
    assert (report.error is None) == (report.verdict in ("ok", "warn"))
    assert len(read) == report.accepted
    if report.family is not None:
        assert report.rows == report.accepted + report.rejected
