"""A job that goes on from another job's checkpoint, as real processes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.full_worker import curve, events_of, finish, held_out, start
from support.runs import make_run, tiny_spec

from slidepack.engine.contract.errors import CATALOGUE
from slidepack.engine.contract.events import (
    Checkpointed,
    Failed,
    Finished,
    Progress,
    Sampled,
    Started,
    Warned,
)
from slidepack.engine.contract.job import EvalSpec, FullMethod, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder, write_structs
from slidepack.engine.worker.checkpoint import LaneState, read_state

METHODS = {"lora": LoraMethod(rank=4, alpha=8, dropout=0.1), "full": FullMethod()}


def _adopting(root: Path, spec: JobSpec, checkpoints: list[Path]) -> RunFolder:
    folder = make_run(root, spec)
    identity = msgspec.structs.replace(
        folder.read_identity(), adopt_from=tuple(map(str, checkpoints))
    )
    write_structs({folder.identity: identity})
    return folder


def _started(folder: RunFolder) -> Started:
    (started,) = [event for event in events_of(folder) if isinstance(event, Started)]
    return started


def _codes(folder: RunFolder) -> list[str]:
    return [event.code for event in events_of(folder) if isinstance(event, Warned)]


def _timeless(state: LaneState) -> LaneState:
    return msgspec.structs.replace(state, seconds=0.0, spec_hash="")


def _result(folder: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.result.glob("*/*.safetensors")}


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_adopting_with_the_same_rate_is_the_uninterrupted_run_bit_for_bit(
    tmp_path: Path, method: str
) -> None:
    spec = tiny_spec(tmp_path, method=METHODS[method], optim=OptimSpec(lr=2e-3, weight_decay=0.1))
    whole = make_run(tmp_path / "whole", spec)
    finish(whole)
    newest, before = whole.list_checkpoints()
    other = msgspec.structs.replace(spec, name="other", checkpoint_every_steps=100)
    adopted = _adopting(tmp_path / "adopted", other, [before])
    finish(adopted)
    assert (_started(adopted).from_step, _started(adopted).resumed_from) == (6, str(before))
    assert curve(adopted) == {step: point for step, point in curve(whole).items() if step > 6}
    assert held_out(adopted) == {8: held_out(whole)[8]}
    assert _result(adopted) == _result(whole) != {}
    last = adopted.list_checkpoints()[0]
    assert _timeless(read_state(last)) == _timeless(read_state(newest))
    finished = events_of(adopted)[-1]
    assert isinstance(finished, Finished)
    assert finished.eval_loss_before == held_out(whole)[0]
    # A base that is still there is asked again: the job's own page shows before and after.
    asked = {event.step for event in events_of(adopted) if isinstance(event, Sampled)}
    assert asked == ({0, 8} if method == "lora" else {8})


def _diverging(root: Path, **changes: Any) -> JobSpec:
    """Return a job whose rising learning rate becomes too high after a few steps."""
    values: dict[str, Any] = {
        "method": LoraMethod(rank=4, alpha=100_000),
        "optim": OptimSpec(lr=1.0, warmup_fraction=1.0, clip_norm=0.0),
        "steps": 80,
        "checkpoint_every_steps": 1,
        "eval": EvalSpec(selection_fraction=0.2, sample_tokens=2, every_steps=1000),
    }
    return tiny_spec(root, **(values | changes))


def test_a_run_that_diverged_is_gone_on_with_from_its_last_good_checkpoint(
    tmp_path: Path,
) -> None:
    spec = _diverging(tmp_path)
    diverged = make_run(tmp_path / "diverged", spec)
    assert start(diverged).wait() == CATALOGUE["RUN-DIVERGED"].exit_code
    failed = events_of(diverged)[-1]
    assert isinstance(failed, Failed)
    saved = [event for event in events_of(diverged) if isinstance(event, Checkpointed)]
    good = max(event.step for event in saved if event.healthy)
    assert saved[-1].step > good, "it diverged for a while before that was certain"
    assert f"the good checkpoint of step {good} is kept" in failed.error.why
    assert failed.error.fix.startswith(f"Go on from the checkpoint of step {good} with")
    kept = diverged.list_checkpoints()
    assert f"step-{good:08d}" in [path.name for path in kept]

    third = spec.optim.lr / 3
    gentler = msgspec.structs.replace(
        spec,
        name="gentler",
        optim=OptimSpec(lr=third, schedule="linear", warmup_fraction=0.0, clip_norm=0.0),
        steps=good + 2,
    )
    second = _adopting(tmp_path / "second", gentler, kept)
    code = start(second).wait()
    assert code == 0, second.log.read_text()
    assert _started(second).from_step == good
    assert _codes(second).count("RUN-CHECKPOINT-UNHEALTHY") == 2, "those kept"
    steps = [event for event in events_of(second) if isinstance(event, Progress)]
    assert [event.step for event in steps] == [good + 1, good + 2]
    assert [event.lr for event in steps] == pytest.approx(
        [third * 2 / (good + 2), third / (good + 2)]
    )
    # The same weights meet the same rows; from there on, the two part.
    first, theirs = steps[0], curve(diverged)[good + 1]
    assert (first.loss, first.grad_norm) == theirs[:2]
    tensors = [read_state(folder.list_checkpoints()[0]) for folder in (second, diverged)]
    assert tensors[0].tensors_hash != tensors[1].tensors_hash


def test_a_checkpoint_that_does_not_fit_fails_the_run(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, steps=2)
    made = make_run(tmp_path / "made", spec)
    finish(made)
    other = msgspec.structs.replace(spec, method=LoraMethod(rank=8, alpha=8, dropout=0.1), steps=9)
    folder = _adopting(tmp_path / "other", other, made.list_checkpoints())
    assert start(folder).wait() == CATALOGUE["RUN-CHECKPOINT-OTHER-JOB"].exit_code
    failed = events_of(folder)[-1]
    assert isinstance(failed, Failed)
    assert "method.rank was 4, and is 8" in failed.error.why
    assert not curve(folder)
    assert not folder.list_checkpoints()


def test_a_loss_on_other_held_out_rows_is_not_compared(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, steps=4)
    made = make_run(tmp_path / "made", spec)
    finish(made)
    shorter = msgspec.structs.replace(spec.eval, max_rows=2)
    other = msgspec.structs.replace(spec, eval=shorter, steps=6)
    folder = _adopting(tmp_path / "other", other, made.list_checkpoints())
    finish(folder)
    finished = events_of(folder)[-1]
    assert isinstance(finished, Finished)
    assert finished.eval_loss_before is None
    assert list(held_out(folder)) == [4, 6]
