"""What goes to drives where the RAM is too small: as little as will do, and told."""

import itertools
from typing import Any

import msgspec
import pytest

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import (
    DatasetRef,
    FullMethod,
    JobSpec,
    ModelRef,
    NvmeUse,
    OptimSpec,
)
from slidepack.engine.contract.plan import FullPlan, NvmePlan, RunPlan
from slidepack.engine.drive_wear import drives_text, wear_of
from slidepack.engine.memory import Machine, plan_in_detail, tighten, usable_bytes
from slidepack.engine.memory_full_need import drive_state_bytes, full_need, state_bytes, unit_sizes
from slidepack.engine.memory_nvme import traffic, units_in_order, with_traffic
from slidepack.engine.memory_parts import MemoryNeed, NvmeRoom
from slidepack.engine.rates import rates_of, with_drives
from slidepack.engine.timing import step_time

LLAMA_8B = SHAPES["llama-8b"]
ROOM = NvmeRoom(
    folders=("/mnt/fast",),
    free_bytes=2 * 10**12,
    read_bytes_per_second=3e9,
    write_bytes_per_second=2e9,
    both_bytes_per_second=5e9,
    measured=True,
    rated_write_bytes=600e12,
    rated_source="its data sheet",
    written_bytes=100e12,
)


def _spec(clip: float = 0.0, batch: int = 8, **method: Any) -> JobSpec:
    return JobSpec(
        name="n",
        base=ModelRef(model_id="m", path="m", content_hash="-"),
        dataset=DatasetRef(dataset_id="d", path="d", content_hash="-"),
        method=FullMethod(**method),
        optim=OptimSpec(clip_norm=clip),
        batch_size=batch,
        max_seq_len=1024,
        steps=1,
    )


def _machine(ram: float, *, vram: float = 24.0, room: NvmeRoom | None = ROOM) -> Machine:
    return Machine(
        device="cuda:0" if vram else "cpu",
        device_free_bytes=int(vram * 1e9),
        ram_available_bytes=int(ram * 1e9),
        cpu_threads=8,
        nvme=room,
    )


def _tier(plan: RunPlan) -> NvmePlan:
    assert plan.full is not None
    assert plan.full.nvme is not None
    return plan.full.nvme


def _planned(ram: float, shape: str = "llama-8b", **asked: Any) -> tuple[RunPlan, MemoryNeed]:
    return plan_in_detail(_spec(**asked), SHAPES[shape], _machine(ram))


def test_nothing_goes_to_drives_where_the_ram_has_room() -> None:
    for ram, moments in ((130, "fp32"), (90, "bf16"), (64, "int8")):
        plan, need = _planned(ram)
        assert plan.full is not None
        assert (plan.full.nvme, plan.full.moments) == (None, moments)
        assert not any("drives" in what for what in (*need.host, *need.disk))
        assert (plan, need) == plan_in_detail(_spec(), LLAMA_8B, _machine(ram, room=None))


def test_less_ram_puts_moments_there_then_weights_then_inputs_and_never_more_than_needed() -> None:
    seen: list[tuple[int, int, int]] = []
    for ram in (72, 64, 56, 48, 40, 32, 24, 20):
        plan, need = _planned(ram, batch=64)
        tier = _tier(plan)
        counts = len(tier.moments), len(tier.master), len(tier.rows)
        assert need.host_bytes <= usable_bytes(int(ram * 1e9))
        assert set(tier.master) <= set(tier.moments)
        units = len(unit_sizes(LLAMA_8B))
        assert counts[1] == 0 or counts[0] == units
        assert counts[2] == 0 or counts[1] == units
        seen.append(counts)
    assert seen == sorted(seen)
    assert seen[0][1:] == (0, 0)
    assert seen[-1][2] > 0


def test_one_unit_less_would_not_fit() -> None:
    plan, need = _planned(46)
    tier = _tier(plan)
    assert plan.full is not None
    order = units_in_order(32, 34)
    less = msgspec.structs.replace(tier, moments=tuple(sorted(order[: len(tier.moments) - 1])))
    fuller = full_need(
        LLAMA_8B,
        msgspec.structs.replace(plan.full, nvme=less),
        plan.micro_batch_tokens,
        clip=False,
        on_cpu=False,
    )
    assert need.host_bytes <= usable_bytes(int(46e9)) < fuller.host_bytes


