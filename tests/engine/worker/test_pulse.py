"""A worker that cannot leave yet shows that it gets on, chunk by chunk."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
from support.full_runs import CPU, Recipe, Tier, family, rows_of, state_of
from support.full_worker import finish
from support.runs import tiny_spec
from support.tier_runs import CHUNK, make_tier_run
from support.waiting import wait_until

from slidepack.engine.contract.job import FullMethod, OptimSpec
from slidepack.engine.contract.plan import FullPlan, NvmePlan, RunPlan
from slidepack.engine.contract.pulse import last_beat
from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.worker.full_trainee import FullTrainee
from slidepack.engine.worker.pulse import Pulse


def test_a_sign_is_a_new_time_at_most_twice_a_second(tmp_path: Path) -> None:
    clock = 100.0
    pulse = Pulse(tmp_path, lambda: clock)
    assert last_beat(tmp_path) is None
    pulse.beat()
    first = last_beat(tmp_path)
    assert first is not None
    os.utime(tmp_path / "pulse", ns=(1, 1))
    clock = 100.4
    pulse.beat()
    assert last_beat(tmp_path) == 1
    clock = 100.5
    pulse.beat()
    assert (last_beat(tmp_path) or 0) >= first


def test_a_folder_that_is_gone_ends_no_run(tmp_path: Path) -> None:
    Pulse(tmp_path / "gone").beat()
    assert last_beat(tmp_path / "gone") is None


class HeldDrive:
    """Writes nothing while it is held."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        self.gate.wait()
        return os.pwritev(descriptor, views, offset)


def _plan(units: int) -> RunPlan:
    every = tuple(range(units))
    nvme = NvmePlan(
        folders=("unused",),
        moments=every,
        master=every,
        rows=(),
        chunk_elements=CHUNK,
        state_stages=5,
        weight_stages=2,
        row_stages=0,
        held_bytes=0,
        step_read_bytes=0,
        step_write_bytes=0,
    )
    return RunPlan(
        device="cpu",
        precision="fp32",
        layer_weights=("nvme",),
        layer_activations=("recompute",),
        optimizer_state="nvme",
        cpu_threads=1,
        micro_batch_tokens=64,
        predicted_device_bytes=0,
        predicted_host_bytes=0,
        predicted_disk_bytes=0,
        reason="a test",
        full=FullPlan(
            weights="slide",
            weight_slots=2,
            grad_slots=1,
            host_grad_slots=1,
            engine="cpu",
            rows="device",
            moments="fp32",
            max_tokens=64,
            longest_row=32,
            nvme=nvme,
        ),
    )


def test_while_a_checkpoint_waits_for_a_slow_drive_each_chunk_is_a_sign(tmp_path: Path) -> None:
    drive, signs = HeldDrive(), [0]
    model, shape = family("llama", False)
    tier = Tier(
        moments=1.0, master=1.0, chunk=CHUNK, transport=lambda: RingTransport(pwritev=drive)
    )
    state = state_of(model, shape, Recipe(tier=tier))

    def sign() -> None:
        signs[0] += 1

    trainee = FullTrainee(
        Path("unused"),
        shape,
        state,
        _plan(len(state.units)),
        OptimSpec(clip_norm=1.0),
        CPU,
        lambda: None,
        lambda _: None,
        lambda *_: None,
        on_progress=sign,
    )
    layouts = [state.layout(unit) for unit in range(len(state.units))]
    chunks = sum(layout.count for layout in layouts if layout is not None)
    assert chunks > len(state.units)
    try:
        assert trainee.reason
        drive.gate.clear()
        # With clipping, all that goes to drives goes there after the step.
        trainee.train_step(rows_of(shape, 1)[1], 0, 10)
        of_the_step, folder = signs[0], tmp_path / "step"
        assert of_the_step > shape.num_layers
        folder.mkdir()
        saving = threading.Thread(target=trainee.save, args=(folder,))
        saving.start()
        # A drive that hangs is no progress, however long it is waited for.
        assert not list(folder.iterdir())
        assert signs[0] == of_the_step
        drive.gate.set()
        wait_until(lambda: not saving.is_alive(), what="the checkpoint is written")
        assert signs[0] - of_the_step >= chunks
    finally:
        drive.gate.set()
        trainee.close()


def test_a_full_fine_tuning_shows_it_in_its_run_folder(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(tiny_spec(tmp_path, method=FullMethod()), steps=3)
    folder = make_tier_run(tmp_path / "run", spec, tmp_path / "drive")
    finish(folder)
    assert last_beat(folder.root) is not None
