"""A held-out file that repeats training questions is told of."""

from pathlib import Path

import pytest
from support.runs import dataset_ref, events_of, make_run, run_worker, tiny_spec

from slidepack.engine.contract.events import Warned
from slidepack.engine.contract.job import EvalSpec


@pytest.mark.full
@pytest.mark.parametrize(("first", "shared"), [(38, 2), (40, 0)])
def test_held_out_rows_that_are_trained_on_are_counted(
    tmp_path: Path, first: int, shared: int
) -> None:
    rows: list[dict[str, object]] = [
        {
            "messages": [
                {"role": "user", "content": f"What is {number} and one?"},
                {"role": "assistant", "content": str(number + 1)},
            ]
        }
        for number in range(44)
    ]
    held_out = dataset_ref(tmp_path, rows[first:], "held-out")
    spec = tiny_spec(
        tmp_path,
        dataset=dataset_ref(tmp_path, rows[:40], "training"),
        eval=EvalSpec(selection=held_out, sample_tokens=4),
        steps=2,
    )
    run = make_run(tmp_path / "run", spec)
    assert run_worker(run) == 0, run.log.read_text()
    told = [one for one in events_of(run) if isinstance(one, Warned) and one.code == "DATA-OVERLAP"]
    assert len(told) == (shared > 0)
    if told:
        assert told[0].message.startswith(f"{shared} held-out rows")
