"""The first training row of a job, rendered by a process of its own."""

from pathlib import Path

import msgspec
import pytest
from support.stores import plain_spec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, EvalSpec, JobSpec, ModelRef
from slidepack.engine.data.first_row import first_row_in_process
from slidepack.engine.data.rows import ChatRow, Turn, decode_row, encode_row
from slidepack.engine.data.split import split_of

_ASKED = ("Name a stone", "Name a river", "Name a cloud", "Name an ember", "Name a leaf")


@pytest.fixture
def spec(tiny_model: Path, tmp_path: Path) -> JobSpec:
    rows = [
        ChatRow(line, (Turn("user", asked, False), Turn("assistant", f"It is {line}", True)))
        for line, asked in enumerate(_ASKED, start=1)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(encode_row(row) for row in rows))
    return msgspec.structs.replace(
        plain_spec(),
        base=ModelRef(model_id="tiny", path=str(tiny_model), content_hash="-"),
        dataset=DatasetRef(dataset_id="1", path=str(path), content_hash="-"),
        max_seq_len=128,
        eval=EvalSpec(selection_fraction=0.5),
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_is_the_first_row_that_is_not_held_out_and_shows_what_is_learned(
    spec: JobSpec, seed: int
) -> None:
    spec = msgspec.structs.replace(spec, seed=seed)
    rows = [decode_row(line) for line in Path(spec.dataset.path).read_bytes().splitlines()]
    first = next(row for row in rows if split_of(row, seed, 0.5, 0.0) == "train")
    found = first_row_in_process(spec)
    assert found.shown.line == first.line
    text = "".join(span.text for span in found.shown.spans)
    learned = "".join(span.text for span in found.shown.spans if span.learned)
    assert _ASKED[first.line - 1] in text
    assert _ASKED[first.line - 1] not in learned
    assert f"It is {first.line}" in learned
    assert 0 < found.learned < found.tokens


def test_what_stands_in_the_way_is_told(spec: JobSpec, tmp_path: Path) -> None:
    gone = msgspec.structs.replace(
        spec, dataset=msgspec.structs.replace(spec.dataset, path=str(tmp_path / "gone"))
    )
    broken = msgspec.structs.replace(
        spec, base=msgspec.structs.replace(spec.base, path=str(tmp_path))
    )
    short = msgspec.structs.replace(spec, max_seq_len=16)
    codes = []
    for one in (gone, broken, short):
        with pytest.raises(SlidepackError) as refused:
            first_row_in_process(one)
        codes.append(refused.value.report.code)
    assert codes == ["DATA-NOT-FOUND", "MODEL-BROKEN", "DATA-NO-USABLE-ROWS"]
