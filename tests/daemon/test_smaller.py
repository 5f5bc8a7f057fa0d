"""A job that ran out of memory, again with less."""

import msgspec
import pytest

from slidepack.daemon.smaller import smaller_spec
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef
from slidepack.engine.memory_advice import Advice

_NOTHING = Advice(
    ram_needed_bytes=None,
    vram_needed_bytes=None,
    largest_batch=None,
    largest_seq=None,
    without_clipping=False,
)


def _spec(rows: int, tokens: int) -> JobSpec:
    return JobSpec(
        name="big",
        base=ModelRef(model_id="m", path="/m", content_hash="a" * 64),
        dataset=DatasetRef(dataset_id="1", path="/d", content_hash="b" * 64),
        method=LoraMethod(),
        steps=10,
        batch_size=rows,
        max_seq_len=tokens,
    )


def _advice(rows: int | None, tokens: int | None) -> Advice:
    return msgspec.structs.replace(_NOTHING, largest_batch=rows, largest_seq=tokens)


@pytest.mark.parametrize(
    ("rows", "tokens", "advice", "smaller"),
    [
        (8, 512, None, (4, 512)),
        # What the memory model allows has just failed, so half of it is tried.
        (8, 512, _advice(7, 511), (4, 512)),
        (8, 512, _advice(2, 128), (2, 512)),
        (1, 512, _advice(None, 511), (1, 256)),
        (1, 512, None, (1, 256)),
        # Not even one row fits, but a shorter one does.
        (8, 512, _advice(None, 100), (8, 100)),
    ],
)
def test_fewer_rows_a_step_and_then_shorter_ones(
    rows: int, tokens: int, advice: Advice | None, smaller: tuple[int, int]
) -> None:
    spec = _spec(rows, tokens)
    found = smaller_spec(spec, advice)
    assert (found.batch_size, found.max_seq_len) == smaller
    assert msgspec.structs.replace(found, batch_size=rows, max_seq_len=tokens) == spec


@pytest.mark.parametrize(("rows", "tokens", "advice"), [(1, 16, None), (4, 64, _NOTHING)])
def test_where_nothing_smaller_is_left_it_says_so(
    rows: int, tokens: int, advice: Advice | None
) -> None:
    with pytest.raises(SlidepackError) as caught:
        smaller_spec(_spec(rows, tokens), advice)
    assert caught.value.report.code == "RUN-SPEC-INVALID"
    assert str(tokens) in caught.value.report.why
