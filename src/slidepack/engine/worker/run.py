"""A run of its own: one attempt, its model, and nobody else's steps."""

from pathlib import Path

import msgspec
import torch

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod, LoraMethod
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, write_atomic
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.memory import tighten
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.attempt import Attempt
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.full_trainee import load_full
from slidepack.engine.worker.stopping import StopFlag
from slidepack.engine.worker.sweep import Member
from slidepack.engine.worker.trainee import Trainee, load_lora

__all__ = ["Run", "open_device"]


class Run:
    """One attempt at a job."""

    def __init__(self, folder: RunFolder, events: EventLog, stop: StopFlag) -> None:
        """Read the run folder's input files.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        self._folder = folder
        self._events = events
        self._stop = stop
        self._spec = folder.read_spec()
        self._plan = folder.read_plan()

    def execute(self) -> None:
        """Run to the end.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: the run cannot go on.
            OSError: the disk refused.
        """
        device = open_device(self._plan)
        tokenizer = load_tokenizer(Path(self._spec.base.path))
        attempt = Attempt(self._folder, self._events, self._stop, tokenizer)
        trainee = self._load(attempt, device)
        try:
            data = attempt.read_data(trainee.shape)
            trainer = attempt.trainer(trainee, data, self._plan.precision)
            member = Member.of(self._folder, self._folder.read_identity().job_id)
            loss_after = trainer.run(member)
            attempt.finish(trainer, trainee, data, self._plan, loss_after)
        finally:
            trainee.close()

    def _load(self, attempt: Attempt, device: torch.device) -> Trainee:
        folder, spec = Path(self._spec.base.path), self._spec

        def on_layer(done: int, total: int) -> None:
            attempt.phase("loading", done, total)

        match spec.method:
            case LoraMethod() as method:
                return load_lora(
                    folder,
                    method,
                    self._plan,
                    spec.optim,
                    spec.seed,
                    device,
                    on_layer,
                    self._stop.check,
                )
            case FullMethod():
                return load_full(
                    folder,
                    self._plan,
                    spec.optim,
                    device,
                    on_layer,
                    self._stop.check,
                    self._tighten,
                    attempt.warn,
                    self._folder,
                )

    def _tighten(self, shape: ModelShape, plan: RunPlan) -> RunPlan | None:
        """Return a smaller plan, and keep it for whoever resumes this run; None where none is."""
        smaller = tighten(plan, self._spec, shape)
        if smaller is not None:
            self._plan = smaller
            write_atomic(self._folder.plan, msgspec.json.encode(smaller))
        return smaller


def open_device(plan: RunPlan) -> torch.device:
    """Return the plan's device, ready, with torch's thread count set.

    Raises:
        SlidepackError: GPU-UNUSABLE; the run never falls back to the CPU in silence.
    """
    torch.set_num_threads(plan.cpu_threads)
    device = torch.device(plan.device)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise _unusable(plan.device, f"torch {torch.__version__} sees no GPU")
    try:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    except RuntimeError as error:
        raise _unusable(plan.device, " ".join(str(error).split())[:300]) from error
    return device


def _unusable(device: str, why: str) -> SlidepackError:
    return SlidepackError(
        "GPU-UNUSABLE",
        f"The plan's device {device} cannot be used.",
        why=why,
        fix="Run `slidepack doctor`.",
    )
