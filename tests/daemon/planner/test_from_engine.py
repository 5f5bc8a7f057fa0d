"""The planner's sizes are the engine's: what it packs, the engine's own plan accepts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidepack.daemon.planner.from_engine import (
    base_on_device,
    full_task,
    lora_task,
    memory_to_plan,
    model_key,
)
from slidepack.daemon.planner.instance import Instance, keeps_activations
from slidepack.daemon.planner.tasks import Device
from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef, Precision
from slidepack.engine.memory_lora import plan_lanes
from slidepack.engine.memory_parts import GIB, Machine
from slidepack.engine.rates import rates_of
from slidepack.engine.timing import lora_step, work_of

SHAPE = SHAPES["llama-1b"]


def _spec(rank: int = 8, batch: int = 4, seq: int = 512, form: Precision = "auto") -> JobSpec:
    return JobSpec(
        name="job",
        base=ModelRef(model_id="1", path="/nowhere", content_hash="hash"),
        dataset=DatasetRef(dataset_id="1", path="/nowhere/rows", content_hash="-"),
        method=LoraMethod(rank=rank, alpha=rank, base_precision=form),
        batch_size=batch,
        max_seq_len=seq,
        steps=10,
    )


def _machine(device: str = "cuda:0", gib: float = 8.0, ram: float = 64.0) -> Machine:
    return Machine(
        device=device,
        device_free_bytes=round(gib * GIB),
        ram_available_bytes=round(ram * GIB),
        cpu_threads=4,
    )


def _instance(specs: list[JobSpec], machine: Machine) -> Instance | None:
    method = specs[0].method
    assert isinstance(method, LoraMethod)
    rates = rates_of("NVIDIA GeForce RTX 4090", cpu_threads=4)
    on = base_on_device(method, SHAPE, machine, rates, sequence=512)
    if on is None:
        return None
    tasks = [
        lora_task(f"t{i}", spec, SHAPE, steps=10, row_tokens=50.0, device=machine.device)
        for i, spec in enumerate(specs)
    ]
    device = Device(key="d", memory_bytes=memory_to_plan(machine), bases={tasks[0].model: on})
    return Instance(tasks, [device], (), 0.0)


@settings(max_examples=150)
@given(
    lanes=st.lists(
        st.tuples(
            st.sampled_from((8, 64, 1024)),
            st.sampled_from((1, 4, 32)),
            st.sampled_from((64, 512, 4096)),
        ),
        min_size=1,
        max_size=5,
    ),
    form=st.sampled_from(("auto", "nf4")),
    device=st.sampled_from(("cuda:0", "cpu")),
    gib=st.floats(2.0, 24.0),
)
def test_a_pack_fits_where_the_engines_plan_says_so_and_keeps_what_that_keeps(
    lanes: list[tuple[int, int, int]], form: Precision, device: str, gib: float
) -> None:
    machine = _machine(device, gib, gib if device == "cpu" else 64.0)
    specs = [_spec(*lane, form) for lane in lanes]
    try:
        plan, _ = plan_lanes(specs, SHAPE, machine)
    except SlidepackError:
        plan = None
    if plan is not None and plan.slide is not None:
        return
    instance = _instance(specs, machine)
    if instance is None:
        assert plan is None
        return
    base = instance.seats[0].bases[instance.tasks[0].model]
    params = sum(task.params for task in instance.tasks)
    longest, tokens = max(instance.rows), sum(task.step_tokens for task in instance.tasks)
    memory = instance.seats[0].memory_bytes
    used = base.fixed_bytes + params * base.bytes_per_param + base.recompute.of(longest)
    if base.most_params is None:
        assert (used <= memory) == (plan is not None)
        if plan is not None:
            keeps = keeps_activations(base, memory, params, longest, tokens)
            assert keeps == (plan.layer_activations[0] == "keep")


def test_the_prior_is_the_engines_prediction() -> None:
    rates = rates_of("NVIDIA GeForce RTX 4090", cpu_threads=4)
    on = base_on_device(LoraMethod(), SHAPE, _machine(gib=22.0), rates, sequence=512)
    assert on is not None
    for tokens in (64, 1000, 9000):
        step = lora_step(
            SHAPE, work_of(SHAPE, 512), tokens, rates, keep=True, slides=False, params=0, passes=1
        )
        told = on.cost.seconds(tokens, 1) - on.cost.lane_seconds
        assert told == pytest.approx(step.seconds, rel=1e-6)
    again = lora_step(
        SHAPE, work_of(SHAPE, 512), 9000, rates, keep=False, slides=False, params=0, passes=1
    )
    told = on.cost.seconds(9000, 1, on.recompute_slowdown) - on.cost.lane_seconds
    assert told == pytest.approx(again.seconds, rel=0.01)


def test_a_base_that_is_too_large_slides_and_its_adapters_are_bound_by_the_ram() -> None:
    shape, rates = SHAPES["llama-8b"], rates_of("NVIDIA GeForce RTX 4090", cpu_threads=4)
    on = base_on_device(LoraMethod(), shape, _machine(gib=10.0), rates, sequence=512)
    assert on is not None
    assert on.keep is None
    assert on.most_params is not None
    assert on.cost.floor_seconds > 1.0
    specs = [_spec(seq=512)]
    plan, _ = plan_lanes(specs, shape, _machine(gib=10.0))
    assert plan.slide is not None
    assert on.fixed_bytes + on.recompute.of(512) <= memory_to_plan(_machine(gib=10.0))
    assert base_on_device(LoraMethod(), shape, _machine(gib=1.0), rates, sequence=512) is None
    small_ram = _machine(gib=10.0, ram=8.0)
    assert base_on_device(LoraMethod(), shape, small_ram, rates, sequence=512) is None
    in_four_bits = LoraMethod(base_precision="nf4")
    assert base_on_device(in_four_bits, shape, _machine(gib=4.0), rates, sequence=512) is None


def test_lanes_of_other_precisions_do_not_share_a_pack() -> None:
    keys = {
        *(model_key(_spec(form=form), "cuda:0") for form in ("auto", "fp32", "nf4")),
        model_key(_spec(form="bf16"), "cuda:0"),
    }
    assert len(keys) == 3


def test_a_lanes_tokens_are_those_of_its_rows() -> None:
    task = lora_task("a", _spec(batch=4, seq=512), SHAPE, steps=7, row_tokens=70.4, device="cpu")
    assert (task.tokens, task.step_tokens, task.row_tokens, task.steps) == (282, 2048, 512, 7)
    assert task.params == SHAPE.lora_params(8, LoraMethod().targets)


def test_a_full_fine_tuning_has_a_step_time_on_each_device_that_it_fits() -> None:
    task = full_task("f", steps=5, step_seconds={"d": 2.0}, startup_seconds=9.0, refusal="Too big.")
    assert task.kind == "full"
    instance = Instance([task], [Device(key="d", memory_bytes=1, bases={})], (), 0.0)
    assert instance.solo_seconds(0, 0) == 10.0
    assert instance.startup_seconds(0, 0) == 9.0
