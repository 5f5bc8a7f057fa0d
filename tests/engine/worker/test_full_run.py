"""Full fine-tuning by the worker: its result, and stops that change nothing."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.families import tiny_family
from support.full_worker import (
    assert_same_end,
    curve,
    events_of,
    finish,
    held_out,
    start,
)
from support.packing import random_rows
from support.runs import make_run, tiny_spec
from support.tiny import save_tiny_model, save_tokenizer
from support.waiting import wait_until
from torch import Tensor
from transformers import AutoModelForCausalLM

from slidepack.engine.contract.errors import CATALOGUE, EXIT_YIELDED
from slidepack.engine.contract.events import (
    Checkpointed,
    Failed,
    Finished,
    Sampled,
    Started,
    Yielded,
)
from slidepack.engine.contract.job import EvalSpec, FullMethod, JobSpec, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.model.ends import head_logits
from slidepack.engine.sliding import full_driver
from slidepack.engine.sliding.cpu_adamw import CpuAdamW
from slidepack.engine.worker.checkpoint import load_checkpoint
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.full_trainee import FullTrainee, load_full
from slidepack.engine.worker.run import Run
from slidepack.engine.worker.stopping import StopFlag, StopRequestedError
from slidepack.kernels import linear_cross_entropy

BASES: dict[str, Callable[[Path], object]] = {
    "tied": save_tiny_model,
    "untied": lambda folder: save_tiny_model(folder, tied=False),
    # Four norms stored less one, a scaled embedding, soft caps, windows.
    "gemma2": lambda folder: tiny_family(folder, "gemma2", tied=True),
    # Biases, which do not decay either.
    "qwen2": lambda folder: tiny_family(folder, "qwen2", tied=False),
}


def _spec(folder: Path, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {"method": FullMethod(), "optim": OptimSpec(lr=2e-3)}
    return tiny_spec(folder, **(values | changes))


def _base(folder: Path, name: str) -> Path:
    BASES[name](folder / "model")
    save_tokenizer(folder / "model")
    return folder


@pytest.fixture(
    scope="module",
    params=["tied", "untied", "gemma2", pytest.param("qwen2", marks=pytest.mark.full)],
)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run of 8 steps."""
    base = _base(tmp_path_factory.mktemp(request.param), request.param)
    folder = make_run(base / "run", _spec(base))
    finish(folder)
    return folder


def test_a_run_reports_everything_and_learns(whole: RunFolder) -> None:
    events = events_of(whole)
    assert list(curve(whole)) == list(range(1, 9))
    losses = held_out(whole)
    assert list(losses) == [0, 4, 8]
    before, after = losses[0], losses[8]
    assert before is not None
    assert after is not None
    assert after < 0.9 * before
    (started,) = [event for event in events if isinstance(event, Started)]
    shapes = [t.numel() for t in load_file(whole.result / "model" / "model.safetensors").values()]
    assert started.trainable_params == sum(shapes), "every weight"
    assert [e.step for e in events if isinstance(e, Sampled)] == [0] * 3 + [8] * 3
    assert isinstance(events[-1], Finished)
    assert [path.name for path in whole.list_checkpoints()] == ["step-00000008", "step-00000006"]
    assert {path.name for path in whole.result.iterdir()} == {"model", "summary.json"}
    summary = json.loads((whole.result / "summary.json").read_text())
    assert summary["steps"] == 8
    assert summary["eval_loss_after"] == after


def _trainee(folder: RunFolder) -> FullTrainee:
    """Load what a run trains, in this process."""
    spec = folder.read_spec()
    return load_full(
        Path(spec.base.path),
        folder.read_plan(),
        spec.optim,
        torch.device("cpu"),
        on_layer=lambda *_: None,
        check_stop=lambda: None,
        tighter=lambda *_: None,
        warn=lambda *_: None,
    )


@dataclass
class _Heads:
    """Computes the logits of every call of the head, beside its loss."""

    original: Callable[..., Any]
    shape: Any
    logits: list[Tensor] = field(default_factory=list)

    def __call__(self, hidden: Tensor, head: Tensor, labels: Tensor, **options: Any) -> Any:
        self.logits.append(head_logits(hidden, head, self.shape))
        return self.original(hidden, head, labels, **options)


