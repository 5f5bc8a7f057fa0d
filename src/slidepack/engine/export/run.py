"""Carries out one export: checked, made out of sight, read back, then given its name."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.adapter import file_hashes
from slidepack.engine.export.contract import (
    ExportRequest,
    ExportResult,
    Verification,
)
from slidepack.engine.export.folder import write_model_folder
from slidepack.engine.export.gguf_family import context_length, gguf_family
from slidepack.engine.export.gguf_lora import write_gguf_lora
from slidepack.engine.export.gguf_model import gguf_bytes, write_gguf
from slidepack.engine.export.merge import MergedWeights, stored_dtype
from slidepack.engine.export.naming import model_name
from slidepack.engine.export.ollama import create_in_ollama, write_modelfile
from slidepack.engine.export.placing import Place, require_room
from slidepack.engine.export.prompts import fixed_prompts
from slidepack.engine.export.readback import (
    Logits,
    read_adapter_back,
    read_folder_back,
    read_gguf_back,
    read_lora_back,
)
from slidepack.engine.export.reference import trainer_logits
from slidepack.engine.export.report import Reporter
from slidepack.engine.export.stand_in import write_stand_in
from slidepack.engine.export.subject import Subject, read_subject
from slidepack.engine.export.verify import compare, differs
from slidepack.engine.model.loading import Shards

__all__ = ["ExportDiffersError", "run"]

_MARGIN: Final = 50
"""A fiftieth is kept for file systems' own needs."""
_ROUNDING: Final = {torch.float32: "exact", torch.float16: "fp16", torch.bfloat16: "bf16"}


class ExportDiffersError(Exception):
    """The export is there under another name, as it does not compute what was trained."""

    def __init__(self, error: SlidepackError, found: Verification) -> None:
        """Carry the coded error and the figures."""
        super().__init__(str(error))
        self.error = error
        self.found = found


