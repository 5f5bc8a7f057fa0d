"""Jobs whose answers are labels that can be learned, and what they were judged to be."""

import json
import signal
from pathlib import Path
from typing import Any

from slidepack.engine.contract.events import Judged, Warned
from slidepack.engine.contract.job import EvalSpec, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.judgement import JudgeReport
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.worker.__main__ import main
from support.runs import dataset_ref, events_of, tiny_spec

WORDS = ("red", "blue", "green")
LABELS = ("A", "B", "C")


def labelled_rows(count: int) -> list[dict[str, object]]:
    """Return conversations whose answer is the label of the question's first word."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"{WORDS[i % 3]} {i}"},
                {"role": "assistant", "content": LABELS[i % 3]},
            ]
        }
        for i in range(count)
    ]


def labelled_spec(folder: Path, count: int = 60, **changes: Any) -> JobSpec:
    """Return a job on such rows, a third of them to be tested by."""
    values: dict[str, Any] = {
        "dataset": dataset_ref(folder, labelled_rows(count), "labels"),
        "steps": 4,
        "batch_size": 4,
        "method": LoraMethod(rank=4, alpha=8),
        "optim": OptimSpec(lr=1e-2),
        "eval": EvalSpec(
            selection_fraction=0.1, test_fraction=0.3, sample_tokens=2, every_steps=100
        ),
    }
    return tiny_spec(folder, **(values | changes))


def run_alone(run: RunFolder) -> int:
    """Run a worker in this process, where its parts can be patched; return the exit code."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        return main([str(run.root)])
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def reports_of(run: RunFolder) -> list[JudgeReport]:
    """Return the reports of a run, in order."""
    return [event.report for event in events_of(run) if isinstance(event, Judged)]


def warnings_of(run: RunFolder) -> list[Warned]:
    """Return what a run warned of."""
    return [event for event in events_of(run) if isinstance(event, Warned)]


def summary_of(run: RunFolder) -> dict[str, Any]:
    """Return the summary in a run's result."""
    found: dict[str, Any] = json.loads((run.result / "summary.json").read_bytes())
    return found
