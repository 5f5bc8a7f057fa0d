"""A job that goes on leaves a drive that is full, or away; what its results depend on stays."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.runs import tiny_spec

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod, JobSpec, NvmeUse
from slidepack.engine.contract.plan import NvmePlan, RunPlan
from slidepack.engine.memory import Machine, plan_run, usable_bytes
from slidepack.engine.memory_parts import NvmeRoom
from slidepack.engine.memory_resume import place_again
from slidepack.engine.shape import ModelShape, read_shape

SLOW = NvmeRoom(
    folders=("/mnt/old",),
    free_bytes=10**12,
    read_bytes_per_second=3e9,
    write_bytes_per_second=2e9,
    measured=False,
)
FAST = msgspec.structs.replace(
    SLOW, folders=("/mnt/new", "/mnt/other"), rated_write_bytes=6e14, rated_source="its label"
)


def _spec(folder: Path, **method: Any) -> JobSpec:
    return tiny_spec(folder, method=FullMethod(**method))


def _machine(ram: int = 8 << 30, room: NvmeRoom | None = SLOW, **changes: Any) -> Machine:
    plain = Machine(
        device="cpu", device_free_bytes=0, ram_available_bytes=ram, cpu_threads=1, nvme=room
    )
    return msgspec.structs.replace(plain, **changes)


def _begun(spec: JobSpec, shape: ModelShape) -> RunPlan:
    """Return the plan of a first attempt that had its moments on the old drive."""
    asked = msgspec.structs.replace(spec, method=FullMethod(nvme=NvmeUse(moments=1.0)))
    return plan_run(asked, shape, _machine())


def _tier(plan: RunPlan) -> NvmePlan:
    assert plan.full is not None
    assert plan.full.nvme is not None
    return plan.full.nvme


def test_it_takes_the_folders_there_are_now_and_keeps_what_decides_its_bits(
    tmp_path: Path,
) -> None:
    spec = _spec(tmp_path, nvme=NvmeUse(moments=0.5, master=0.5))
    shape = read_shape(Path(spec.base.path))
    earlier = _begun(spec, shape)
    # Threads and micro-batches would be others for a run that begins.
    earlier = msgspec.structs.replace(earlier, micro_batch_tokens=200, cpu_threads=3)
    plan = place_again(earlier, spec, shape, _machine(room=FAST, cpu_threads=8))
    assert _tier(plan).folders == FAST.folders
    assert _tier(plan).rated_source == "its label"
    assert 0 < len(_tier(plan).moments) < len(_tier(earlier).moments)
    assert plan.layer_weights.count("nvme") == sum(
        unit < shape.num_layers for unit in _tier(plan).master
    )
    assert (plan.optimizer_state, earlier.optimizer_state) == ("host", "nvme")
    kept = ("device", "precision", "micro_batch_tokens", "cpu_threads", "base_format")
    assert [getattr(plan, name) for name in kept] == [getattr(earlier, name) for name in kept]
    assert plan.full is not None
    assert earlier.full is not None
    nothing = [msgspec.structs.replace(one, nvme=None) for one in (plan.full, earlier.full)]
    assert nothing[0] == nothing[1]
    assert "/mnt/new and /mnt/other" in plan.reason


def test_state_comes_back_to_a_ram_that_has_room(tmp_path: Path) -> None:
    spec = _spec(tmp_path)
    shape = read_shape(Path(spec.base.path))
    earlier = _begun(spec, shape)
    for room in (SLOW, None, msgspec.structs.replace(SLOW, free_bytes=0)):
        plan = place_again(earlier, spec, shape, _machine(room=room))
        assert plan.full is not None
        assert plan.full.nvme is None
        assert "nvme" not in (*plan.layer_weights, plan.optimizer_state)
        assert "all of its state is in RAM" in plan.reason


def test_as_much_goes_to_drives_as_the_ram_has_no_room_for_now(tmp_path: Path) -> None:
    spec, shape = _spec(tmp_path), SHAPES["llama-8b"]

    def card(ram: int) -> Machine:
        return _machine(int(ram * 1e9), device="cuda:0", device_free_bytes=int(24e9))

    earlier = plan_run(spec, shape, card(44))
    amounts = []
    for ram in (52, 44, 30):
        plan = place_again(earlier, spec, shape, card(ram))
        assert plan.predicted_host_bytes <= usable_bytes(int(ram * 1e9))
        assert plan.predicted_device_bytes == earlier.predicted_device_bytes
        amounts.append(_tier(plan).held_bytes)
        assert (_tier(plan) == _tier(earlier)) == (ram == 44)
    assert amounts == sorted(set(amounts))


@pytest.mark.parametrize(
    ("changes", "room", "code"),
    [
        ({"nvme": NvmeUse(moments=1.0)}, msgspec.structs.replace(SLOW, free_bytes=9), "DISK-FULL"),
        ({"nvme": NvmeUse(moments=1.0)}, None, "RUN-SPEC-INVALID"),
    ],
)
def test_drives_that_have_no_room_are_told(
    tmp_path: Path, changes: dict[str, Any], room: NvmeRoom | None, code: str
) -> None:
    spec = _spec(tmp_path, **changes)
    shape = read_shape(Path(spec.base.path))
    with pytest.raises(SlidepackError, match=code):
        place_again(_begun(spec, shape), spec, shape, _machine(room=room))


def test_a_ram_that_is_too_small_is_told_with_why_the_drives_do_not_help(tmp_path: Path) -> None:
    spec = _spec(tmp_path)
    shape = read_shape(Path(spec.base.path))
    off = msgspec.structs.replace(SLOW, refused='the setting nvme is "off"')
    with pytest.raises(SlidepackError, match="RAM-TOO-SMALL") as caught:
        place_again(_begun(spec, shape), spec, shape, _machine(ram=1 << 20, room=off))
    assert 'nvme is "off"' in caught.value.report.fix
