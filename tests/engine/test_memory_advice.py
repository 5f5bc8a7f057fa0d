"""What would fit: each change that is named fits, and a little less of it does not."""

from typing import Any

import msgspec
import pytest

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import (
    DatasetRef,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
    OptimSpec,
)
from slidepack.engine.memory import Machine, plan_run
from slidepack.engine.memory_advice import advise, ram_by_moments

SHAPE = SHAPES["llama-3b"]
STEP = 1 << 26


def _spec(batch: int = 8, seq: int = 1024, clip: float = 0.0, lora: bool = False) -> JobSpec:
    return JobSpec(
        name="n",
        base=ModelRef(model_id="m", path="m", content_hash="-"),
        dataset=DatasetRef(dataset_id="d", path="d", content_hash="-"),
        method=LoraMethod() if lora else FullMethod(),
        optim=OptimSpec(clip_norm=clip),
        batch_size=batch,
        max_seq_len=seq,
        steps=1,
    )


def _machine(vram: float, ram: float) -> Machine:
    return Machine(
        device="cuda:0",
        device_free_bytes=int(vram * 1e9),
        ram_available_bytes=int(ram * 1e9),
        cpu_threads=8,
    )


def _fits(spec: JobSpec, machine: Machine, **memory: int) -> bool:
    try:
        plan_run(spec, SHAPE, msgspec.structs.replace(machine, **memory))
    except SlidepackError:
        return False
    return True


def test_too_little_ram() -> None:
    spec, machine = _spec(clip=1.0), _machine(24, 20)
    advice = advise(spec, SHAPE, machine)
    needed = advice.ram_needed_bytes
    assert needed is not None
    assert _fits(spec, machine, ram_available_bytes=needed)
    assert not _fits(spec, machine, ram_available_bytes=needed - STEP)
    assert (advice.vram_needed_bytes, advice.largest_batch, advice.largest_seq) == (None,) * 3
    assert advice.sentences() == (f"Use a machine with {needed / (1 << 30):.1f} GiB of free RAM.",)


def test_clipping_may_be_what_is_too_much() -> None:
    spec, machine = _spec(clip=1.0), _machine(24, 26)
    assert not _fits(spec, machine)
    advice = advise(spec, SHAPE, machine)
    assert advice.without_clipping
    assert advice.sentences()[0] == "Turn clipping off (--clip 0)."


def test_rows_may_be_what_is_too_much() -> None:
    spec, machine = _spec(batch=2048), _machine(24, 64)
    advice = advise(spec, SHAPE, machine)
    batch, seq = advice.largest_batch, advice.largest_seq
    assert batch is not None
    assert seq is not None
    assert _fits(_spec(batch), machine)
    assert not _fits(_spec(batch + 1), machine)
    assert _fits(_spec(2048, seq), machine)
    assert not _fits(_spec(2048, seq + 1), machine)
    assert f"at most {batch} rows" in " ".join(advice.sentences())


@pytest.mark.parametrize("ram", [64, 8])
def test_too_little_vram(ram: float) -> None:
    spec, machine = _spec(batch=1, seq=65536), _machine(8, ram)
    advice = advise(spec, SHAPE, machine)
    vram = advice.vram_needed_bytes
    assert vram is not None
    assert _fits(spec, machine, device_free_bytes=vram, ram_available_bytes=1 << 50)
    assert not _fits(spec, machine, device_free_bytes=vram - STEP, ram_available_bytes=1 << 50)
    # Where both are short, both are said.
    assert (advice.ram_needed_bytes is not None) == (ram == 8)
    assert ("RAM" in advice.sentences()[-1].split("VRAM")[1]) == (ram == 8)
    if ram == 64:
        assert advice.largest_seq is not None
        assert _fits(_spec(1, advice.largest_seq), machine)
        assert not _fits(_spec(1, advice.largest_seq + 1), machine)


def test_adapters_get_advice_too() -> None:
    spec = _spec(batch=64, seq=4096, lora=True)
    # A step is cut, and the base slides: what is left is a row that is too long for a pass.
    machine = _machine(3, 64)
    assert not _fits(spec, machine)
    advice = advise(spec, SHAPE, machine)
    assert advice.vram_needed_bytes is not None
    assert _fits(spec, machine, device_free_bytes=advice.vram_needed_bytes)
    assert not _fits(spec, machine, device_free_bytes=advice.vram_needed_bytes - STEP)
    assert advice.largest_seq is not None
    assert _fits(_spec(batch=64, seq=advice.largest_seq, lora=True), machine)
    assert ram_by_moments(spec, SHAPE, machine) == {}


def test_the_ram_that_each_form_of_the_moments_wants() -> None:
    found: dict[str, Any] = ram_by_moments(_spec(), SHAPE, _machine(24, 1))
    assert list(found) == ["fp32", "bf16", "int8"]
    assert found["fp32"] > found["bf16"] > found["int8"]
    for moments, needed in found.items():
        spec = msgspec.structs.replace(_spec(), method=FullMethod(moments=moments))  # type: ignore[arg-type]  # a key of the answer
        assert _fits(spec, _machine(24, 1), ram_available_bytes=needed)
        assert not _fits(spec, _machine(24, 1), ram_available_bytes=needed - STEP)
    assert ram_by_moments(_spec(), SHAPE, _machine(1, 1)) == {}
