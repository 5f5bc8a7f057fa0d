"""A real model and real rows: eight lanes in one worker, and what PEFT makes of them."""

import itertools
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import peft
import pytest
import torch
from support.packing import random_rows
from support.runs import events_of
from transformers import AutoModelForCausalLM

from slidepack.engine.contract.events import Finished, Progress
from slidepack.engine.contract.job import (
    DatasetRef,
    EvalSpec,
    JobSpec,
    LoraMethod,
    ModelRef,
    OptimSpec,
)
from slidepack.engine.contract.pack import LaneRef, PackFolder, PackSpec
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.data.check import check_file
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.memory import Machine
from slidepack.engine.memory_lora import plan_lanes
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.shape import read_shape
from slidepack.engine.worker.base import open_base
from slidepack.engine.worker.lane_file import load_lane

# Eight lanes of a real model, twice, take minutes on a slow machine.
pytestmark = [pytest.mark.full, pytest.mark.thorough, pytest.mark.timeout(1500)]
DATA = Path(__file__).resolve().parents[3] / "src/slidepack/cli/demo_data/train.jsonl"
STEPS: Final = 6
MACHINE = Machine(
    device="cpu",
    device_free_bytes=0,
    ram_available_bytes=12 << 30,
    cpu_threads=torch.get_num_threads(),
)


def _specs(model: Path, folder: Path) -> list[JobSpec]:
    rows = folder / "rows.jsonl"
    report = check_file(DATA, rows, folder / "rejects.jsonl")
    return [
        JobSpec(
            name=f"rank {rank}, lr {lr:g}",
            base=ModelRef(model_id="smollm2", path=str(model), content_hash="-"),
            dataset=DatasetRef(dataset_id="1", path=str(rows), content_hash=report.content_hash),
            method=LoraMethod(rank=rank, alpha=2 * rank),
            optim=OptimSpec(lr=lr, warmup_fraction=0.0, schedule="constant"),
            batch_size=2,
            max_seq_len=256,
            steps=STEPS,
            eval=EvalSpec(selection_fraction=0.08, max_rows=8, every_steps=STEPS, sample_tokens=1),
            seed=seed,
        )
        for seed, (rank, lr) in enumerate(itertools.product((2, 8, 16, 32), (2e-4, 1e-3)))
    ]


def _run(root: Path, specs: list[JobSpec]) -> tuple[float, list[RunFolder]]:
    """Run a pack; return the seconds that the worker took, and the lanes' run folders."""
    shape = read_shape(Path(specs[0].base.path))
    plan, _ = plan_lanes(specs, shape, MACHINE)
    lanes = []
    for spec in specs:
        lane = RunFolder(root / f"lane-{spec.seed}")
        lane.create(spec, plan, RunIdentity(job_id=spec.name, attempt=1, nonce="n"))
        lanes.append(lane)
    refs = tuple(LaneRef(lane=lane.root.name, folder=str(lane.root)) for lane in lanes)
    pack = PackFolder(root / "pack")
    whole = PackSpec(base=specs[0].base, lanes=refs)
    pack.create(whole, plan, RunIdentity(job_id="pack", attempt=1, nonce="n"))
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "slidepack.engine.worker", str(pack.root)], check=True)
    return time.monotonic() - begun, lanes


def test_eight_lanes_of_a_real_model(smollm2_folder: Path, tmp_path: Path) -> None:
    specs = _specs(smollm2_folder, tmp_path)
    together, lanes = _run(tmp_path / "together", specs)
    alone = [_run(tmp_path / f"alone-{spec.seed}", [spec]) for spec in specs]
    one_by_one = sum(seconds for seconds, _ in alone)
    sys.stdout.write(f"8 lanes: {together:.1f} s in one pack, {one_by_one:.1f} s one by one\n")
    for lane, (_, (solo,)) in zip(lanes, alone, strict=True):
        packed, single = _curve(lane), _curve(solo)
        sys.stdout.write(f"{lane.read_spec().name}: {packed} and alone {single}\n")
        # fp32 over 30 layers, in products of other shapes.
        assert packed == pytest.approx(single, rel=1e-3)
        assert packed[-1] < packed[0]
    _compare_with_peft(smollm2_folder, lanes, tmp_path)


def _curve(lane: RunFolder) -> list[float]:
    events = events_of(lane)
    losses = [event.loss for event in events if isinstance(event, Progress)]
    (finished,) = [event for event in events if isinstance(event, Finished)]
    found = [finished.eval_loss_before, *losses, finished.eval_loss_after]
    return [round(loss, 5) for loss in found if loss is not None]


def _compare_with_peft(model: Path, lanes: list[RunFolder], folder: Path) -> None:
    """Hold the logits of the adapters, as PEFT reads them, to the trainer's."""
    shape = read_shape(model)
    specs = [lane.read_spec() for lane in lanes]
    plan, _ = plan_lanes(specs, shape, MACHINE)
    cpu = torch.device("cpu")
    base = open_base(model, plan, cpu, lambda _done, _total: None, lambda: None)
    driver = LaneDriver(base.decoder, base.attention, plan.layer_activations)
    (row,) = random_rows((24,), shape.vocab)
    judge: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for number, (lane, spec) in enumerate(zip(lanes, specs, strict=True)):
        assert isinstance(spec.method, LoraMethod)
        arena = base.pack.join(lane.root.name, spec.method, spec.seed)
        newest = lane.list_checkpoints()[0]
        digest = (newest / "state.json").read_text().split('"tensors_hash":"')[1].split('"')[0]
        load_lane(arena, newest, digest)
        adapters = base.pack.adapters((lane.root.name,))
        batch = pack_rows([row], shape, cpu, torch.float32)
        bounds = (0, batch.num_tokens, batch.num_tokens)
        ours = driver.logits(batch, adapters.lane_pass(bounds))
        name = f"lane{number}"
        adapter = lane.result / "adapter"
        if number == 0:
            judge = peft.PeftModel.from_pretrained(judge, adapter, adapter_name=name)
        else:
            judge.load_adapter(adapter, adapter_name=name)
        judge.set_adapter(name)
        with torch.no_grad():
            theirs = judge(torch.tensor([row.ids])).logits[0]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)
    base.close()
