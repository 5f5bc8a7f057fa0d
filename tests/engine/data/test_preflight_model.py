"""Rows measured with a model's tokenizer: counts, lengths, and what of them is learned."""

import json
import os
import sys
from pathlib import Path

import msgspec
import pytest
from support.chat_templates import save_chat_tokenizer, save_published

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.model_report import MeasureRequest, ShownSpan, measure_in_process
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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_published(tmp_path / "model", "ChatML", marks=False)


def test_everything_is_counted(tmp_path: Path, model: Path) -> None:
    report = measure_rows(_write(tmp_path / "rows", ROWS), model, 256, processes=1)
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
    report = measure_rows(_write(tmp_path / "rows", ROWS), model, 256, processes=1)
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
        measure_rows(path, model, 128, policy, processes=1) for policy in ("drop", "cut", "split")
    )
    assert (dropped.samples, dropped.rejects) == (0, {"too-long": 1})
    assert (cut.samples, cut.tokens) == (1, 128)
    assert divided.encoded_rows == 1
    assert divided.samples == 3
    assert dropped.lengths == cut.lengths == divided.lengths


def test_it_is_the_same_in_any_number_of_processes(tmp_path: Path, model: Path) -> None:
    rows = [
        _chat(i, f"question {i} " * (i % 50), f"answer {i} " * (i % 90)) for i in range(1, 1500)
    ]
    path = _write(tmp_path / "rows", [*ROWS, *rows])
    assert path.stat().st_size > 3 << 18  # several chunks
    seen: list[int] = []
    alone = measure_rows(path, model, 512, processes=1)
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
    report = measure_rows(path, base, 256, processes=1)
    assert report.template == "alpaca"
    assert report.template_reason.startswith("the model has no chat template, so alpaca stands in")
    with pytest.raises(SlidepackError) as caught:
        measure_rows(path, base, 256, named="none", processes=1)
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
