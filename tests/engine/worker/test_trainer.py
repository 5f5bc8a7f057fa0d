"""What the training loop refuses to train on, and to end with."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from support.packing import random_rows
from support.runs import make_run, tiny_spec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.worker.control import ControlReader
from slidepack.engine.worker.dataset import EncodedData
from slidepack.engine.worker.ending import check_learned
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.saving import Checkpoints
from slidepack.engine.worker.stopping import StopFlag
from slidepack.engine.worker.trainee import LoraTrainee, load_lora
from slidepack.engine.worker.trainer import Trainer

METHOD = LoraMethod(rank=4)
SILENT = EncodedRow(7, (1, 2, 3), (False, False, False))


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    optim = OptimSpec(lr=1e-2, warmup_fraction=0.0)
    return tiny_spec(tmp_path, method=METHOD, optim=optim, batch_size=1, steps=2)


@pytest.fixture
def folder(tmp_path: Path, spec: JobSpec) -> RunFolder:
    return make_run(tmp_path / "run", spec)


@pytest.fixture
def trainee(folder: RunFolder, spec: JobSpec) -> LoraTrainee:
    device = torch.device("cpu")
    plan = folder.read_plan()
    model = Path(spec.base.path)
    return load_lora(
        model, METHOD, plan, spec.optim, spec.seed, device, lambda *_: None, lambda: None
    )


@pytest.fixture
def events(folder: RunFolder) -> Iterator[EventLog]:
    with EventLog(folder.events) as log:
        yield log


def _trainer(
    folder: RunFolder, trainee: LoraTrainee, events: EventLog, rows: Sequence[EncodedRow]
) -> Trainer:
    spec = folder.read_spec()
    return Trainer(
        spec=spec,
        trainee=trainee,
        data=EncodedData(train=rows),
        total_steps=spec.steps,
        state=None,
        events=events,
        control=ControlReader(folder.control),
        stop=StopFlag(),
        checkpoints=Checkpoints(folder.checkpoints, spec, trainee, events, 0, None),
    )


def test_a_step_without_a_token_to_learn_from_is_told(
    folder: RunFolder, trainee: LoraTrainee, events: EventLog
) -> None:
    trainer = _trainer(folder, trainee, events, [SILENT])
    assert trainer.next_rows(1) == [SILENT], "it is told when it is its turn"
    with pytest.raises(SlidepackError, match=r"Step 1 has no token to learn from.*line 7") as told:
        trainer.run()
    assert told.value.report.code == "DATA-NO-USABLE-ROWS"


def test_a_held_out_loss_that_is_no_number_is_a_divergence(
    folder: RunFolder, trainee: LoraTrainee, events: EventLog
) -> None:
    rows = random_rows((21,), trainee.shape.vocab)
    trainer = _trainer(folder, trainee, events, rows)
    trainer.run()
    told: list[tuple[str, str]] = []
    optim = folder.read_spec().optim

    def check(loss: float | None) -> None:
        check_learned(trainer, trainee, optim, loss, lambda *one: told.append(one))

    check(2.0)
    assert told == []
    for loss in (math.nan, math.inf):
        with pytest.raises(SlidepackError, match="held-out loss of the trained weights") as caught:
            check(loss)
        assert caught.value.report.code == "RUN-DIVERGED"
        assert caught.value.report.fix == (
            "Go on from the checkpoint of step 2 with a learning rate below 3.3e-03."
        )
