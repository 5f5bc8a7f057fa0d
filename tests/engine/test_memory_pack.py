"""Plans of packs: they leave room for who comes later, and refuse who does not fit."""

import msgspec
import pytest

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef
from slidepack.engine.memory import Machine, plan_run
from slidepack.engine.memory_pack import lane_disk_bytes, pack_need, plan_pack, why_no_lane_fits
from slidepack.engine.memory_parts import usable_bytes

SHAPE = SHAPES["llama-1b"]


def _spec(rank: int = 16, batch: int = 1, length: int = 512) -> JobSpec:
    return JobSpec(
        name="lane",
        base=ModelRef(model_id="b", path="/nowhere", content_hash="-"),
        dataset=DatasetRef(dataset_id="1", path="/nowhere", content_hash="-"),
        method=LoraMethod(rank=rank),
        batch_size=batch,
        max_seq_len=length,
        steps=10,
    )


def _card(gib: float) -> Machine:
    return Machine(
        device="cuda:0",
        device_free_bytes=int(gib * (1 << 30)),
        ram_available_bytes=64 << 30,
        cpu_threads=8,
    )


@pytest.mark.parametrize("gib", [6.0, 8.0, 12.0, 24.0])
def test_a_pack_of_one_runs_as_the_job_alone_and_has_room_for_more(gib: float) -> None:
    alone = plan_run(_spec(), SHAPE, _card(gib))
    pack = plan_pack([_spec()], [], SHAPE, _card(gib))
    assert pack.layer_activations == alone.layer_activations
    assert pack.micro_batch_tokens >= alone.micro_batch_tokens
    assert pack.predicted_disk_bytes == alone.predicted_disk_bytes
    assert pack_need(pack, [_spec()], SHAPE).device_bytes <= usable_bytes(
        _card(gib).device_free_bytes
    )
    if gib >= 12.0:
        assert pack.micro_batch_tokens > 4096
        assert why_no_lane_fits(pack, [_spec(), _spec()], SHAPE, _card(gib)) == ""


def test_lanes_join_until_the_memory_is_full() -> None:
    machine = _card(12.0)
    specs = [_spec(rank=64)]
    plan = plan_pack(specs, [], SHAPE, machine)
    why = ""
    while not why and len(specs) < 500:
        specs.append(_spec(rank=64))
        why = why_no_lane_fits(plan, specs, SHAPE, machine)
    assert 4 <= len(specs) < 500
    assert "GiB VRAM" in why
    need = pack_need(plan, specs[:-1], SHAPE)
    assert need.device_bytes <= usable_bytes(machine.device_free_bytes)


def test_who_may_come_later_has_room() -> None:
    machine = _card(13.0)
    later = [_spec(rank=64) for _ in range(6)]
    blind = plan_pack([_spec()], [], SHAPE, machine)
    seeing = plan_pack([_spec()], later, SHAPE, machine)
    assert seeing.micro_batch_tokens <= blind.micro_batch_tokens
    assert why_no_lane_fits(seeing, [_spec(), *later], SHAPE, machine) == ""


def test_longer_rows_than_a_pass_holds_do_not_join() -> None:
    machine = msgspec.structs.replace(_card(0.0), device="cpu", device_free_bytes=0)
    plan = plan_pack([_spec()], [], SHAPE, machine)
    assert plan.micro_batch_tokens == 2048, "a CPU gains nothing from larger passes"
    why = why_no_lane_fits(plan, [_spec(), _spec(length=4096)], SHAPE, machine)
    assert why == "its rows may have 4096 tokens, a pass of the pack 2048 at most"


def test_a_sliding_pack_bounds_the_tokens_of_a_step() -> None:
    shape, machine = SHAPES["llama-8b"], _card(8.0)
    plan = plan_pack([_spec()], [], shape, machine)
    assert plan.slide is not None
    assert why_no_lane_fits(plan, [_spec()] * 8, shape, machine) == ""
    many = [_spec(batch=plan.slide.max_tokens // 512), _spec()]
    assert "tokens" in why_no_lane_fits(plan, many, shape, machine)


def test_what_fits_nowhere_is_refused_as_a_run_is() -> None:
    with pytest.raises(SlidepackError) as refused:
        plan_pack([_spec()], [], SHAPE, _card(0.5))
    assert refused.value.report.code == "GPU-OUT-OF-MEMORY"


def test_a_lane_needs_the_disk_for_its_own_checkpoints() -> None:
    assert lane_disk_bytes(_spec(rank=32), SHAPE) == 2 * lane_disk_bytes(_spec(rank=16), SHAPE)


def test_passes_of_exact_packs_are_alike_whoever_is_in_them() -> None:
    machine = _card(24.0)
    plans = [
        plan_pack(specs, later, SHAPE, machine, exact=True)
        for specs, later in (
            ([_spec()], []),
            ([_spec(batch=8), _spec(rank=64)], []),
            ([_spec(rank=4)], [_spec(rank=128)] * 5),
        )
    ]
    assert {plan.micro_batch_tokens for plan in plans} == {4096}
    longer = plan_pack([_spec(length=8192)], [], SHAPE, machine, exact=True)
    assert longer.micro_batch_tokens == 8192
