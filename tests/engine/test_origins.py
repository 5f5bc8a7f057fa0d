"""What a run left, and what of it a job goes on from."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import (
    ContinueRef,
    DatasetRef,
    EvalSpec,
    JobSpec,
    LoraMethod,
    ModelRef,
)
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.origins import find_left, origin_of, require_fit

_SPEC = JobSpec(
    name="first",
    base=ModelRef(model_id="m", path="/m", content_hash="a"),
    dataset=DatasetRef(dataset_id="1", path="/d", content_hash="b"),
    method=LoraMethod(),
    steps=10,
    seed=4,
)


def _checkpoint(run: RunFolder, step: int, *, healthy: bool = True, whole: bool = True) -> Path:
    folder = run.checkpoints / f"step-{step:08d}"
    folder.mkdir(parents=True)
    state = {"step": step, "tensors_hash": f"t{step}", "eval_loss_before": 3.5, "healthy": healthy}
    (folder / "state.json").write_text(json.dumps(state) if whole else "{")
    return folder


def _result(run: RunFolder, step: int) -> Path:
    folder = run.result / "adapter"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    summary = {"steps": step, "eval_loss_before": 3.5, "other": 1}
    (run.result / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    """Two attempts at one job."""
    return RunFolder(tmp_path / "1"), RunFolder(tmp_path / "2")


def test_a_run_that_left_nothing_is_not_gone_on_from(runs: tuple[RunFolder, RunFolder]) -> None:
    assert find_left(runs) is None
    _checkpoint(runs[0], 2, healthy=False)
    _checkpoint(runs[1], 3, whole=False)
    assert find_left(runs) is None
    with pytest.raises(SlidepackError) as caught:
        origin_of(None, _SPEC, "5")
    assert caught.value.report.code == "RUN-NO-CHECKPOINT"


def test_the_newest_healthy_checkpoint_of_all_attempts(runs: tuple[RunFolder, RunFolder]) -> None:
    _checkpoint(runs[0], 2)
    good = _checkpoint(runs[0], 4)
    _checkpoint(runs[1], 6, healthy=False)
    _checkpoint(runs[1], 8, whole=False)
    left = find_left(runs)
    assert left is not None
    assert (left.path, left.step, left.kind) == (good, 4, "checkpoint")
    origin = origin_of(left, _SPEC, "5")
    assert (origin.digest, origin.taken, origin.base_loss) == ("t4", "state", 3.5)
    assert origin_of(left, _SPEC, "5", weights_only=True).taken == "weights"


def test_a_result_counts_more_than_a_checkpoint_from_the_middle(
    runs: tuple[RunFolder, RunFolder],
) -> None:
    _checkpoint(runs[0], 8)
    adapter = _result(runs[1], 10)
    left = find_left(runs)
    assert left is not None
    assert (left.path, left.step) == (adapter, 10)
    origin = origin_of(left, _SPEC, "5")
    assert (origin.kind, origin.taken) == ("adapter", "weights")
    assert origin.digest == hashlib.sha256(b"weights").hexdigest()
    # With the moments too, the last one is better still.
    last = _checkpoint(runs[1], 10)
    left = find_left(runs)
    assert left is not None
    assert left.path == last


def test_an_unreadable_result_is_named(runs: tuple[RunFolder, RunFolder]) -> None:
    (_result(runs[0], 10) / "adapter_model.safetensors").unlink()
    with pytest.raises(SlidepackError) as caught:
        origin_of(find_left(runs), _SPEC, "5")
    assert caught.value.report.code == "RUN-ORIGIN-BROKEN"
    assert str(runs[0].result) in caught.value.report.why


def _child(parent: JobSpec, origin: ContinueRef) -> JobSpec:
    held = msgspec.structs.replace(parent.eval, split_seed=4)
    return msgspec.structs.replace(parent, continues=origin, eval=held, seed=9)


def test_of_a_chain_all_rows_and_the_bases_loss_are_remembered(
    runs: tuple[RunFolder, RunFolder],
) -> None:
    _checkpoint(runs[0], 4)
    first = require_fit(_SPEC, _child(_SPEC, origin_of(find_left(runs), _SPEC, "5")))
    assert first.continues is not None
    assert first.continues.base_loss == 3.5
    ((rows,),) = (first.continues.trained_on,)
    assert (rows.dataset, rows.split_seed, rows.selection_fraction) == (_SPEC.dataset, 4, 0.1)
    other = msgspec.structs.replace(
        _child(first, origin_of(find_left(runs), first, "6")),
        dataset=DatasetRef(dataset_id="2", path="/e", content_hash="c"),
        eval=EvalSpec(split_seed=4),
    )
    second = require_fit(first, other)
    assert second.continues is not None
    assert second.continues.base_loss is None, "it was measured on other rows"
    assert [rows.dataset.path for rows in second.continues.trained_on] == ["/d", "/d"]


def test_what_does_not_fit_is_refused(runs: tuple[RunFolder, RunFolder]) -> None:
    _checkpoint(runs[0], 4)
    child = _child(_SPEC, origin_of(find_left(runs), _SPEC, "5"))
    method = LoraMethod(rank=2, alpha=1, rslora=True, targets=("q_proj",), base_precision="nf4")
    with pytest.raises(SlidepackError) as caught:
        require_fit(_SPEC, msgspec.structs.replace(child, method=method))
    assert caught.value.report.code == "RUN-CHECKPOINT-OTHER-JOB"
    assert caught.value.report.why.endswith("; and 1 more")
