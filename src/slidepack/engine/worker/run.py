"""One attempt from start to end: load, tokenise, train, write the result."""

import hashlib
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import (
    Finished,
    Phase,
    PhaseChanged,
    Sampled,
    Started,
    Warned,
)
from slidepack.engine.contract.job import FullMethod, LoraMethod
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, fsync_folder, write_atomic
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.memory import tighten
from slidepack.engine.model.loading import eos_ids
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.checkpoint import (
    InvalidCheckpointError,
    LaneState,
    load_checkpoint,
)
from slidepack.engine.worker.control import ControlReader
from slidepack.engine.worker.dataset import EncodedData, load_data, write_rejects
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.full_trainee import load_full
from slidepack.engine.worker.order import total_steps
from slidepack.engine.worker.stopping import StopFlag
from slidepack.engine.worker.trainee import Trainee, load_lora
from slidepack.engine.worker.trainer import Trainer

_ROWS_PER_REPORT = 200


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
        self._identity = folder.read_identity()
        self._spec_hash = hashlib.sha256(msgspec.json.encode(self._spec)).hexdigest()

    def execute(self) -> None:
        """Run to the end.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: the run cannot go on.
            OSError: the disk refused.
        """
        device = open_device(self._plan)
        tokenizer = load_tokenizer(Path(self._spec.base.path))
        trainee = self._load(device)
        try:
            self._train(trainee, tokenizer)
        finally:
            trainee.close()

    def _train(self, trainee: Trainee, tokenizer: ChatTokenizer) -> None:
        data = self._tokenise(tokenizer, trainee.shape)
        state, resumed_from = self._restore(trainee)
        steps = total_steps(self._spec, len(data.train))
        self._report_start(trainee, data, steps, state, resumed_from)
        trainer = Trainer(
            spec=self._spec,
            spec_hash=self._spec_hash,
            trainee=trainee,
            data=data,
            total_steps=steps,
            state=state,
            events=self._events,
            control=ControlReader(self._folder.control),
            stop=self._stop,
            checkpoints=self._folder.checkpoints,
        )
        sample = self._sampler(trainee, tokenizer, data)
        if state is None:
            sample(tuned=False, step=0)
        loss_after = trainer.run()
        trainer.evaluate_test()
        try:
            sample(tuned=True, step=trainer.step)
        except torch.OutOfMemoryError as error:
            # The training is done; its answers are worth less than its result.
            self._warn("GPU-OUT-OF-MEMORY", f"The answers after training did not fit: {error}")
        self._finish(trainer, trainee, loss_after)

    def _load(self, device: torch.device) -> Trainee:
        folder, spec = Path(self._spec.base.path), self._spec

        def on_layer(done: int, total: int) -> None:
            self._phase("loading", done, total)

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
                    self._warn,
                )

    def _tighten(self, shape: ModelShape, plan: RunPlan) -> RunPlan | None:
        """Return a smaller plan, and keep it for whoever resumes this run; None where none is."""
        smaller = tighten(plan, self._spec, shape)
        if smaller is not None:
            self._plan = smaller
            write_atomic(self._folder.plan, msgspec.json.encode(smaller))
        return smaller

    def _tokenise(self, tokenizer: ChatTokenizer, shape: ModelShape) -> EncodedData:
        vocab = shape.vocab
        if tokenizer.plain_tokens_beyond(vocab):
            raise SlidepackError(
                "MODEL-BROKEN",
                "The tokenizer has more tokens than the model.",
                why=f"{tokenizer.vocab_size} tokens, {vocab} rows of the embedding",
                fix="Get the model's files again.",
            )

        def on_row(done: int) -> None:
            self._stop.check()
            if done % _ROWS_PER_REPORT == 0:
                self._phase("tokenising", done, 0)

        self._phase("tokenising", 0, 0)
        limit = min(self._spec.max_seq_len, shape.max_positions)
        data = load_data(self._spec, tokenizer, limit, on_row, vocab=vocab)
        if data.rejects:
            message = write_rejects(data.rejects, self._folder.rejects)
            self._warn("DATA-ROWS-LEFT-OUT", message)
        return data

    def _restore(self, trainee: Trainee) -> tuple[LaneState | None, str]:
        """Go on from the newest valid checkpoint; a damaged one is named and passed."""
        for path in self._identity.resume_from:
            try:
                return load_checkpoint(trainee, Path(path), self._spec_hash), path
            except InvalidCheckpointError as error:
                self._warn("RUN-CHECKPOINT-CORRUPT", f"A checkpoint is left out: {error}.")
        return None, ""

    def _report_start(
        self,
        trainee: Trainee,
        data: EncodedData,
        steps: int,
        state: LaneState | None,
        resumed_from: str,
    ) -> None:
        self._events.append(
            Started(
                at=self._events.now(),
                pid=os.getpid(),
                device=_device_name(trainee.device),
                precision=self._plan.precision,
                total_steps=steps,
                from_step=state.step if state else 0,
                train_rows=len(data.train),
                eval_rows=len(data.selection),
                trainable_params=trainee.trainable_params,
                attention=f"{trainee.attention.path}: {trainee.attention.reason}",
                resumed_from=resumed_from,
            )
        )

    def _sampler(
        self, trainee: Trainee, tokenizer: ChatTokenizer, data: EncodedData
    ) -> Callable[..., None]:
        stop_ids = eos_ids(Path(self._spec.base.path), tokenizer.eos_id)

        def sample(*, tuned: bool, step: int) -> None:
            if not data.prompts:
                return
            self._phase("sampling", 0, len(data.prompts))
            answers = trainee.answer(
                [prompt.ids for prompt in data.prompts],
                self._spec.eval.sample_tokens,
                stop_ids,
                tuned=tuned,
            )
            for prompt, ids in zip(data.prompts, answers, strict=True):
                self._events.append(
                    Sampled(
                        at=self._events.now(),
                        step=step,
                        prompt=prompt.text,
                        answer=tokenizer.decode(ids),
                    )
                )

        return sample

    def _finish(self, trainer: Trainer, trainee: Trainee, loss_after: float | None) -> None:
        self._phase("saving", 0, 0)
        if not trainee.is_finite():
            raise SlidepackError(
                "RUN-DIVERGED",
                "The trained weights hold values that are no numbers.",
                why=f"after step {trainer.step}; the checkpoints before it are kept",
                fix=f"Try again with a learning rate below {self._spec.optim.lr / 3:.1e}.",
            )
        if not trainee.has_learned():
            self._warn("RUN-NOTHING-LEARNED", "The weights did not change: nothing was learned.")
        speed = trainer.tokens / max(1e-9, trainer.clock.seconds)
        peak_host, peak_device = _peak_bytes(trainee.device)
        summary = {
            "steps": trainer.step,
            "tokens": trainer.tokens,
            "seconds": trainer.clock.seconds,
            "tokens_per_second": speed,
            "eval_loss_before": trainer.eval_loss_before,
            "eval_loss_after": loss_after,
            "peak_host_bytes": peak_host,
            "peak_device_bytes": peak_device,
            "predicted_host_bytes": self._plan.predicted_host_bytes,
            "predicted_device_bytes": self._plan.predicted_device_bytes,
        }
        self._write_result(trainee, summary)
        self._events.append(
            Finished(
                at=self._events.now(),
                steps=trainer.step,
                result=str(self._folder.result),
                eval_loss_before=trainer.eval_loss_before,
                eval_loss_after=loss_after,
                seconds=trainer.clock.seconds,
                tokens_per_second=speed,
                peak_host_bytes=peak_host,
                peak_device_bytes=peak_device,
            )
        )

    def _write_result(self, trainee: Trainee, summary: dict[str, float | None]) -> None:
        """Write the result aside and rename it, so that `result/` is whole or absent."""
        target = self._folder.result
        temporary = target.with_name(f".result.tmp-{os.getpid()}")
        temporary.mkdir(parents=True)
        trainee.write_result(temporary, self._spec.base.name or self._spec.base.model_id)
        write_atomic(temporary / "summary.json", json.dumps(summary, indent=2).encode())
        temporary.rename(target)
        fsync_folder(target.parent)

    def _phase(self, phase: Phase, done: int, total: int) -> None:
        self._stop.check()
        self._events.append(
            PhaseChanged(at=self._events.now(), phase=phase, done=done, total=total)
        )

    def _warn(self, code: str, message: str) -> None:
        self._events.append(Warned(at=self._events.now(), code=code, message=message))


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


def _peak_bytes(device: torch.device) -> tuple[int, int]:
    """Return the peaks of this process: resident set, and reserved device memory."""
    # Not getrusage: its peak also counts the process that this one was forked from.
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    host = int(line.split()[1]) * 1024
    return host, torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"
