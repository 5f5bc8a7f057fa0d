"""Rows measured with a model's tokenizer: counts, lengths, and what of them is learned."""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.chat_templates import save_chat_tokenizer, save_published

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.model_report import (
    MeasureRequest,
    ModelDataReport,
    ShownSpan,
    measure_in_process,
)
from slidepack.engine.data.model_verdict import model_fixes, model_issues
from slidepack.engine.data.preflight_model import measure_rows
from slidepack.engine.data.rows import ChatRow, CompletionRow, Row, TextRow, Turn, encode_row


def _chat(line: int, question: str, answer: str) -> ChatRow:
    return ChatRow(line, (Turn("user", question, False), Turn("assistant", answer)))


ROWS: list[Row] = [
    _chat(1, "Hi", "hello"),
    _chat(2, "q" * 500, "long"),
    _chat(3, "forged<|im_end|>", "x"),
    CompletionRow(4, "2 + 2 =", " 4"),
    TextRow(5, "some text\x07"),
]


def _write(path: Path, rows: list[Row]) -> Path:
    path.write_bytes(b"".join(map(encode_row, rows)))
    return path


def _measure(path: Path, model: Path, limit: int, **more: Any) -> ModelDataReport:
    return measure_rows(
        MeasureRequest(rows=str(path), model=str(model), max_seq_len=limit, processes=1, **more)
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_published(tmp_path / "model", "ChatML", marks=False)


def test_everything_is_counted(tmp_path: Path, model: Path) -> None:
    report = _measure(_write(tmp_path / "rows", ROWS), model, 256)
    assert (report.rows, report.encoded_rows, report.samples) == (5, 3, 3)
    assert report.rejects == {"too-long": 1, "control-token": 1}
    assert [reject.line for reject in report.first_rejects] == [2, 3]
    assert (report.lengths.rows, report.lengths.rows_over) == (4, 1)
    assert report.supervised_tokens < report.tokens < report.lengths.tokens
    assert (report.masks.method, report.masks.conversations) == ("headers", 3)
    assert report.masks.disagreeing == 0
    assert (report.template, report.template_reason) == ("the model's own", "")


def test_the_rows_that_are_shown_say_what_is_learned_and_are_safe_to_print(
    tmp_path: Path, model: Path
) -> None:
    report = _measure(_write(tmp_path / "rows", ROWS), model, 256)
    assert [shown.line for shown in report.shown] == [1, 4, 5]
    assert report.shown[0].spans == (
        ShownSpan("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ShownSpan("hello<|im_end|>", True),
    )
    assert report.shown[1].spans[1] == ShownSpan(" 4<|endoftext|>", True)
    assert "\ufffd" in report.shown[2].spans[1].text


def test_policies_and_several_samples_of_a_row(tmp_path: Path, model: Path) -> None:
    talk = ChatRow(1, tuple(turn for i in range(9) for turn in _chat(i, "q", "a" * 20).messages))
    path = _write(tmp_path / "rows", [talk])
    dropped, cut, divided = (
        _measure(path, model, 128, too_long=policy) for policy in ("drop", "cut", "split")
    )
    assert (dropped.samples, dropped.rejects) == (0, {"too-long": 1})
    assert (cut.samples, cut.tokens) == (1, 128)
    assert divided.encoded_rows == 1
    assert divided.samples == 3
    assert dropped.lengths == cut.lengths == divided.lengths


def test_rows_are_counted_once_however_many_samples_they_become(tmp_path: Path) -> None:
    model = save_published(tmp_path / "model", "Qwen3", marks=False)
    turns = [turn for text in ("a", "b", "c" * 400) for turn in _chat(1, "q", text).messages]
    path = _write(
        tmp_path / "rows",
        [
            ChatRow(1, tuple(turns)),
            ChatRow(2, tuple(_chat(2, "q", "x" * 400).messages * 3)),
            _chat(3, "q", "a"),
        ],
    )
    report = _measure(path, model, 128)
    # Two of the first row's three samples fit, and none of the second's.
    assert (report.rows, report.encoded_rows, report.samples) == (3, 2, 3)
    assert (report.rejects, report.partly) == ({"too-long": 1}, {"too-long": 1})
    assert [reject.line for reject in report.first_rejects] == [1, 2]
    told = {(issue.level, issue.line, issue.message) for issue in model_issues(report)}
    assert ("warning", 1, "1 row is left out in part with this model") in told
    assert ("reject", 1, "1 row is left out with this model") in told


def test_the_first_row_of_every_reason_is_named(tmp_path: Path, model: Path) -> None:
    rows: list[Row] = [_chat(line, "q" * 500, "a") for line in range(1, 60)]
    path = _write(tmp_path / "rows", [*rows, _chat(60, "forged<|im_end|>", "x"), *rows])
    report = _measure(path, model, 256)
    assert report.rejects == {"too-long": 118, "control-token": 1}
    assert [reject.line for reject in report.first_rejects] == [*range(1, 21), 60]
    assert {issue.code: issue.line for issue in model_issues(report)}["control-token"] == 60


LONG_TALK = ChatRow(1, tuple(turn for _ in range(9) for turn in _chat(1, "q", "a" * 20).messages))
FIXABLE: dict[str, tuple[list[Row], set[str]]] = {
    "long answers": ([_chat(1, "q", "a" * 300)], {"max_seq_len", "cut"}),
    "long questions": ([_chat(1, "q" * 300, "a")], {"max_seq_len"}),
    "long talks": ([LONG_TALK], {"max_seq_len", "cut", "split"}),
    "long texts": ([TextRow(1, "t" * 300)], {"max_seq_len", "cut", "split"}),
    "long completions": ([CompletionRow(1, "p", "c" * 300)], {"max_seq_len", "cut"}),
    "one in a thousand": (
        [*[_chat(i, "q", "a") for i in range(999)], _chat(999, "q", "a" * 300)],
        {"max_seq_len", "cut"},
    ),
    "longer than the model takes": ([_chat(1, "q" * 3000, "a")], set()),
    "some longer than the model takes": (
        [_chat(1, "q" * 3000, "a"), _chat(2, "q" * 300, "a")],
        {"max_seq_len"},
    ),
    "nothing too long": ([_chat(1, "q<|im_end|>", "a")], set()),
}


@pytest.mark.parametrize("name", FIXABLE)
def test_each_fix_that_is_named_keeps_more_rows_and_no_other_does(
    tmp_path: Path, model: Path, name: str
) -> None:
    rows, wanted = FIXABLE[name]
    path = _write(tmp_path / "rows", rows)
    before = _measure(path, model, 128)
    fixes = model_fixes(before, 1000)
    assert {"max_seq_len" if fix.setting == "max_seq_len" else fix.value for fix in fixes} == wanted
    for fix in fixes:
        if isinstance(fix.value, int):
            after = _measure(path, model, fix.value)
            assert 128 < fix.value <= 1000
        else:
            after = _measure(path, model, 128, too_long=fix.value)
        assert after.encoded_rows > before.encoded_rows, fix
    for policy in {"cut", "split"} - wanted:
        assert _measure(path, model, 128, too_long=policy).encoded_rows == before.encoded_rows


def test_a_process_that_is_killed_is_told(tmp_path: Path, model: Path) -> None:
    path = _write(tmp_path / "rows", [_chat(i, "q" * 900, "a" * 900) for i in range(3000)])
    request = MeasureRequest(rows=str(path), model=str(model), max_seq_len=512)

    def kill_one(_: int) -> None:
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGKILL)

    with pytest.raises(SlidepackError) as caught:
        measure_rows(request, kill_one)
    assert caught.value.report.code == "RUN-CRASHED"
    assert caught.value.report.why == "it ended with code -9"
    assert not multiprocessing.active_children()


def test_an_empty_file_has_no_rows(tmp_path: Path, model: Path) -> None:
    report = _measure(_write(tmp_path / "rows", []), model, 256)
    assert (report.rows, report.lengths.longest, report.masks.method) == (0, 0, "none")
    assert report.template == "the model's own"


def test_it_is_the_same_in_any_number_of_processes(tmp_path: Path, model: Path) -> None:
    rows = [
        _chat(i, f"question {i} " * (i % 50), f"answer {i} " * (i % 90)) for i in range(1, 1500)
    ]
    path = _write(tmp_path / "rows", [*ROWS, *rows])
    assert path.stat().st_size > 3 << 18  # several chunks
    seen: list[int] = []
    alone = _measure(path, model, 512)
    request = MeasureRequest(
        rows=str(path), model=str(model), max_seq_len=512, too_long="drop", processes=2
    )
    together = measure_in_process(request, seen.append)
    assert msgspec.json.encode(together) == msgspec.json.encode(alone)
    assert seen == sorted(seen)
    assert seen[-1] == alone.rows
    assert len(seen) > 2


def test_a_base_models_stand_in_is_named(tmp_path: Path) -> None:
    base = save_chat_tokenizer(tmp_path / "base", ("<s>", "</s>"), None, "</s>")
    path = _write(tmp_path / "rows", [_chat(1, "a", "b")])
    report = _measure(path, base, 256)
    assert report.template == "alpaca"
    assert report.template_reason.startswith("the model has no chat template, so alpaca stands in")
    with pytest.raises(SlidepackError) as caught:
        _measure(path, base, 256, template="none")
    assert caught.value.report.code == "MODEL-NO-CHAT-TEMPLATE"


@pytest.mark.parametrize("processes", [1, 2])
def test_failures_keep_their_code_on_the_way_through_processes(
    tmp_path: Path, model: Path, processes: int
) -> None:
    evil = tmp_path / "evil"
    endless = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
    save_chat_tokenizer(evil, ("</s>",), endless, "</s>")
    path = _write(tmp_path / "rows", ROWS)
    for rows, folder, code in [
        (tmp_path / "nowhere", model, "DATA-NOT-FOUND"),
        (path, tmp_path, "MODEL-BROKEN"),
        (path, evil, "MODEL-BROKEN"),
    ]:
        with pytest.raises(SlidepackError) as caught:
            measure_in_process(
                MeasureRequest(
                    rows=str(rows), model=str(folder), max_seq_len=256, processes=processes
                )
            )
        assert caught.value.report.code == code


def test_who_asks_loads_no_tokenizer_and_no_torch() -> None:
    script = (
        "import sys, json, slidepack.engine.data.model_report;"
        "print(json.dumps([m for m in ('tokenizers', 'torch', 'numpy') if m in sys.modules]))"
    )
    with os.popen(f"{sys.executable} -c {script!r}") as output:
        assert json.loads(output.read()) == []


def test_a_measurement_can_be_stopped(tmp_path: Path, model: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(_: int) -> None:
        raise Stopped

    path = _write(tmp_path / "rows", [_chat(i, "q" * 900, "a" * 900) for i in range(3000)])
    with pytest.raises(Stopped):
        measure_in_process(MeasureRequest(rows=str(path), model=str(model), max_seq_len=512), stop)
