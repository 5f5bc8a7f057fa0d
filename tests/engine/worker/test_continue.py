"""Jobs that continue another: they begin with exactly what it left, and go on as it would have."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from support.continuing import (
    STEADY,
    alike_spec,
    continued,
    error_of,
    make_run_as,
    result_weights,
    tensors_of,
)
from support.full_worker import Worker, curve, events_of, held_out, start
from support.pack_runs import make_pack, pack_plan, start_pack
from support.runs import dataset_ref, tiny_spec
from support.tiny import chat_rows, save_tiny_model
from support.waiting import wait_until

from slidepack.engine.contract.errors import EXIT_YIELDED
from slidepack.engine.contract.events import Sampled, Started, Warned
from slidepack.engine.contract.job import EvalSpec, FullMethod, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.worker.checkpoint import read_state


@dataclass(frozen=True)
class _Kind:
    """A way to train."""

    method: LoraMethod | FullMethod
    packed: bool = False
    precision: str = "fp32"
    moments: str = "fp32"

    def run(self, root: Path, spec: JobSpec, resume_from: tuple[str, ...] = ()) -> RunFolder:
        """Make a run folder."""
        return make_run_as(
            root, spec, precision=self.precision, moments=self.moments, resume_from=resume_from
        )

    def start(self, run: RunFolder, *, halt_at: int = 0) -> Worker:
        """Start a worker."""
        if not self.packed:
            return start(run, halt_at=halt_at)
        plan = pack_plan([run.read_spec()])
        pack = make_pack(run.root.with_name(f"{run.root.name}-pack"), [run], plan)
        return start_pack(pack, halt_at=halt_at)

    def finish(self, run: RunFolder) -> RunFolder:
        """Run to the end; it must succeed."""
        assert self.start(run).wait() == 0, run.log.read_text() if run.log.exists() else ""
        assert run.result.is_dir(), events_of(run)[-1]
        return run


_LORA = LoraMethod(rank=4, alpha=8)
KINDS = {
    "lane": _Kind(_LORA, packed=True),
    "alone": _Kind(_LORA),
    "full": _Kind(FullMethod()),
    "full-bf16-int8": _Kind(FullMethod(), precision="bf16", moments="int8"),
}


_LONG = ("alone", "full-bf16-int8")


@pytest.fixture(
    params=[pytest.param(one, marks=[pytest.mark.full] * (one in _LONG)) for one in KINDS]
)
def kind(request: pytest.FixtureRequest) -> _Kind:
    return KINDS[request.param]


def _base(tmp_path: Path, kind: _Kind) -> Path:
    save_tiny_model(tmp_path / "model", tied=kind.packed)
    return tmp_path


@pytest.mark.full
def test_six_steps_and_six_more_are_twelve(tmp_path: Path, kind: _Kind) -> None:
    """Weights, moments and their age: with all rows alike and no schedule, nothing else counts."""
    base = _base(tmp_path, kind)
    spec = alike_spec(base, tiny_spec(base, method=kind.method), steps=12)
    whole = kind.finish(kind.run(base / "whole", spec))
    half = msgspec.structs.replace(spec, steps=6)
    first = kind.finish(kind.run(base / "first", half))
    second = kind.finish(kind.run(base / "second", continued(first, seed=99)))
    # Twice, so that what is carried adds up.
    three = [kind.finish(kind.run(base / "t0", msgspec.structs.replace(spec, steps=4)))]
    for name in ("t1", "t2"):
        three.append(kind.finish(kind.run(base / name, continued(three[-1]))))
    for one in (second, three[-1]):
        assert result_weights(one) == result_weights(whole)
        assert tensors_of(one.list_checkpoints()[0]) == tensors_of(whole.list_checkpoints()[0])
    assert result_weights(first) != result_weights(whole)
    losses = [loss for _, (loss, *_) in sorted(curve(whole).items())]
    both = [curve(run)[step][0] for run in (first, second) for step in sorted(curve(run))]
    assert both == losses
    assert read_state(three[-1].list_checkpoints()[0]).carried_steps == 8


@pytest.mark.full
def test_the_new_chart_begins_where_the_old_one_ended(tmp_path: Path, kind: _Kind) -> None:
    base = _base(tmp_path, kind)
    parent = kind.finish(kind.run(base / "parent", tiny_spec(base, method=kind.method)))
    child = kind.finish(kind.run(base / "child", continued(parent, seed=4)))
    grandchild = kind.finish(kind.run(base / "grandchild", continued(child, seed=5)))
    for one, next_one in ((parent, child), (child, grandchild)):
        assert held_out(next_one)[0] == held_out(one)[8]
        before = [e.answer for e in events_of(next_one) if isinstance(e, Sampled) and e.step == 0]
        after = [e.answer for e in events_of(one) if isinstance(e, Sampled) and e.step == 8]
        assert before == after, "the answers before are those of what it begins with"
        (started,) = [e for e in events_of(next_one) if isinstance(e, Started)]
        assert (started.from_step, started.resumed_from) == (0, str(one.list_checkpoints()[0]))
    summary = json.loads((grandchild.result / "summary.json").read_text())
    assert summary["eval_loss_base"] == held_out(parent)[0]
    assert summary["eval_loss_before"] == held_out(child)[8]
    assert summary["eval_loss_after"] == held_out(grandchild)[8]


def test_the_schedule_is_a_new_one(tmp_path: Path) -> None:
    base, kind = _base(tmp_path, KINDS["alone"]), KINDS["alone"]
    optim = OptimSpec(lr=1e-3, schedule="linear", warmup_fraction=0.25)
    parent = kind.finish(kind.run(base / "parent", tiny_spec(base, method=_LORA, optim=optim)))
    child = kind.finish(kind.run(base / "child", continued(parent, steps=4)))
    rates = [point[2] for point in curve(child).values()]
    assert rates == pytest.approx([0.0, 1e-3, 2e-3 / 3, 1e-3 / 3])


@pytest.mark.full
def test_of_weights_alone_the_moments_begin_anew(tmp_path: Path, kind: _Kind) -> None:
    base = _base(tmp_path, kind)
    spec = tiny_spec(base, method=kind.method, optim=STEADY)
    parent = kind.finish(kind.run(base / "parent", spec))
    # The same weights from the result alone, and from the checkpoint without its moments.
    by_checkpoint = continued(parent, weights_only=True)
    for checkpoint in parent.list_checkpoints():
        checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}"))
    by_result = continued(parent)
    for checkpoint in parent.checkpoints.iterdir():
        checkpoint.rename(checkpoint.with_name(checkpoint.name.removeprefix(".")))
    assert by_checkpoint.continues is not None
    assert by_result.continues is not None
    assert by_checkpoint.continues.kind == "checkpoint"
    assert by_result.continues.kind == ("adapter" if by_result.method == _LORA else "model")
    one = kind.finish(kind.run(base / "one", by_checkpoint))
    other = kind.finish(kind.run(base / "other", by_result))
    assert held_out(one)[0] == held_out(other)[0] == held_out(parent)[8]
    assert read_state(other.list_checkpoints()[0]).carried_steps == 0
    if kind.precision == "fp32":
        # A result in bf16 has lost the rest of the master.
        assert result_weights(one) == result_weights(other)
    with_moments = kind.finish(kind.run(base / "moments", continued(parent)))
    assert result_weights(with_moments) != result_weights(one)


@pytest.mark.full
@pytest.mark.parametrize("name", ["lane", "full"])
def test_killed_and_resumed_it_equals_one_that_was_not(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    base = _base(tmp_path, kind)
    spec = tiny_spec(base, method=kind.method, optim=OptimSpec(lr=2e-3))
    parent = kind.finish(kind.run(base / "parent", spec))
    child = continued(parent, steps=50, seed=8, checkpoint_every_steps=3)
    child = msgspec.structs.replace(child, eval=msgspec.structs.replace(child.eval, every_steps=25))
    whole = kind.finish(kind.run(base / "whole", child))
    first = kind.run(base / "first", child)
    worker = kind.start(first, halt_at=8)
    wait_until(first.list_checkpoints, what="it has a checkpoint")
    worker.send(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    assert max(curve(first)) < 50
    second = kind.run(base / "second", child, tuple(map(str, first.list_checkpoints())))
    kind.finish(second)
    assert min(curve(second)) > 1
    assert curve(first, second) == curve(whole)
    assert held_out(first, second) == held_out(whole)
    assert result_weights(second) == result_weights(whole)
    assert tensors_of(second.list_checkpoints()[0]) == tensors_of(whole.list_checkpoints()[0])


def test_asked_to_leave_it_is_resumed_with_the_age_of_its_moments(tmp_path: Path) -> None:
    kind = KINDS["alone"]
    base = _base(tmp_path, kind)
    spec = alike_spec(base, tiny_spec(base, method=_LORA), steps=40)
    parent = kind.finish(kind.run(base / "parent", msgspec.structs.replace(spec, steps=10)))
    child = continued(parent, steps=400)
    first = kind.run(base / "first", child)
    worker = start(first, halt_at=2)
    wait_until(lambda: len(curve(first)) >= 2, what="some steps are done")
    worker.send(signal.SIGTERM)
    assert worker.wait() == EXIT_YIELDED
    assert read_state(first.list_checkpoints()[0]).carried_steps == 10


def test_full_weights_go_from_one_form_to_another(tmp_path: Path) -> None:
    """A job of a card, gone on with on a CPU: the same weights, and moments that still fit."""
    base = _base(tmp_path, KINDS["full"])
    card = _Kind(FullMethod(), precision="bf16")
    parent = card.finish(card.run(base / "parent", tiny_spec(base, method=card.method)))
    child = continued(parent, steps=1, optim=STEADY, checkpoint_every_steps=1)
    there = card.finish(card.run(base / "there", child))
    here = KINDS["full"].finish(KINDS["full"].run(base / "here", child))
    newest = parent.list_checkpoints()[0]
    old = load_file(newest / "unit-00000.safetensors")
    one, other = (
        load_file(run.list_checkpoints()[0] / "unit-00000.safetensors") for run in (there, here)
    )
    # One step of 2e-3 away from the same weights; gradients differ in their last bits.
    assert other["master"].dtype == torch.float32
    assert old["master"].dtype == torch.bfloat16
    assert float((other["master"] - old["master"].float()).abs().max()) < 1e-2
    torch.testing.assert_close(other["exp_avg"], one["exp_avg"], rtol=0.1, atol=1e-3)
    other_form = _Kind(FullMethod(), moments="int8")
    refused = other_form.run(base / "refused", child)
    assert start(refused).wait() != 0
    assert error_of(refused).error.code == "RUN-CHECKPOINT-OTHER-JOB"
    assert "fp32" in error_of(refused).error.why


@pytest.mark.parametrize("name", ["lane", "full"])
def test_steps_that_changed_nothing_are_no_success(tmp_path: Path, name: str) -> None:
    """The first step of a warm-up has no rate: the adapter is as the other job left it."""
    kind = KINDS[name]
    base = _base(tmp_path, kind)
    parent = kind.finish(kind.run(base / "parent", tiny_spec(base, method=kind.method)))
    child = continued(parent, steps=1, optim=OptimSpec(warmup_fraction=1.0))
    run = kind.run(base / "child", child)
    kind.start(run).wait()
    error = error_of(run).error
    assert error.code == "RUN-NOTHING-LEARNED"
    assert error.what.startswith("The weights did not change")


def _overlaps(run: RunFolder) -> list[str]:
    found = [e for e in events_of(run) if isinstance(e, Warned) and e.code == "DATA-OVERLAP"]
    return [event.message for event in found]


@pytest.mark.full
@pytest.mark.parametrize(
    ("rows", "held", "told"),
    [
        # Questions of the old data stay on their side of the split.
        (slice(0, 60), {}, ""),
        (slice(40, 80), {"split_seed": 77}, ""),
        (slice(0, 60), {"split_seed": 77}, "held-out rows ask what an earlier job was trained on"),
    ],
    ids=["same-split", "new-rows", "another-split"],
)
def test_on_other_data_held_out_rows_that_were_trained_on_are_named(
    tmp_path: Path, rows: slice, held: dict[str, Any], told: str
) -> None:
    kind = KINDS["alone"]
    base = _base(tmp_path, kind)
    parent = kind.finish(kind.run(base / "parent", tiny_spec(base, method=_LORA)))
    middle = continued(parent, dataset=dataset_ref(base, chat_rows(120)[100:], "middle"))
    between = kind.finish(kind.run(base / "middle", middle))
    spec = continued(between, dataset=dataset_ref(base, chat_rows(80)[rows], "new"))
    replaced: Callable[..., EvalSpec] = msgspec.structs.replace
    spec = msgspec.structs.replace(spec, eval=replaced(spec.eval, **held))
    child = kind.finish(kind.run(base / "child", spec))
    messages = _overlaps(child)
    assert len(messages) == bool(told)
    assert all(told in message for message in messages)
    assert spec.continues is not None
    assert spec.continues.base_loss is None, "it was measured on other rows"


@pytest.mark.full
@pytest.mark.parametrize("name", ["alone", "full-bf16-int8"])
def test_with_its_own_checkpoint_broken_it_begins_with_the_other_jobs(
    tmp_path: Path, name: str
) -> None:
    kind = KINDS[name]
    base = _base(tmp_path, kind)
    parent = kind.finish(kind.run(base / "parent", tiny_spec(base, method=kind.method)))
    child = continued(parent)
    whole = kind.finish(kind.run(base / "whole", child))
    broken = whole.list_checkpoints()[0]
    for path in broken.glob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(content)
    again = kind.finish(kind.run(base / "again", child, (str(broken),)))
    assert "RUN-CHECKPOINT-CORRUPT" in [
        event.code for event in events_of(again) if isinstance(event, Warned)
    ]
    assert curve(again) == curve(whole)
    assert result_weights(again) == result_weights(whole)
