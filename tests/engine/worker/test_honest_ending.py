"""Completed means learned: what a run says at its end where it has not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.full_worker import events_of, finish, start
from support.pack_runs import make_lanes, make_pack, pack_plan, start_pack
from support.runs import make_run, tiny_spec

from slidepack.engine.contract.errors import CATALOGUE, ErrorReport
from slidepack.engine.contract.events import Checkpointed, Failed, Finished, Warned
from slidepack.engine.contract.job import EvalSpec, FullMethod, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder, write_structs
from slidepack.engine.worker import pace
from slidepack.engine.worker.checkpoint import read_state
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.run import Run
from slidepack.engine.worker.stopping import StopFlag

STEADY: dict[str, Any] = {"schedule": "constant", "warmup_fraction": 0.0}


@pytest.fixture
def same_threads() -> Iterator[None]:
    """Leave torch's thread count, which a run sets, as it was."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _spec(root: Path, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "steps": 6,
        "eval": EvalSpec(selection_fraction=0.2, sample_tokens=2, every_steps=3),
    }
    return tiny_spec(root, **(values | changes))


def _nothing_learned(folder: RunFolder) -> ErrorReport:
    """Run, and see that it fails, keeps its checkpoint, and has no result."""
    assert start(folder).wait() == CATALOGUE["RUN-NOTHING-LEARNED"].exit_code
    return _failed_with(folder)


def _failed_with(folder: RunFolder) -> ErrorReport:
    failed = events_of(folder)[-1]
    assert isinstance(failed, Failed), folder.log.read_text()
    assert failed.error.code == "RUN-NOTHING-LEARNED"
    assert not folder.result.exists()
    steps = folder.read_spec().steps
    assert folder.list_checkpoints()[0].name == f"step-{steps:08d}"
    return failed.error


def _warned(folder: RunFolder) -> dict[str, str]:
    return {e.code: e.message for e in events_of(folder) if isinstance(e, Warned)}


def test_an_adapter_whose_rate_is_lost_in_its_precision_learned_nothing(tmp_path: Path) -> None:
    spec = _spec(tmp_path, optim=OptimSpec(lr=1e-60, **STEADY))
    error = _nothing_learned(make_run(tmp_path / "run", spec))
    assert "The weights did not change" in error.what
    assert "21 modules are as they were" in error.why
    assert "the learning rate was at most 1.0e-60 in 6 steps" in error.why
    assert "held-out loss" in error.why
    assert "Raise the learning rate" in error.fix


def test_a_warm_up_that_is_the_whole_run_is_named(tmp_path: Path) -> None:
    spec = _spec(tmp_path, steps=1, optim=OptimSpec(lr=1e-3))
    error = _nothing_learned(make_run(tmp_path / "run", spec))
    assert "at most 0.0e+00 in 1 steps" in error.why
    assert "set warmup_fraction to 0" in error.fix


def test_losses_that_only_moved_by_rounding_are_nothing_learned(tmp_path: Path) -> None:
    method = LoraMethod(rank=4, dropout=0.0)
    spec = _spec(tmp_path, method=method, optim=OptimSpec(lr=1e-12, **STEADY))
    error = _nothing_learned(make_run(tmp_path / "run", spec))
    assert "No loss moved" in error.what
    assert "training loss" in error.why
    assert "held-out loss" in error.why


@pytest.mark.parametrize(("precision", "lr"), [("fp32", 1e-20), ("bf16", 1e-12)])
def test_full_weights_that_did_not_move_in_their_precision_are_nothing_learned(
    tmp_path: Path, precision: str, lr: float
) -> None:
    """In bf16 the master keeps some of these steps, and the result does not show them."""
    spec = _spec(tmp_path, method=FullMethod(), optim=OptimSpec(lr=lr, **STEADY))
    _to_bf16(Path(spec.base.path))
    folder = make_run(tmp_path / "run", spec)
    plan = json.loads(folder.plan.read_text())
    folder.plan.write_text(json.dumps(plan | {"precision": precision}))
    assert "The weights did not change" in _nothing_learned(folder).what


def _to_bf16(model: Path) -> None:
    path = model / "model.safetensors"
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_resumed_run_that_has_only_its_end_left_says_the_same(tmp_path: Path) -> None:
    """The evidence is in the checkpoint: this attempt trains no step."""
    spec = _spec(
        tmp_path,
        method=LoraMethod(rank=4, dropout=0.0),
        optim=OptimSpec(lr=1e-12, **STEADY),
    )
    first = make_run(tmp_path / "first", spec)
    before = _nothing_learned(first)
    checkpoints = tuple(map(str, first.list_checkpoints()))
    second = make_run(tmp_path / "second", spec, attempt=2, resume_from=checkpoints)
    assert start(second).wait() == CATALOGUE["RUN-NOTHING-LEARNED"].exit_code
    failed = events_of(second)[-1]
    assert isinstance(failed, Failed)
    assert failed.error == before