def test_transformers_gives_the_trainers_logits(
    whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, trainee = whole.read_spec(), _trainee(whole)
    newest = whole.list_checkpoints()[0]
    hash_of_spec = json.loads((newest / "state.json").read_text())["spec_hash"]
    load_checkpoint(trainee, newest, hash_of_spec)
    (row,) = random_rows((21,), trainee.shape.vocab)
    row = type(row)(row.line, row.ids, (False,) + (True,) * 20)
    heads = _Heads(linear_cross_entropy, trainee.shape)
    monkeypatch.setattr(full_driver, "linear_cross_entropy", heads)
    try:
        loss = trainee.evaluate([row])
    finally:
        trainee.close()
    judge: Any = AutoModelForCausalLM.from_pretrained(whole.result / "model", dtype=torch.float32)
    ids = torch.tensor([row.ids])
    with torch.no_grad():
        theirs = judge(ids).logits[0, :-1]
        base: Any = AutoModelForCausalLM.from_pretrained(spec.base.path, dtype=torch.float32)
        assert float((base(ids).logits[0, :-1] - theirs).abs().max()) > 1e-2, "it was trained"
    torch.testing.assert_close(heads.logits[0], theirs, rtol=0, atol=1e-4)
    expected = torch.nn.functional.cross_entropy(theirs, ids[0, 1:], reduction="sum")
    assert loss.total == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_checkpoint_waits_for_updates_that_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: float
) -> None:
    update = CpuAdamW.step

    def slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(0.05)
        update(*arguments, **options)

    monkeypatch.setattr(CpuAdamW, "step", slowly)
    optim = OptimSpec(lr=1e-2, warmup_fraction=0.0, clip_norm=clip)
    trainee = _trainee(make_run(tmp_path / "run", _spec(_base(tmp_path, "tied"), optim=optim)))
    (tmp_path / "at once").mkdir()
    (tmp_path / "later").mkdir()
    try:
        rows = random_rows((21,), trainee.shape.vocab)
        trainee.train_step(rows, 0, 8)
        at_once = trainee.save(tmp_path / "at once")
        time.sleep(0.5)
        assert trainee.save(tmp_path / "later") == at_once
    finally:
        trainee.close()