def run(
    request: ExportRequest, reporter: Reporter, on_commit: Callable[[], None] = lambda: None
) -> ExportResult:
    """Carry out the export and return its result; it is in place then.

    Args:
        request: what is asked for.
        reporter: told how far it is.
        on_commit: called when a stop would come too late.

    Raises:
        SlidepackError: RUN-, MODEL- or DISK- codes.
        ExportDiffersError: its logits are beyond their bound.
        OSError: the disk refused.
    """
    reporter.show("reading", 0, 1)
    target = Path(request.target)
    place = Place(target)
    with place as made:
        subject = read_subject(request)
        work = _Work(request, subject, made)
        require_room(target, work.num_bytes + work.num_bytes // _MARGIN)
        reporter.show("reading", 1, 1)
        work.write(reporter.counter("writing", work.num_bytes))
        found = work.verified(reporter) if request.verify else None
        if found is not None and not found.holds:
            aside = place.set_aside("differs")
            raise ExportDiffersError(differs(found, str(aside)), found)
        on_commit()
        place.commit()
    if request.format == "ollama" and request.hand_over:
        reporter.show("ollama", 0, 1)
        work.notes.append(create_in_ollama(target, model_name(request.name)))
    sizes = {path.name: path.stat().st_size for path in sorted(target.iterdir())}
    return ExportResult(
        path=str(target),
        files=sizes,
        format=request.format,
        verification=found,
        notes=work.notes + _small_effect(found),
    )


class _Work:
    """One export on its way."""

    def __init__(self, request: ExportRequest, subject: Subject, made: Path) -> None:
        """Refuse what cannot be written, before anything is."""
        self._request = request
        self._subject = subject
        self._made = made
        self.notes: list[str] = []
        self._dtype = stored_dtype(subject.folder, subject.shape)
        name = model_name(request.name)
        kind = "lora" if request.adapter_only else request.quant
        self._gguf = made / f"{name}-{kind}.gguf"
        needs_adapter = request.format == "peft" or request.adapter_only
        if needs_adapter and subject.adapter is None:
            raise SlidepackError(
                "RUN-NO-RESULT",
                "This result has no adapter: it trained the whole model.",
                why=f"it is {subject.folder}",
                fix="Export it as merged, gguf or ollama.",
            )
        if self._writes_gguf:
            self._check_gguf()

    @property
    def _writes_gguf(self) -> bool:
        return self._request.format in ("gguf", "ollama")

    def _check_gguf(self) -> None:
        shape = self._subject.shape
        context = context_length(shape, gguf_family(shape))
        if context < shape.max_positions:
            self.notes.append(
                f"The file allows {context} tokens, not {shape.max_positions}: llama.cpp knows no "
                "attention window for this architecture, and up to there it makes no difference."
            )

    @property
    def num_bytes(self) -> int:
        """What the export is going to take, at most."""
        subject = self._subject
        small = sum(path.stat().st_size for path in subject.folder.glob("*.json"))
        if self._request.format == "peft" or self._request.adapter_only:
            assert subject.adapter is not None, "refused above"
            return subject.adapter.num_bytes + small
        if self._writes_gguf:
            return gguf_bytes(subject.shape, self._request.quant) + small
        return subject.shape.total_params * self._dtype.itemsize + small

    def write(self, on_bytes: Callable[[int], None]) -> None:
        """Make the export."""
        match self._request.format:
            case "peft":
                assert self._subject.adapter_folder is not None, "refused above"
                _copy_whole(self._subject.adapter_folder, self._made)
            case "merged":
                self._write_merged(on_bytes)
            case "gguf" | "ollama":
                self._made.mkdir()
                self._write_gguf(on_bytes)
        if self._request.format == "ollama":
            self.notes += write_modelfile(self._made, self._gguf.name, self._subject.speech)

    def _write_merged(self, on_bytes: Callable[[int], None]) -> None:
        subject, speech = self._subject, self._subject.speech
        if subject.adapter is None:
            _copy_whole(subject.folder, self._made)
            return
        weights = MergedWeights(subject.folder, subject.shape, subject.adapter)
        tensors = weights.tensors(self._dtype, on_bytes)
        write_model_folder(subject.folder, tensors, self._dtype, self._made)
        if speech.stands_in:
            write_stand_in(self._made, speech.template, speech.end_ids)

    def _write_gguf(self, on_bytes: Callable[[int], None]) -> None:
        subject, request = self._subject, self._request
        if request.adapter_only:
            assert subject.adapter is not None, "refused above"
            write_gguf_lora(self._gguf, subject.adapter, subject.shape, request.name)
            return
        write_gguf(
            self._gguf,
            subject.folder,
            MergedWeights(subject.folder, subject.shape, subject.adapter),
            subject.shape,
            subject.speech,
            name=request.name,
            quant=request.quant,
            license_name=subject.license,
            on_bytes=on_bytes,
        )

    def verified(self, reporter: Reporter) -> Verification:
        """Read the export back and compare it with the trainer."""
        subject = self._subject
        shape = subject.shape
        context = shape.max_positions
        if self._writes_gguf:
            context = context_length(shape, gguf_family(shape))
        prompts = fixed_prompts(subject.speech, shape, context)
        source = Shards(subject.folder)
        on_layer = reporter.layers("checking")
        trainer = trainer_logits(source, shape, subject.adapter, prompts, on_layer)
        bare = None
        if subject.adapter is not None:
            bare = trainer_logits(source, shape, None, prompts, on_layer)
        export = self._read_back(prompts)
        return compare(
            trainer,
            export.values,
            bound=self._bound,
            loader=export.loader,
            prompts=len(prompts),
            bare=bare,
        )

    @property
    def _bound(self) -> str:
        if self._request.adapter_only or self._request.format == "peft":
            return "exact"
        if self._writes_gguf:
            return {"f16": "fp16", "q8_0": "q8_0"}[self._request.quant]
        # What was trained as a whole is copied, not rounded.
        return "exact" if self._subject.adapter is None else _ROUNDING[self._dtype]

    def _read_back(self, prompts: list[list[int]]) -> Logits:
        subject = self._subject
        if self._request.format == "peft":
            return read_adapter_back(subject.folder, self._made, subject.shape, prompts)
        if self._request.format == "merged":
            return read_folder_back(self._made, subject.shape, prompts)
        if self._request.adapter_only:
            assert subject.adapter is not None, "refused above"
            return read_lora_back(
                self._gguf, subject.folder, subject.shape, subject.adapter, prompts
            )
        return read_gguf_back(self._gguf, subject.folder, subject.shape, prompts)


def _copy_whole(source: Path, target: Path) -> None:
    """Copy the files of a folder and compare their hashes with the copies'."""
    target.mkdir()
    wanted = file_hashes(source)
    for name in wanted:
        shutil.copyfile(source / name, target / name)
    if file_hashes(target) != wanted:
        raise SlidepackError(
            "DISK-UNWRITABLE",
            "A file was not copied as it is.",
            why=f"the hashes in {source} and of the copies differ",
            fix="Check that the disk and the memory of this machine are healthy.",
        )


def _small_effect(found: Verification | None) -> list[str]:
    """Return a note where rounding moves logits as much as training did."""
    if found is None or found.effect is None or found.mean_abs <= found.effect / 2:
        return []
    return [
        f"Rounding moves a logit by {found.mean_abs:.2g} on average, training by "
        f"{found.effect:.2g}: much of what was learned is lost in this format."
    ]