@pytest.mark.parametrize("layers", [1, 2, 7, 32, 33, 88])
def test_any_first_part_of_the_units_is_spread_over_the_layers(layers: int) -> None:
    order = units_in_order(layers, layers + 2)
    assert sorted(order) == list(range(layers + 2))
    # The head is updated with the layers, the embedding by itself.
    assert order[-2:] == (layers + 1, layers)
    half = sorted(order[: layers // 2])
    gaps = [after - before for before, after in itertools.pairwise(half)]
    assert max(gaps, default=1) <= 4


def test_a_job_can_ask_for_any_share() -> None:
    for share in (0.0, 0.3, 1.0):
        plan, _ = _planned(130, nvme=NvmeUse(moments=share))
        assert plan.full is not None
        found = plan.full.nvme.moments if plan.full.nvme else ()
        assert len(found) == round(share * 34)
    plan, need = _planned(200, nvme=NvmeUse(moments=0.6, master=0.3, rows=0.5))
    tier = _tier(plan)
    assert (len(tier.moments), len(tier.master), len(tier.rows)) == (20, 10, 16)
    assert set(tier.master) <= set(tier.moments)
    assert plan.layer_weights.count("nvme") == len([unit for unit in tier.master if unit < 32])
    assert plan.optimizer_state == "host"
    assert need.disk["inputs of layers on drives"] == 16 * 8192 * 4096 * 2
    whole, _ = _planned(130, nvme=NvmeUse(master=1.0))
    assert whole.optimizer_state == "nvme"
    assert set(whole.layer_weights) == {"nvme"}


def test_every_byte_of_the_state_is_either_in_ram_or_on_drives() -> None:
    for ram in (50, 40, 30, 20):
        plan, need = _planned(ram)
        assert plan.full is not None
        drives = drive_state_bytes(LLAMA_8B, plan.full, split=True)
        whole = state_bytes(LLAMA_8B, plan.full.moments, split=True)
        assert need.host["weights and optimizer state"] + drives == whole
        # Two checkpoints are kept, and links are no copies.
        assert need.disk["state on drives, and its checkpoints"] == 3 * drives
        assert need.disk["checkpoints"] == 3 * (whole - drives)


def test_a_step_moves_what_lies_there() -> None:
    plan, _ = _planned(200, nvme=NvmeUse(moments=1.0))
    params = LLAMA_8B.total_params
    tier = _tier(plan)
    assert tier.step_read_bytes == tier.step_write_bytes == pytest.approx(8 * params, rel=1e-3)
    whole, _ = _planned(200, nvme=NvmeUse(master=1.0))
    layers = 32 * LLAMA_8B.layer_params
    assert _tier(whole).step_write_bytes == pytest.approx(12 * params, rel=1e-3)
    assert _tier(whole).step_read_bytes == pytest.approx(12 * params + 4 * layers, rel=1e-3)
    assert plan.full is not None
    half = msgspec.structs.replace(plan.full, nvme=msgspec.structs.replace(tier, moments=(0, 1)))
    assert traffic(LLAMA_8B, half, 1.0, on_cpu=False).update == 16 * LLAMA_8B.layer_params


def test_the_slowest_of_reads_writes_and_the_rest_is_the_steps_time() -> None:
    rates = with_drives(rates_of("NVIDIA H200", cpu_threads=16), ROOM)
    spec = _spec(moments="fp32", nvme=NvmeUse(moments=1.0))
    plan, _ = plan_in_detail(spec, LLAMA_8B, _machine(200))
    slow = step_time(spec, LLAMA_8B, plan, rates)
    # The embedding's moments go between steps, all others beside the backward pass.
    moved = 8 * LLAMA_8B.total_params / ROOM.write_bytes_per_second
    passes = sum(phase.seconds for phase in slow.phases if phase.name in ("forward", "head"))
    assert slow.seconds == pytest.approx(moved + passes, rel=0.01)
    assert slow.bound_by == "write"
    # A drive that does less of each while it does both.
    shared = with_drives(rates, msgspec.structs.replace(ROOM, both_bytes_per_second=2.5e9))
    both = step_time(spec, LLAMA_8B, plan, shared)
    assert both.seconds == pytest.approx(2 * moved * 2.0 / 2.5 + passes, rel=0.01)
    assert both.bound_by == "drives"
    unknown = with_drives(rates, msgspec.structs.replace(ROOM, both_bytes_per_second=0.0))
    assert unknown.drive_bytes == ROOM.read_bytes_per_second
    # What comes from drives and goes there passes through the host's memory as well.
    endless = dict.fromkeys(("read_bytes", "write_bytes", "drive_bytes", "memory_bytes"), 1e12)
    fast = msgspec.structs.replace(rates, **endless)
    in_ram, _ = plan_in_detail(_spec(moments="fp32"), LLAMA_8B, _machine(200))
    alone = [
        step_time(_spec(moments="fp32"), LLAMA_8B, in_ram, one).seconds for one in (rates, fast)
    ]
    assert step_time(spec, LLAMA_8B, plan, fast).seconds == pytest.approx(alone[1])
    said = drives_text(spec, LLAMA_8B, plan, rates, 100)
    assert f"{alone[0]:.1f} s instead of {slow.seconds:.1f}" in said
    assert drives_text(spec, LLAMA_8B, in_ram, rates, room=ROOM) == ""


def test_what_checkpoints_and_a_pause_ask_of_drives_is_said_beforehand() -> None:
    spec = _spec(nvme=NvmeUse(moments=1.0, master=1.0))
    plan, _ = plan_in_detail(spec, LLAMA_8B, _machine(200))
    state = _tier(plan).held_bytes

    def said(**changes: object) -> str:
        room = msgspec.structs.replace(ROOM, **changes)
        rates = with_drives(rates_of("", cpu_threads=2), room)
        return drives_text(spec, LLAMA_8B, plan, rates, 100, room=room)

    assert "after a pause" not in said(free_bytes=5 * state)
    assert "after a pause" in said(free_bytes=5 * state - 1)
    assert "Every checkpoint writes" not in said(free_bytes=5 * state)
    copied = said(free_bytes=state, linked=False)
    assert f"Every checkpoint writes {state / 1e9:.3g} GB more" in copied
    assert "after a pause" not in copied
    silent = msgspec.structs.replace(_tier(plan), written_bytes=None)
    assert "taken for new" in wear_of(silent, step_seconds=1.0).sentence()


def test_inputs_that_are_read_again_by_many_micro_batches_take_their_time() -> None:
    spec = _spec(batch=64, nvme=NvmeUse(rows=1.0))
    plan, _ = plan_in_detail(spec, LLAMA_8B, _machine(320))
    slow = msgspec.structs.replace(
        ROOM, read_bytes_per_second=1e8, write_bytes_per_second=1e12, both_bytes_per_second=1e12
    )
    rates = with_drives(rates_of("NVIDIA GeForce RTX 4090", cpu_threads=16), slow)
    for micro in (64 * 1024, 8 * 1024, 1024):
        cut = msgspec.structs.replace(plan, micro_batch_tokens=micro)
        assert cut.full is not None
        moved = with_traffic(LLAMA_8B, cut.full, micro, on_cpu=False).nvme
        assert moved is not None
        # Such a drive is all that a step waits for; its reads are those that the plan tells.
        seconds = step_time(spec, LLAMA_8B, cut, rates).seconds
        assert seconds == pytest.approx(moved.step_read_bytes / 1e8, rel=0.05)


def test_a_cpu_run_can_have_its_state_there_as_well() -> None:
    spec = _spec(nvme=NvmeUse(moments=1.0, master=1.0, rows=1.0))
    machine = _machine(64, vram=0)
    plan, need = plan_in_detail(spec, SHAPES["smollm2-135m"], machine)
    tier = _tier(plan)
    assert len(tier.master) == 31
    assert len(tier.rows) == 30
    assert tier.chunk_elements % 4096 == 0
    assert need.host["weights and optimizer state"] == 0
    rates = rates_of("", cpu_threads=2)
    times = [
        step_time(spec, SHAPES["smollm2-135m"], plan, with_drives(rates, room)).seconds
        for room in (
            ROOM,
            msgspec.structs.replace(
                ROOM,
                read_bytes_per_second=1e7,
                write_bytes_per_second=1e7,
                both_bytes_per_second=2e7,
            ),
        )
    ]
    moved = tier.step_read_bytes / 1e7
    assert times[0] < moved < times[1] < times[0] + 2 * moved


@pytest.mark.parametrize(
    ("use", "room", "told"),
    [
        pytest.param(NvmeUse(allow=False), ROOM, "do without them", id="the job forbids it"),
        pytest.param(NvmeUse(), None, "no drive is known", id="no drive"),
        pytest.param(
            NvmeUse(),
            msgspec.structs.replace(ROOM, refused="/mnt is on a rotating disk"),
            "rotating disk",
            id="a slow drive",
        ),
    ],
)
def test_where_nothing_may_go_there_the_refusal_says_why(
    use: NvmeUse, room: NvmeRoom | None, told: str
) -> None:
    with pytest.raises(SlidepackError, match="RAM-TOO-SMALL") as caught:
        plan_in_detail(_spec(nvme=use), LLAMA_8B, _machine(32, room=room))
    assert told in caught.value.report.fix
    asked = msgspec.structs.replace(use, moments=0.5)
    with pytest.raises(SlidepackError, match="RUN-SPEC-INVALID") as refused:
        plan_in_detail(_spec(nvme=asked), LLAMA_8B, _machine(320, room=room))
    assert told in refused.value.report.why


def test_folders_that_the_job_names_are_used_whatever_the_settings_say() -> None:
    use = NvmeUse(folders=("/mnt/mine", "/mnt/other"))
    refused = msgspec.structs.replace(ROOM, refused="a rotating disk")
    plan, _ = plan_in_detail(_spec(nvme=use), LLAMA_8B, _machine(32, room=refused))
    assert _tier(plan).folders == use.folders
    # They are not the drives that were looked at.
    assert _tier(plan).rated_write_bytes is None


def test_drives_that_are_too_full_are_told_before_the_start() -> None:
    room = msgspec.structs.replace(ROOM, free_bytes=50 * 10**9)
    with pytest.raises(SlidepackError, match=r"DISK-FULL.*50\.0 GB are free in /mnt/fast"):
        plan_in_detail(_spec(), LLAMA_8B, _machine(32, room=room))


def test_drives_without_links_hold_the_state_once_as_its_copies_are_elsewhere() -> None:
    _, need = _planned(32)
    once = need.disk["state on drives, and its checkpoints"] // 3
    room = msgspec.structs.replace(ROOM, free_bytes=once, linked=False)
    plan, _ = plan_in_detail(_spec(), LLAMA_8B, _machine(32, room=room))
    assert _tier(plan).folders == ROOM.folders
    for changes in ({"linked": True}, {"free_bytes": once - 1}):
        less = msgspec.structs.replace(room, **changes)
        with pytest.raises(SlidepackError, match="DISK-FULL"):
            plan_in_detail(_spec(), LLAMA_8B, _machine(32, room=less))


def test_a_smaller_plan_after_a_full_card_keeps_what_is_on_drives() -> None:
    spec = _spec()
    plan, _ = plan_in_detail(spec, LLAMA_8B, _machine(40))
    smaller = tighten(plan, spec, LLAMA_8B)
    assert smaller is not None
    assert _tier(smaller) == _tier(plan)


@pytest.mark.parametrize(
    "use",
    [
        {"moments": 1.1},
        {"rows": -0.1},
        {"moments": 0.2, "master": 0.3},
        {"folders": ("relative",)},
        {"moments": float("nan")},
    ],
)
def test_shares_that_are_none_are_refused(use: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use "):
        NvmeUse(**use)


def test_wear_is_counted_from_what_is_left_of_the_drives() -> None:
    plan, _ = _planned(200, nvme=NvmeUse(moments=1.0), moments="fp32")
    tier = _tier(plan)
    wear = wear_of(tier, step_seconds=36.0, steps=1000)
    assert wear.steps_left == int(500e12 // tier.step_write_bytes)
    assert wear.hours_left == pytest.approx(wear.steps_left / 100)
    assert wear.run_bytes == 1000 * tier.step_write_bytes
    said = wear.sentence()
    assert "Each step writes 64.2 GB to the drives" in said
    assert "rated for 600 TB (its data sheet), 100 TB of it used" in said
    assert f"{wear.steps_left:,} steps, 78 hours (3 days)" in said
    unknown = wear_of(msgspec.structs.replace(tier, rated_write_bytes=None))
    assert "not known" in unknown.sentence()
    spent = wear_of(msgspec.structs.replace(tier, written_bytes=700e12), step_seconds=1.0)
    assert (spent.steps_left, spent.hours_left) == (0, 0.0)
    assert "outlived" in spent.sentence()


def test_a_plan_without_drives_is_read_from_older_runs() -> None:
    plan, _ = _planned(130)
    assert plan.full is not None
    old = msgspec.to_builtins(plan.full)
    del old["nvme"]
    assert msgspec.convert(old, FullPlan) == plan.full
