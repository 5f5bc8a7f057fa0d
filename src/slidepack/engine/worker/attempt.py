"""One attempt at a job, whoever runs its steps: reads its data, goes on from a checkpoint, and
writes what comes of it into its run folder."""

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Final

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
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, fsync_folder, write_atomic
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.data.twins import overlap
from slidepack.engine.export.stand_in import write_stand_in
from slidepack.engine.model.loading import eos_ids
from slidepack.engine.resident_memory import peak_resident_bytes
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.checkpoint import InvalidCheckpointError, LaneState, load_checkpoint
from slidepack.engine.worker.control import ControlReader
from slidepack.engine.worker.dataset import EncodedData, load_data, write_rejects
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.order import total_steps
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
        self._spec_hash = hashlib.sha256(msgspec.json.encode(self.spec)).hexdigest()
        self._stop = stop
        self._tokenizer = tokenizer

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
        data = load_data(self.spec, tokenizer, limit, on_row, vocab=vocab, scratch=self.folder.root)
        if data.rejects:
            self.warn("DATA-ROWS-LEFT-OUT", write_rejects(data.rejects, self.folder.rejects))
        self._compare_held_out()
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

    def trainer(self, trainee: Trainee, data: EncodedData, precision: str) -> Trainer:
        """Go on from the newest valid checkpoint, report the start, and return what trains."""
        state, resumed_from = self._restore(trainee)
        steps = total_steps(self.spec, len(data.train))
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
                resumed_from=resumed_from,
            )
        )
        if state is None:
            self._sample_if_it_fits(trainee, data, tuned=False, step=0)
        return Trainer(
            spec=self.spec,
            spec_hash=self._spec_hash,
            trainee=trainee,
            data=data,
            total_steps=steps,
            state=state,
            events=self.events,
            control=ControlReader(self.folder.control),
            stop=self._stop,
            checkpoints=self.folder.checkpoints,
        )

    def finish(
        self,
        trainer: Trainer,
        trainee: Trainee,
        data: EncodedData,
        plan: RunPlan,
        loss_after: float | None,
    ) -> None:
        """Answer the questions once more, write the result, and report the end.

        Raises:
            SlidepackError: RUN-DIVERGED.
            OSError: the disk refused.
        """
        self._sample_if_it_fits(trainee, data, tuned=True, step=trainer.step)
        self.phase("saving", 0, 0)
        if not trainee.is_finite():
            raise SlidepackError(
                "RUN-DIVERGED",
                "The trained weights hold values that are no numbers.",
                why=f"after step {trainer.step}; the checkpoints before it are kept",
                fix=f"Try again with a learning rate below {self.spec.optim.lr / 3:.1e}.",
            )
        if not trainee.has_learned():
            self.warn("RUN-NOTHING-LEARNED", "The weights did not change: nothing was learned.")
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
            "predicted_host_bytes": plan.predicted_host_bytes,
            "predicted_device_bytes": plan.predicted_device_bytes,
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
            eos_ids(Path(self.spec.base.path), self._tokenizer.eos_id)
            | self._tokenizer.answer_end_ids,
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

    def _restore(self, trainee: Trainee) -> tuple[LaneState | None, str]:
        """Go on from the newest valid checkpoint; a damaged one is named and passed."""
        for path in self._identity.resume_from:
            try:
                return load_checkpoint(trainee, Path(path), self._spec_hash), path
            except InvalidCheckpointError as error:
                self.warn("RUN-CHECKPOINT-CORRUPT", f"A checkpoint is left out: {error}.")
        return None, ""

    def _write_result(self, trainee: Trainee, summary: dict[str, float | None]) -> None:
        """Write the result aside and rename it, so that `result/` is whole or absent."""
        target = self.folder.result
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