def test_weight_decay_spares_norms_and_biases(tmp_path: Path) -> None:
    """The first step's gradient does not depend on the decay, so what is spared has equal bits."""
    base = _base(tmp_path, "qwen2")
    results = []
    for decay in (0.0, 0.5):
        optim = OptimSpec(lr=1e-2, schedule="constant", warmup_fraction=0.0, weight_decay=decay)
        eval_spec = EvalSpec(selection_fraction=0.2, sample_tokens=1)
        folder = make_run(
            base / f"decay-{decay}", _spec(base, optim=optim, steps=1, eval=eval_spec)
        )
        finish(folder)
        results.append(load_file(folder.result / "model" / "model.safetensors"))
    plain, decayed = results
    before = load_file(base / "model" / "model.safetensors")
    spared = {name for name in plain if torch.equal(plain[name], decayed[name])}
    assert spared == {name for name in plain if "norm" in name or name.endswith("bias")}
    assert all(not torch.equal(plain[name], before[name]) for name in plain), "all were trained"
    for name in plain.keys() - spared:
        expected = plain[name] - 1e-2 * 0.5 * before[name]
        torch.testing.assert_close(decayed[name], expected, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class _Stopped:
    """A kind of run that is stopped and gone on with."""

    clip: float
    length: dict[str, float]
    precision: str = "fp32"
    moments: str = "fp32"


STOPPED = {
    "clip-epochs": _Stopped(1.0, {"epochs": 10.0, "steps": 0}),
    "no-clip-steps": _Stopped(0.0, {"steps": 90}),
    "bf16-int8": _Stopped(1.0, {"steps": 90}, "bf16", "int8"),
    "clip-steps": _Stopped(1.0, {"steps": 90}, moments="bf16"),
    "no-clip-epochs": _Stopped(0.0, {"epochs": 10.0, "steps": 0}, "bf16"),
}


@pytest.mark.parametrize(
    "name",
    [
        "clip-epochs",
        "no-clip-steps",
        *(pytest.param(n, marks=pytest.mark.full) for n in list(STOPPED)[2:]),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    case = STOPPED[name]
    base = _base(tmp_path, "untied" if case.clip else "tied")
    optim = OptimSpec(lr=2e-3, clip_norm=case.clip, weight_decay=0.1)
    spec = _spec(base, optim=optim, checkpoint_every_steps=0, **case.length)

    def attempt(number: int, resume_from: tuple[str, ...] = ()) -> RunFolder:
        folder = make_run(base / str(number), spec, attempt=number, resume_from=resume_from)
        plan = json.loads(folder.plan.read_text())
        plan["precision"] = case.precision
        plan["full"]["moments"] = case.moments
        folder.plan.write_text(json.dumps(plan))
        return folder

    uninterrupted = attempt(0)
    finish(uninterrupted)
    first = attempt(1)
    worker = start(first, halt_at=4)
    wait_until(lambda: len(curve(first)) >= 4, what="some steps are done")
    worker.send(signal.SIGTERM)
    assert worker.wait() == EXIT_YIELDED, first.log.read_text()
    events = events_of(first)
    assert isinstance(events[-1], Yielded)
    (saved,) = [event for event in events if isinstance(event, Checkpointed)]
    assert saved.step == max(curve(first)) < max(curve(uninterrupted))
    assert first.list_checkpoints() == [Path(saved.path)]
    second = attempt(2, (saved.path,))
    finish(second)
    assert min(curve(second)) == saved.step + 1
    assert_same_end(uninterrupted, first, second)


class _StopAfter(StopFlag):
    """Asks for a stop at the first check after a number of steps."""

    def __init__(self, folder: RunFolder, steps: int) -> None:
        super().__init__()
        self._folder = folder
        self._steps = steps

    def check(self) -> None:
        if len(curve(self._folder)) == self._steps:
            self.request("test")
        super().check()


@pytest.mark.usefixtures("same_threads")
def test_an_evaluation_that_a_stop_cut_short_is_done_later(tmp_path: Path) -> None:
    spec = _spec(_base(tmp_path, "tied"), checkpoint_every_steps=0)
    uninterrupted = make_run(tmp_path / "whole", spec)
    finish(uninterrupted)
    first = make_run(tmp_path / "first", spec)
    # The held-out loss is due after step 4, and the next check is in the middle of it.
    with EventLog(first.events) as events, pytest.raises(StopRequestedError):
        Run(first, events, _StopAfter(first, 4)).execute()
    assert (list(curve(first)), list(held_out(first))) == ([1, 2, 3, 4], [0])
    checkpoints = tuple(map(str, first.list_checkpoints()))
    second = make_run(tmp_path / "second", spec, attempt=2, resume_from=checkpoints)
    finish(second)
    assert (list(curve(second)), list(held_out(second))) == ([5, 6, 7, 8], [4, 8])
    assert_same_end(uninterrupted, first, second)


@pytest.fixture
def same_threads() -> Iterator[None]:
    """Leave torch's thread count, which a run sets, as it was."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_without_clipping_one_bad_step_ends_a_run_and_no_checkpoint_holds_it(
    tmp_path: Path,
) -> None:
    # The second step's weights overflow.
    spoil = OptimSpec(
        lr=1.0, schedule="constant", warmup_fraction=0.0, clip_norm=0.0, weight_decay=1e30
    )
    spec = _spec(tmp_path, optim=spoil, steps=30, checkpoint_every_steps=1)
    folder = make_run(tmp_path / "spoilt", spec)
    assert start(folder).wait() == CATALOGUE["RUN-DIVERGED"].exit_code
    failed = events_of(folder)[-1]
    assert isinstance(failed, Failed)
    assert "the weights are spoilt" in failed.error.why
    for checkpoint in folder.list_checkpoints():
        for unit in checkpoint.glob("unit-*.safetensors"):
            assert not torch.isnan(load_file(unit)["master"]).any()
