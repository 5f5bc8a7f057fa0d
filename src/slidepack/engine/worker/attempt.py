"""One attempt at a job, whoever runs its steps: reads its data, goes on from a checkpoint, and
writes what comes of it into its run folder."""

import json
import os
import platform
from functools import cached_property
from pathlib import Path
from typing import Any, Final

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
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, fsync_folder, write_atomic
from slidepack.engine.data.seen_before import trained_before
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.data.twins import overlap
from slidepack.engine.export.stand_in import write_stand_in
from slidepack.engine.model.loading import eos_ids
from slidepack.engine.resident_memory import peak_resident_bytes
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.control import ControlReader
from slidepack.engine.worker.dataset import EncodedData, load_data
from slidepack.engine.worker.ending import check_learned
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.judging import Judging
from slidepack.engine.worker.judging_run import RunJudge
from slidepack.engine.worker.order import total_steps
from slidepack.engine.worker.restore import restore
from slidepack.engine.worker.room import require_room
from slidepack.engine.worker.saving import Checkpoints
from slidepack.engine.worker.stopping import StopFlag
from slidepack.engine.worker.trainee import Trainee
from slidepack.engine.worker.trainer import Trainer

__all__ = ["Attempt"]

_ROWS_PER_REPORT: Final = 200


class Attempt:
    """The attempt of one run folder."""

    def __init__(
        self, folder: RunFolder, events: EventLog, stop: StopFlag, tokenizer: ChatTokenizer
    ) -> None:
        """Read the run folder's input files.

        Args:
            folder: of the run.
            events: its log.
            stop: asked before anything that takes long.
            tokenizer: of the base model.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        self.folder = folder
        self.events = events
        self.spec: JobSpec = folder.read_spec()
        self._identity = folder.read_identity()
        self._stop = stop
        self._tokenizer = tokenizer
        self._judge: RunJudge | None = None

    def read_data(self, shape: ModelShape) -> EncodedData:
        """Tokenise the job's rows.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: the errors of `load_data`, MODEL-BROKEN.
        """
        tokenizer, vocab = self._tokenizer, shape.vocab
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
                self.phase("tokenising", done, 0)

        self.phase("tokenising", 0, 0)
        limit = min(self.spec.max_seq_len, shape.max_positions)
        data = load_data(
            self.spec,
            tokenizer,
            limit,
            on_row,
            vocab=vocab,
            scratch=self.folder.root,
            rejects=self.folder.rejects,
        )
        left_out = data.rejects.sentence()
        if left_out:
            self.warn("DATA-ROWS-LEFT-OUT", left_out)
        self._compare_held_out()
        self._compare_with_earlier(data)
        return data

    def _compare_held_out(self) -> None:
        """Tell of held-out rows that are trained on: their loss says nothing about new ones."""
        held_out = self.spec.eval.selection
        if held_out is None:
            return
        shared = overlap(Path(self.spec.dataset.path), Path(held_out.path))
        if shared.rows:
            lines = ", ".join(map(str, shared.first_lines))
            self.warn(
                "DATA-OVERLAP",
                f"{shared.rows} held-out rows ask what training rows ask (line {lines}): their "
                "loss says little about new questions.",
            )

    def _compare_with_earlier(self, data: EncodedData) -> None:
        """Tell of held-out rows that a job before this one, which it continues, trained on."""
        continues = self.spec.continues
        if continues is None or not data.selection:
            return
        try:
            seen = trained_before(self.spec, continues.trained_on)
        except OSError as error:
            # The loss stands; what it says of new questions cannot be told.
            self.warn(
                "DATA-NOT-FOUND",
                "Whether earlier jobs trained on the held-out rows is not known: "
                f"{error.filename} cannot be read ({error.strerror}).",
            )
            return
        if seen.rows:
            lines = ", ".join(map(str, seen.first_lines))
            self.warn(
                "DATA-OVERLAP",
                f"{seen.rows} held-out rows ask what an earlier job was trained on (line {lines}): "
                "their loss says little about new questions.",
            )

    def trainer(self, trainee: Trainee, data: EncodedData, precision: str) -> Trainer:
        """Go on from the newest valid checkpoint, report the start, and return what trains.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: the errors of `restore`.
        """
        steps = total_steps(self.spec, len(data.train))
        origin = restore(trainee, self._identity, self.spec, steps, self.warn)
        state = origin.state
        self.events.append(
            Started(
                at=self.events.now(),
                pid=os.getpid(),
                device=_device_name(trainee.device),
                precision=precision,
                total_steps=steps,
                from_step=state.step if state else 0,
                train_rows=len(data.train),
                eval_rows=len(data.selection),
                trainable_params=trainee.trainable_params,
                attention=f"{trainee.attention.path}: {trainee.attention.reason}",
                drives=trainee.drives,
                resumed_from=origin.path,
            )
        )
        self._judge = self._judge_of(trainee, data)
        judged = self._judge.before(origin)
        if state is None:
            # What it begins with answers first: the base, or what the other job made of it.
            tuned = self.spec.continues is not None
            self._sample_if_it_fits(trainee, data, tuned=tuned, step=0)
        elif origin.adopted and isinstance(self.spec.method, LoraMethod):
            # An adapter leaves its base to ask; a full fine-tuning has overwritten it by now.
            self._sample_if_it_fits(trainee, data, tuned=False, step=0)
        return Trainer(
            spec=self.spec,
            trainee=trainee,
            data=data,
            total_steps=steps,
            state=state,
            events=self.events,
            control=ControlReader(self.folder.control),
            stop=self._stop,
            judged=judged,
            checkpoints=Checkpoints(
                self.folder.checkpoints,
                self.spec,
                trainee,
                self.events,
                self._identity.disk_floor_bytes,
                state,
            ),
        )

    def _judge_of(self, trainee: Trainee, data: EncodedData) -> RunJudge:
        judging = Judging(
            data.judged_by,
            trainee,
            self._stop_ids,
            self._tokenizer.decode,
            lambda: self.phase("judging", 0, 0),
            self._stop.check,
            self.warn,
        )
        return RunJudge(judging, self.spec, self.events)

    def finish(
        self,
        trainer: Trainer,
        trainee: Trainee,
        data: EncodedData,
        plan: RunPlan,
        loss_after: float | None,
    ) -> None:
        """See that it has learned, answer the questions once more, and write the result.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: RUN-DIVERGED or RUN-NOTHING-LEARNED, and there is no result; DISK-FULL.
            OSError: the disk refused.
        """
        check_learned(trainer, trainee, self.spec.optim, loss_after, self.warn)
        self._sample_if_it_fits(trainee, data, tuned=True, step=trainer.step)
        assert self._judge is not None
        report = self._judge.after(trainer.judged, trainer.step)
        self.phase("saving", 0, 0)
        speed = trainer.tokens / max(1e-9, trainer.clock.seconds)
        peak_host, peak_device = _peak_bytes(trainee.device)
        summary: dict[str, Any] = {
            "steps": trainer.step,
            "tokens": trainer.tokens,
            "seconds": trainer.clock.seconds,
            "tokens_per_second": speed,
            "eval_loss_base": self._base_loss(trainer),
            "eval_loss_before": trainer.eval_loss_before,
            "eval_loss_after": loss_after,
            "peak_host_bytes": peak_host,
            "peak_device_bytes": peak_device,
            "predicted_host_bytes": plan.predicted_host_bytes,
            "predicted_device_bytes": plan.predicted_device_bytes,
            "judgement": msgspec.to_builtins(report),
        }
        self._write_result(trainee, summary)
        self.events.append(
            Finished(
                at=self.events.now(),
                steps=trainer.step,
                result=str(self.folder.result),
                eval_loss_before=trainer.eval_loss_before,
                eval_loss_after=loss_after,
                seconds=trainer.clock.seconds,
                tokens_per_second=speed,
                peak_host_bytes=peak_host,
                peak_device_bytes=peak_device,
            )
        )

    def _base_loss(self, trainer: Trainer) -> float | None:
        """Return the held-out loss of the untouched base, where it is known."""
        continues = self.spec.continues
        return trainer.eval_loss_before if continues is None else continues.base_loss

    def _sample_if_it_fits(
        self, trainee: Trainee, data: EncodedData, *, tuned: bool, step: int
    ) -> None:
        """Answer the job's questions; answers are worth less than the training."""
        try:
            self.sample(trainee, data, tuned=tuned, step=step)
        except torch.OutOfMemoryError as error:
            when = "after" if tuned else "before"
            self.warn("GPU-OUT-OF-MEMORY", f"The answers {when} training did not fit: {error}")

    def sample(self, trainee: Trainee, data: EncodedData, *, tuned: bool, step: int) -> None:
        """Answer the job's questions, and report the answers."""
        if not data.prompts:
            return
        self.phase("sampling", 0, len(data.prompts))
        answers = trainee.answer(
            [prompt.ids for prompt in data.prompts],
            self.spec.eval.sample_tokens,
            self._stop_ids,
            tuned=tuned,
        )
        for prompt, ids in zip(data.prompts, answers, strict=True):
            self.events.append(
                Sampled(
                    at=self.events.now(),
                    step=step,
                    prompt=prompt.text,
                    answer=self._tokenizer.decode(ids),
                )
            )

    @cached_property
    def _stop_ids(self) -> frozenset[int]:
        """The ids that end an answer."""
        return (
            eos_ids(Path(self.spec.base.path), self._tokenizer.eos_id)
            | self._tokenizer.answer_end_ids
        )

    def phase(self, phase: Phase, done: int, total: int) -> None:
        """Report a phase.

        Raises:
            StopRequestedError: a stop was asked for.
        """
        self._stop.check()
        self.events.append(PhaseChanged(at=self.events.now(), phase=phase, done=done, total=total))

    def warn(self, code: str, message: str) -> None:
        """Report something that does not stop the run."""
        self.events.append(Warned(at=self.events.now(), code=code, message=message))

    def _write_result(self, trainee: Trainee, summary: dict[str, Any]) -> None:
        """Write the result aside and rename it, so that `result/` is whole or absent."""
        target = self.folder.result
        require_room(
            self.folder.root,
            trainee.result_bytes,
            self._identity.disk_floor_bytes,
            "the result",
        )
        temporary = target.with_name(f".result.tmp-{os.getpid()}")
        temporary.mkdir(parents=True)
        trainee.write_result(temporary, self.spec.base.name or self.spec.base.model_id)
        if self._tokenizer.stands_in:
            for folder in temporary.iterdir():
                write_stand_in(
                    folder, self._tokenizer.template_source, self._tokenizer.answer_end_ids
                )
        write_atomic(temporary / "summary.json", json.dumps(summary, indent=2).encode())
        temporary.rename(target)
        fsync_folder(target.parent)


def _peak_bytes(device: torch.device) -> tuple[int, int]:
    """Return the peaks of this process: resident set, and reserved device memory."""
    reserved = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
    return peak_resident_bytes(), reserved


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"