def test_a_loss_that_rose_is_told_and_the_run_completes(tmp_path: Path) -> None:
    spec = _spec(tmp_path, method=FullMethod(), optim=OptimSpec(lr=1e-2), steps=8)
    trained = make_run(tmp_path / "trained", spec)
    finish(trained)
    base = msgspec.structs.replace(spec.base, path=str(trained.result / "model"))
    rough = msgspec.structs.replace(spec, base=base, optim=OptimSpec(lr=0.9, **STEADY))
    folder = make_run(tmp_path / "run", rough)
    finish(folder)
    finished = events_of(folder)[-1]
    assert isinstance(finished, Finished)
    assert finished.eval_loss_before is not None
    assert finished.eval_loss_after is not None
    assert finished.eval_loss_after > finished.eval_loss_before
    message = _warned(folder)["RUN-LOSS-UNMOVED"]
    assert f"{finished.eval_loss_before:.4f} before" in message
    assert f"{finished.eval_loss_after:.4f} after" in message


def test_a_run_that_learned_has_nothing_to_tell(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", _spec(tmp_path, optim=OptimSpec(lr=1e-2)))
    finish(folder)
    assert _warned(folder) == {}


def test_a_module_that_stood_still_is_named(tmp_path: Path) -> None:
    """Nothing reaches the queries of a layer whose attention is multiplied by zero."""
    method = LoraMethod(rank=4, targets=("q_proj", "up_proj"))
    spec = _spec(tmp_path, method=method, optim=OptimSpec(lr=1e-2))
    path = Path(spec.base.path) / "model.safetensors"
    tensors = load_file(path)
    torch.nn.init.zeros_(tensors["model.layers.1.self_attn.o_proj.weight"])
    save_file(tensors, path, metadata={"format": "pt"})
    folder = make_run(tmp_path / "run", spec)
    finish(folder)
    assert _warned(folder) == {
        "RUN-MODULES-UNMOVED": "Training left 1 of 6 modules as they were: layers.1.q_proj."
    }


def test_a_lane_that_learned_nothing_fails_alone(tmp_path: Path) -> None:
    good = _spec(tmp_path, name="good", optim=OptimSpec(lr=1e-2))
    idle = msgspec.structs.replace(good, name="idle", optim=OptimSpec(lr=1e-60, **STEADY))
    lanes = make_lanes(tmp_path / "lanes", [good, idle])
    pack = make_pack(tmp_path / "pack", lanes.values(), pack_plan([good, idle]))
    assert start_pack(pack).wait() == 0
    _failed_with(lanes["idle"])
    assert isinstance(events_of(lanes["good"])[-1], Finished)


@pytest.mark.parametrize("method", [LoraMethod(rank=4), FullMethod()], ids=["lora", "full"])
def test_below_the_disks_floor_a_run_ends_and_the_last_checkpoint_stays(
    tmp_path: Path, method: LoraMethod | FullMethod
) -> None:
    spec = _spec(tmp_path, method=method, optim=OptimSpec(lr=1e-2), steps=4)
    first = make_run(tmp_path / "first", spec)
    finish(first)
    before = first.list_checkpoints()[1]
    second = make_run(tmp_path / "second", spec, attempt=2, resume_from=(str(before),))
    floor = msgspec.structs.replace(second.read_identity(), disk_floor_bytes=1 << 60)
    write_structs({second.identity: floor})
    assert start(second).wait() == CATALOGUE["DISK-FULL"].exit_code
    failed = events_of(second)[-1]
    assert isinstance(failed, Failed)
    assert "no room for the checkpoint of step 4" in failed.error.what
    assert "1,099,511,627,776.0 MiB are to stay free" in failed.error.why
    assert list(second.checkpoints.iterdir()) == []
    assert read_state(before).step == 2
    third = make_run(tmp_path / "third", spec, attempt=3, resume_from=(str(before),))
    finish(third)


@pytest.mark.usefixtures("same_threads")
def test_an_evaluation_brings_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_AFTER_EVALUATION", 0.0)
    spec = _spec(tmp_path, checkpoint_every_steps=0, optim=OptimSpec(lr=1e-2))
    folder = make_run(tmp_path / "run", spec)
    with EventLog(folder.events) as events:
        Run(folder, events, StopFlag()).execute()
    saved = [event.step for event in events_of(folder) if isinstance(event, Checkpointed)]
    assert saved == [3, 6]
