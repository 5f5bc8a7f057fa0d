"""The worker as a real process: results, stops, resumes, refusals."""

import json
import signal
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from support.lanes import pack_on, packed_logits
from support.packing import random_rows
from support.runs import (
    events_of,
    make_run,
    run_worker,
    start_worker,
    tiny_spec,
)
from support.waiting import PATIENCE, wait_until
from transformers import LlamaForCausalLM

from slidepack.engine.contract.control import ControlCommand, encode_command
from slidepack.engine.contract.errors import CATALOGUE, EXIT_YIELDED
from slidepack.engine.contract.events import (
    Checkpointed,
    ControlDone,
    Evaluated,
    Failed,
    Finished,
    Progress,
    Sampled,
    Started,
    Warned,
    Yielded,
)
from slidepack.engine.contract.job import EvalSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.model.loading import load_decoder

Curve = list[tuple[int, float | None, float | None, float]]


def _curve(folder: RunFolder) -> Curve:
    return [
        (event.step, event.loss, event.grad_norm, event.lr)
        for event in events_of(folder)
        if isinstance(event, Progress)
    ]


def _held_out(folder: RunFolder) -> dict[int, float | None]:
    return {event.step: event.loss for event in events_of(folder) if isinstance(event, Evaluated)}


def _adapter(folder: RunFolder) -> bytes:
    return (folder.result / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model and dataset, shared by the runs of this module."""
    return tmp_path_factory.mktemp("worker")


@pytest.fixture(scope="module")
def whole(base: Path) -> RunFolder:
    """An uninterrupted run of 8 steps."""
    folder = make_run(base / "whole", tiny_spec(base))
    assert run_worker(folder) == 0, folder.log.read_text()
    return folder


def test_an_uninterrupted_run_reports_everything(whole: RunFolder) -> None:
    events = events_of(whole)
    assert [point[0] for point in _curve(whole)] == list(range(1, 9))
    assert set(_held_out(whole)) == {0, 4, 8}
    (started,) = [event for event in events if isinstance(event, Started)]
    assert (started.total_steps, started.from_step) == (8, 0)
    samples = [event for event in events if isinstance(event, Sampled)]
    assert [sample.step for sample in samples] == [0] * 3 + [8] * 3
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.eval_loss_before == _held_out(whole)[0]
    assert finished.eval_loss_after == _held_out(whole)[8]
    assert len(whole.list_checkpoints()) == 2
    summary = json.loads((whole.result / "summary.json").read_text())
    assert summary["steps"] == 8
    assert 0.5 <= summary["predicted_host_bytes"] / summary["peak_host_bytes"] <= 2.0


def test_peft_loads_the_result_and_gives_the_workers_logits(base: Path, whole: RunFolder) -> None:
    spec = whole.read_spec()
    assert isinstance(spec.method, LoraMethod)
    model_folder = Path(spec.base.path)
    model = LlamaForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    judge: Any = peft.PeftModel.from_pretrained(model, whole.result / "adapter").eval()
    decoder = load_decoder(model_folder, torch.device("cpu"), torch.float32)
    pack = pack_on(decoder)
    arena = pack.join("lane", spec.method, seed=0)
    state = load_file(whole.list_checkpoints()[0] / "lane.safetensors")
    arena.set_master(state["master"])
    rows = random_rows((21,), decoder.shape.vocab)
    (ours,) = packed_logits(decoder, rows, pack)
    with torch.no_grad():
        theirs = judge(torch.tensor([rows[0].ids])).logits[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    with judge.disable_adapter(), torch.no_grad():
        base_logits = judge(torch.tensor([rows[0].ids])).logits[0]
    assert float((theirs - base_logits).abs().max()) > 1e-3


@pytest.mark.parametrize("kill_after", [3, pytest.param(6, marks=pytest.mark.full)])
def test_a_killed_run_resumes_bit_for_bit(base: Path, whole: RunFolder, kill_after: int) -> None:
    killed = make_run(base / f"killed-{kill_after}", tiny_spec(base))
    worker = start_worker(killed)
    wait_until(
        lambda: len(_curve(killed)) >= kill_after or worker.poll() is not None,
        what="the run has some steps",
    )
    worker.kill()
    worker.wait()
    resumed = make_run(
        base / f"resumed-{kill_after}",
        tiny_spec(base),
        attempt=2,
        resume_from=tuple(map(str, killed.list_checkpoints())),
    )
    assert run_worker(resumed) == 0, resumed.log.read_text()
    expected = {point[0]: point for point in _curve(whole)}
    points = _curve(killed) + _curve(resumed)
    assert all(point == expected[point[0]] for point in points)
    assert {point[0] for point in points} == set(expected)
    assert _held_out(killed) | _held_out(resumed) == _held_out(whole)
    assert _adapter(resumed) == _adapter(whole)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.full),
    ],
)
def test_a_stop_signal_checkpoints_and_exits(base: Path, number: signal.Signals) -> None:
    spec = tiny_spec(base, steps=3000, checkpoint_every_steps=0)
    folder = make_run(base / f"stopped-{number.name}", spec)
    worker = start_worker(folder)
    wait_until(lambda: len(_curve(folder)) >= 2, what="two steps")
    worker.send_signal(number)
    assert worker.wait(timeout=PATIENCE) == EXIT_YIELDED
    events = events_of(folder)
    yielded = events[-1]
    assert isinstance(yielded, Yielded)
    assert yielded.reason == number.name
    assert yielded.seconds is not None
    (saved,) = [event for event in events if isinstance(event, Checkpointed)]
    assert saved.seconds <= yielded.seconds <= 30
    assert saved.step == _curve(folder)[-1][0]
    assert saved.healthy
    assert folder.list_checkpoints() == [Path(saved.path)]


def test_a_stop_before_training_leaves_at_once(base: Path) -> None:
    folder = make_run(base / "early", tiny_spec(base, steps=3000))
    worker = start_worker(folder)
    wait_until(lambda: events_of(folder), what="the first event")
    worker.terminate()
    assert worker.wait(timeout=PATIENCE) == EXIT_YIELDED
    assert isinstance(events_of(folder)[-1], Yielded)


@pytest.mark.full
def test_control_commands_are_obeyed_and_acknowledged(base: Path) -> None:
    folder = make_run(base / "control", tiny_spec(base, steps=3000, checkpoint_every_steps=0))
    worker = start_worker(folder)
    wait_until(lambda: len(_curve(folder)) >= 1, what="a step")
    with folder.control.open("ab") as file:
        file.write(encode_command(ControlCommand(command_id="a", kind="checkpoint")))
    wait_until(
        lambda: any(isinstance(event, ControlDone) for event in events_of(folder)),
        what="the checkpoint command is done",
    )
    with folder.control.open("ab") as file:
        file.write(encode_command(ControlCommand(command_id="b", kind="stop")))
    assert worker.wait(timeout=PATIENCE) == EXIT_YIELDED
    done = [event.command_id for event in events_of(folder) if isinstance(event, ControlDone)]
    assert done == ["a", "b"]


@pytest.mark.full
def test_a_damaged_newest_checkpoint_is_named_and_the_older_one_taken(
    base: Path, whole: RunFolder
) -> None:
    source = make_run(base / "damaged-source", tiny_spec(base))
    assert run_worker(source) == 0
    newest, older = source.list_checkpoints()
    tensors = newest / "lane.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    resumed = make_run(
        base / "damaged",
        tiny_spec(base),
        attempt=2,
        resume_from=(str(newest), str(older)),
    )
    assert run_worker(resumed) == 0
    (warning,) = [event for event in events_of(resumed) if isinstance(event, Warned)]
    assert warning.code == "RUN-CHECKPOINT-CORRUPT"
    assert str(newest) in warning.message
    assert _curve(resumed)[0][0] == 7
    assert _adapter(resumed) == _adapter(whole)


@pytest.mark.full
def test_a_run_killed_after_its_last_step_ends_with_the_same_result(
    base: Path, whole: RunFolder
) -> None:
    """The last checkpoint is of the last step; what is left is measuring and writing the result."""
    resumed = make_run(
        base / "after-the-end",
        tiny_spec(base),
        attempt=2,
        resume_from=(str(whole.list_checkpoints()[0]),),
    )
    assert run_worker(resumed) == 0, resumed.log.read_text()
    finished = events_of(resumed)[-1]
    assert isinstance(finished, Finished)
    assert finished.eval_loss_before == _held_out(whole)[0]
    assert finished.eval_loss_after == _held_out(whole)[8]
    assert _adapter(resumed) == _adapter(whole)


@pytest.mark.full
def test_a_checkpoint_of_another_job_is_not_resumed_from(base: Path, whole: RunFolder) -> None:
    other = make_run(
        base / "other-seed",
        tiny_spec(base, seed=4),
        attempt=2,
        resume_from=tuple(map(str, whole.list_checkpoints())),
    )
    assert run_worker(other) == 0
    (started,) = [event for event in events_of(other) if isinstance(event, Started)]
    assert started.from_step == 0


def _failure(folder: RunFolder, code: str) -> Failed:
    exit_code = run_worker(folder)
    failed = events_of(folder)[-1]
    assert isinstance(failed, Failed), folder.log.read_text()
    assert failed.error.code == code
    assert exit_code == CATALOGUE[code].exit_code
    return failed


def test_a_dataset_that_changed_is_refused(base: Path, tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    with Path(spec.dataset.path).open("ab") as file:
        file.write(b"\n")
    _failure(make_run(tmp_path / "changed", spec), "DATA-CHANGED")


@pytest.mark.full
def test_rows_that_are_all_too_long_are_refused_with_the_first_line(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, max_seq_len=16)
    failed = _failure(make_run(tmp_path / "long", spec), "DATA-NO-USABLE-ROWS")
    assert "too-long" in failed.error.why
    assert "line 1" in failed.error.why


@pytest.mark.full
def test_a_diverging_run_stops_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    spec = tiny_spec(
        tmp_path,
        steps=60,
        optim=OptimSpec(lr=1.0, schedule="constant", warmup_fraction=0.0, clip_norm=0.0),
        method=LoraMethod(rank=4, alpha=1_000_000_000_000),
        eval=EvalSpec(every_steps=1000, sample_tokens=4),
    )
    folder = make_run(tmp_path / "diverged", spec)
    failed = _failure(folder, "RUN-DIVERGED")
    assert "those steps changed nothing" in failed.error.why
    assert folder.list_checkpoints()


@pytest.mark.full
def test_a_second_worker_on_a_folder_is_refused(base: Path) -> None:
    folder = make_run(base / "busy", tiny_spec(base, steps=3000))
    first = start_worker(folder)
    wait_until(lambda: events_of(folder), what="the first event")
    assert run_worker(folder) == CATALOGUE["RUN-FOLDER-BUSY"].exit_code
    first.terminate()
    assert first.wait(timeout=PATIENCE) == EXIT_YIELDED


def test_a_device_that_is_not_there_is_refused(base: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    folder = make_run(base / "no-gpu", tiny_spec(base))
    plan = json.loads(folder.plan.read_text())
    folder.plan.write_text(json.dumps(plan | {"device": "cuda:0"}))
    _failure(folder, "GPU-UNUSABLE")
