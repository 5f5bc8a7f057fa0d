"""What a base was asked once is not asked again, and nobody can tell by the results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.pack_runs import (
    alone,
    lane_run,
    make_lanes,
    make_pack,
    pack_plan,
    run_here,
    three_jobs,
)

from slidepack.engine.contract.job import EvalSpec, LoraMethod, OptimSpec
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.pack import Pack
from slidepack.engine.model.generate import generate_greedy
from slidepack.engine.model.loss import LossSum
from slidepack.engine.worker.base_memory import BaseMemory
from slidepack.engine.worker.judging_pass import RowScore, score_rows


def test_members_of_a_sweep_measure_their_base_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = three_jobs(tmp_path / "jobs", dropout=0.0)["a"]
    held_out = EvalSpec(selection_fraction=0.2, every_steps=3, sample_tokens=4, split_seed=1)
    specs = [
        msgspec.structs.replace(
            job,
            name=f"rank-{rank}",
            method=LoraMethod(rank=rank, alpha=2 * rank),
            optim=OptimSpec(lr=rate),
            seed=seed,
            steps=4,
            eval=held_out,
        )
        for rank, rate, seed in ((2, 1e-2, 1), (8, 3e-3, 2), (3, 1e-3, 3))
    ]
    # The last one is measured by other rows.
    specs[2] = msgspec.structs.replace(
        specs[2], eval=msgspec.structs.replace(held_out, split_seed=2)
    )
    plan = pack_plan(specs)
    judges = alone(tmp_path / "alone", specs, plan)
    evaluated: list[tuple[str, ...]] = []
    asked: list[bool] = []
    judged: list[bool] = []
    evaluate = Pack.evaluate

    def counted(pack: Pack, rows: dict[str, Sequence[EncodedRow]]) -> dict[str, LossSum]:
        evaluated.append(tuple(rows))
        return evaluate(pack, rows)

    def generated(decoder: Any, lane: Any, *rest: Any, **more: Any) -> list[list[int]]:
        asked.append(lane is not None)
        return generate_greedy(decoder, lane, *rest, **more)

    def scored(decoder: Any, lane: Any, *rest: Any, **more: Any) -> list[RowScore]:
        judged.append(lane is not None)
        return score_rows(decoder, lane, *rest, **more)

    monkeypatch.setattr(Pack, "evaluate", counted)
    monkeypatch.setattr("slidepack.engine.worker.trainee.score_rows", scored)
    monkeypatch.setattr("slidepack.engine.worker.trainee.generate_greedy", generated)
    runs = make_lanes(tmp_path / "lanes", specs)
    assert run_here(make_pack(tmp_path / "pack", runs.values(), plan)) == 0
    first = [lanes for lanes in evaluated if lanes]
    assert first[:2] == [("rank-2",), ("rank-3",)], "the second has the rows of the first"
    assert (judged.count(False), judged.count(True)) == (2, 3)
    # The questions of the job, and those that it is judged by.
    assert (asked.count(False), asked.count(True)) == (2 * 2, 2 * 3)
    for name, run in runs.items():
        assert lane_run(run) == lane_run(judges[name])


def _row(*ids: int, supervised: bool = True) -> EncodedRow:
    return EncodedRow(1, ids, (supervised,) * len(ids))


@pytest.mark.parametrize(
    "other",
    [
        [_row(1, 2, 3), _row(4)],
        [_row(1, 2), _row(3)],
        [_row(1, 2), _row(3, 4, supervised=False)],
        [_row(3, 4), _row(1, 2)],
        [_row(1, 2), _row(3, 4), _row()],
        [],
    ],
)
def test_rows_are_known_by_what_they_are(other: list[EncodedRow]) -> None:
    memory = BaseMemory()
    rows = [_row(1, 2), _row(3, 4)]
    memory.keep_loss(rows, LossSum(3.0, 4))
    assert memory.loss([_row(1, 2), _row(3, 4)]) == LossSum(3.0, 4)
    assert memory.loss(other) is None


def test_the_oldest_are_forgotten() -> None:
    memory = BaseMemory()
    for token in range(100):
        memory.keep_loss([_row(token)], LossSum(float(token), 1))
    assert memory.loss([_row(0)]) is None
    assert memory.loss([_row(99)]) == LossSum(99.0, 1)
