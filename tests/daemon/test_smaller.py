"""A job that ran out of memory, again with less."""

import msgspec
import pytest

from slidepack.daemon.smaller import Taken, smaller_spec
from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef
from slidepack.engine.memory import GIB, Machine, plan_run

_MODEL = 4 * GIB


def _spec(rows: int, tokens: int) -> JobSpec:
    return JobSpec(
        name="big",
        base=ModelRef(model_id="m", path="/m", content_hash="a" * 64),
        dataset=DatasetRef(dataset_id="1", path="/d", content_hash="b" * 64),
        method=LoraMethod(base_precision="nf4"),
        steps=10,
        batch_size=rows,
        max_seq_len=tokens,
    )


def _by_rows(spec: JobSpec) -> Taken:
    return Taken(_MODEL + spec.batch_size * spec.max_seq_len * (1 << 20), GIB)


def _by_length(spec: JobSpec) -> Taken:
    return Taken(_MODEL + spec.max_seq_len * (1 << 23), GIB)


def _by_little(spec: JobSpec) -> Taken | None:
    return _by_rows(spec) if spec.batch_size * spec.max_seq_len <= 512 else None


def _in_ram(spec: JobSpec) -> Taken:
    return Taken(_MODEL, GIB + spec.batch_size * (1 << 28))


@pytest.mark.parametrize(
    ("rows", "tokens", "taken", "smaller"),
    [
        (8, 512, None, (4, 512)),
        (1, 512, None, (1, 256)),
        (8, 512, _by_rows, (4, 512)),
        # Rows are taken in portions anyway: only shorter ones take less.
        (8, 512, _by_length, (8, 256)),
        # By the plan it did not fit at all: whatever fits will do.
        (8, 512, _by_little, (1, 512)),
    ],
)
def test_fewer_rows_a_step_where_that_takes_less_and_else_shorter_ones(
    rows: int, tokens: int, taken: object, smaller: tuple[int, int]
) -> None:
    spec = _spec(rows, tokens)
    found = smaller_spec(spec, taken)  # type: ignore[arg-type]  # one of the functions above
    assert (found.batch_size, found.max_seq_len) == smaller
    assert msgspec.structs.replace(found, batch_size=rows, max_seq_len=tokens) == spec


def test_what_is_short_is_what_must_get_less() -> None:
    assert smaller_spec(_spec(8, 512), _in_ram, of_ram=True).batch_size == 4
    with pytest.raises(SlidepackError, match=r"4\.0 GiB of VRAM"):
        smaller_spec(_spec(8, 512), _in_ram)


@pytest.mark.parametrize(("rows", "taken"), [(1, None), (4, lambda _: None)])
def test_where_nothing_smaller_is_left_it_says_so(rows: int, taken: object) -> None:
    with pytest.raises(SlidepackError) as caught:
        smaller_spec(_spec(rows, 16), taken)  # type: ignore[arg-type]  # one of the functions above
    assert caught.value.report.code == "RUN-SPEC-INVALID"
    assert "at most 16 tokens" in caught.value.report.why


@pytest.mark.parametrize("rows", [4, 8, 32])
def test_by_the_memory_model_it_takes_a_tenth_less(rows: int) -> None:
    shape = SHAPES["llama-8b"]
    machine = Machine(
        device="cuda:0", device_free_bytes=24 * GIB, ram_available_bytes=64 * GIB, cpu_threads=8
    )

    def taken(spec: JobSpec) -> Taken:
        plan = plan_run(spec, shape, machine)
        return Taken(plan.predicted_device_bytes, plan.predicted_host_bytes)

    before = _spec(rows, 4096)
    after = smaller_spec(before, taken)
    assert taken(after).vram <= 0.9 * taken(before).vram
