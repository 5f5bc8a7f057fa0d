"""The frozen dataset of a job: split, encoded, checked against what was queued."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.tiny import TEMPLATE, save_tokenizer
from tokenizers import AddedToken, Tokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, EvalSpec, JobSpec, LoraMethod, ModelRef
from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Reject,
    Row,
    TextRow,
    Turn,
    encode_row,
)
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.worker.dataset import load_data

USER_FIRST = (
    "{% if messages[0]['role'] != 'user' %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE
)


def _ref(path: Path, rows: list[Row]) -> DatasetRef:
    content = b"".join(map(encode_row, rows))
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return DatasetRef(dataset_id="d", path=str(path), content_hash=digest)


def _spec(dataset: DatasetRef, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "name": "n",
        "base": ModelRef(model_id="m", path="m", content_hash="-"),
        "dataset": dataset,
        "method": LoraMethod(),
        "steps": 1,
    }
    return JobSpec(**(values | changes))


def _rows(count: int, first: int = 0) -> list[Row]:
    return [
        ChatRow(i, (Turn("user", f"q {i}", False), Turn("assistant", f"a {i}")))
        for i in range(first, first + count)
    ]


def _nothing(_: int) -> None:
    pass


@pytest.fixture
def tokenizer(tmp_path: Path) -> ChatTokenizer:
    save_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


def test_every_row_has_one_place(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    rows = [*_rows(200), ChatRow(900, (Turn("user", "x" * 999, False), Turn("assistant", "y")))]
    ref = _ref(tmp_path / "rows", rows)
    read: list[int] = []
    spec = _spec(ref, eval=EvalSpec(selection_fraction=0.2, test_fraction=0.1, max_rows=10))
    data = load_data(spec, tokenizer, 64, read.append)
    assert read == list(range(1, 202))
    assert list(data.rejects.counts) == ["too-long"]
    assert (len(data.selection), len(data.test), len(data.prompts)) == (10, 10, 3)
    lines = [row.line for group in (data.train, data.selection, data.test) for row in group]
    assert len(set(lines)) == len(lines)


def test_jobs_of_other_seeds_may_share_a_split(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    ref = _ref(tmp_path / "rows", _rows(100))

    def held_out(seed: int, split_seed: int | None) -> list[list[int]]:
        split = EvalSpec(selection_fraction=0.2, test_fraction=0.2, split_seed=split_seed)
        data = load_data(_spec(ref, seed=seed, eval=split), tokenizer, 64, lambda _: None)
        return [[row.line for row in rows] for rows in (data.selection, data.test)]

    assert held_out(1, 5) == held_out(2, 5) == held_out(5, None)
    assert held_out(1, None) != held_out(2, None)


def test_a_selection_of_its_own_replaces_the_split(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    own = _ref(tmp_path / "own", _rows(5, first=500))
    spec = _spec(_ref(tmp_path / "rows", _rows(50)), eval=EvalSpec(selection=own))
    data = load_data(spec, tokenizer, 64, _nothing)
    assert (len(data.train), [row.line for row in data.selection]) == (50, list(range(500, 505)))
    assert [prompt.text for prompt in data.prompts] == ["q 500", "q 501", "q 502"]


def test_rows_that_the_template_refuses_are_left_out_and_never_asked(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, template=USER_FIRST)
    tokenizer = load_tokenizer(tmp_path)
    refused: list[Row] = [ChatRow(i, (Turn("assistant", f"a {i}"),)) for i in range(100)]
    own = _ref(tmp_path / "own", [*refused, *_rows(1, first=700)])
    spec = _spec(_ref(tmp_path / "rows", _rows(5)), eval=EvalSpec(selection=own))
    data = load_data(spec, tokenizer, 64, _nothing)
    assert list(data.rejects.counts) == ["template-refused"]
    assert [prompt.text for prompt in data.prompts] == ["q 700"]


def test_a_row_that_starts_with_its_answer_is_no_question(tmp_path: Path) -> None:
    # Usable as a whole, but the template refuses the nothing before the answer.
    template = "{% if not messages %}{{ raise_exception('empty') }}{% endif %}" + TEMPLATE
    save_tokenizer(tmp_path, template=template)
    turns = (Turn("assistant", "hi", False), Turn("user", "q", False), Turn("assistant", "a"))
    rows: list[Row] = [ChatRow(1, turns)]
    own = _ref(tmp_path / "own", rows)
    spec = _spec(_ref(tmp_path / "rows", _rows(5)), eval=EvalSpec(selection=own))
    data = load_data(spec, load_tokenizer(tmp_path), 64, _nothing)
    assert (len(data.selection), data.prompts) == (1, [])


def test_named_questions_are_asked(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    spec = _spec(_ref(tmp_path / "rows", _rows(50)), eval=EvalSpec(sample_prompts=("Who?",)))
    (prompt,) = load_data(spec, tokenizer, 64, _nothing).prompts
    assert prompt.text == "Who?"
    assert list(prompt.ids) == tokenizer.encode("<|start|>user\nWho?<|end|>\n<|start|>assistant\n")


def test_a_dataset_that_changed_or_went_is_refused(
    tmp_path: Path, tokenizer: ChatTokenizer
) -> None:
    ref = _ref(tmp_path / "rows", _rows(3))
    _ref(tmp_path / "rows", _rows(4))
    with pytest.raises(SlidepackError) as caught:
        load_data(_spec(ref), tokenizer, 64, _nothing)
    assert caught.value.report.code == "DATA-CHANGED"
    (tmp_path / "rows").unlink()
    with pytest.raises(SlidepackError) as caught:
        load_data(_spec(ref), tokenizer, 64, _nothing)
    assert caught.value.report.code == "DATA-NOT-FOUND"


def test_a_base_model_is_asked_as_its_data_talks(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, template=None)
    tokenizer = load_tokenizer(tmp_path)
    asked = EvalSpec(sample_prompts=("Who?",), selection_fraction=0.0)
    talks = _spec(_ref(tmp_path / "talks", _rows(5)), eval=asked)
    (prompt,) = load_data(talks, tokenizer, 256, _nothing).prompts
    assert tokenizer.decode(list(prompt.ids)) == "### Instruction:\nWho?\n\n### Response:\n"
    texts: list[Row] = [TextRow(i, f"text {i}") for i in range(5)]
    writes = _spec(_ref(tmp_path / "texts", texts), eval=asked)
    data = load_data(writes, tokenizer, 256, _nothing)
    assert len(data.train) == 5
    assert tokenizer.decode(list(data.prompts[0].ids)) == "Who?"


def test_held_out_texts_ask_nothing(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    texts: list[Row] = [TextRow(i, f"text {i}") for i in range(100)]
    data = load_data(_spec(_ref(tmp_path / "rows", texts)), tokenizer, 64, _nothing)
    assert data.selection
    assert data.prompts == []


@pytest.mark.parametrize(("too_long", "samples"), [("drop", 0), ("cut", 1), ("split", 5)])
def test_the_job_says_what_becomes_of_long_rows(
    tmp_path: Path, tokenizer: ChatTokenizer, too_long: str, samples: int
) -> None:
    ref = _ref(tmp_path / "rows", [*_rows(1), TextRow(9, "x" * 300)])
    spec = _spec(ref, too_long=too_long, eval=EvalSpec(selection_fraction=0.0))
    data = load_data(spec, tokenizer, 64, _nothing)
    assert [row.line for row in data.train] == [0] + [9] * samples
    assert data.rejects.counts.total() == (too_long == "drop")


def test_nothing_left_names_the_first_row(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    ref = _ref(tmp_path / "rows", [CompletionRow(4, "a" * 100, "b")])
    with pytest.raises(SlidepackError) as caught:
        load_data(_spec(ref, eval=EvalSpec(selection_fraction=0.0)), tokenizer, 64, _nothing)
    assert caught.value.report.code == "DATA-NO-USABLE-ROWS"
    assert caught.value.report.why == "line 4: too-long (102 tokens, the limit is 64)"


def _long_at(*lines: int) -> list[Row]:
    return [CompletionRow(i, f"q {i}", "a" * (200 if i in lines else 5)) for i in range(12)]


def test_rows_that_are_left_out_are_written_and_counted(
    tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    spec = _spec(_ref(tmp_path / "rows", _long_at(3, 9)))
    left_out = load_data(spec, tokenizer, 64, _nothing, rejects=tmp_path / "rejects").rejects
    assert left_out.first is not None
    assert left_out.sentence() == (
        f"2 rows are left out (2 too-long); the first is line 3: {left_out.first.detail}."
    )
    assert _written(tmp_path / "rejects") == [(3, "too-long"), (9, "too-long")]


def test_where_none_is_left_out_no_file_is_made(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    spec = _spec(_ref(tmp_path / "rows", _long_at()))
    left_out = load_data(spec, tokenizer, 64, _nothing, rejects=tmp_path / "rejects").rejects
    assert left_out.sentence() == ""
    assert not (tmp_path / "rejects").exists()


def test_where_all_are_left_out_the_file_has_them_all(
    tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    spec = _spec(_ref(tmp_path / "rows", _long_at(*range(12))))
    with pytest.raises(SlidepackError, match="DATA-NO-USABLE-ROWS"):
        load_data(spec, tokenizer, 64, _nothing, rejects=tmp_path / "rejects")
    assert _written(tmp_path / "rejects") == [(line, "too-long") for line in range(12)]


def _written(path: Path) -> list[tuple[int, str]]:
    rejects = (msgspec.json.decode(line, type=Reject) for line in path.read_bytes().splitlines())
    return [(reject.line, reject.reason) for reject in rejects]


def test_rows_with_a_token_beyond_the_embedding_are_left_out(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    path = str(tmp_path / "tokenizer.json")
    plain = Tokenizer.from_file(path)
    plain.add_tokens([AddedToken("<image>", special=True)])
    plain.save(path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 260
    assert tokenizer.plain_tokens_beyond(259) == []
    assert len(tokenizer.plain_tokens_beyond(257)) == 2

    rows = _rows(12)
    rows[4] = ChatRow(4, (Turn("user", "q", False), Turn("assistant", "see <image> here")))
    spec = _spec(_ref(tmp_path / "rows", rows), eval=EvalSpec(selection_fraction=0.0))
    data = load_data(spec, tokenizer, 64, _nothing, vocab=259)
    assert len(data.train) == 11
    reject = data.rejects.first
    assert reject is not None and data.rejects.counts.total() == 1
    assert (reject.line, reject.reason) == (4, "unknown-token")
    assert reject.detail == "it holds token 259, the model has 259"
    assert len(load_data(spec, tokenizer, 64, _nothing, vocab=260).train) == 12


def test_a_question_with_a_token_beyond_the_embedding_is_not_asked(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    ref = _ref(tmp_path / "rows", _rows(3))
    spec = _spec(ref, eval=EvalSpec(selection_fraction=0.0, sample_prompts=("z", "\u0143")))
    highest = max(tokenizer.encode("\u0143"))
    assert len(load_data(spec, tokenizer, 64, _nothing).prompts) == 2
    data = load_data(spec, tokenizer, 64, _nothing, vocab=highest)
    assert [prompt.text for prompt in data.prompts] == ["z"]
