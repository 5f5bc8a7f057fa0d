"""What is exported: a trained adapter with its base, or a model that was trained as a whole."""

from dataclasses import dataclass
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.adapter import Adapter, read_adapter
from slidepack.engine.export.contract import ExportRequest
from slidepack.engine.export.speech import Speech, read_speech
from slidepack.engine.importer.fingerprint import content_hash
from slidepack.engine.importer.folder import check_folder
from slidepack.engine.shape import ModelShape

__all__ = ["Subject", "read_subject"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A result, read and checked."""

    folder: Path
    """Of the whole model: the base, or what was trained as a whole."""
    shape: ModelShape
    adapter: Adapter | None
    adapter_folder: Path | None
    speech: Speech
    license: str
    """As the base states it; "" where it states none."""


def read_subject(request: ExportRequest) -> Subject:
    """Read a result and its base.

    Raises:
        SlidepackError: RUN-NO-RESULT: the folder holds no result. MODEL-CHANGED: the base is not
            the one that was trained on. RUN-FOLDER-BROKEN, and the errors of `check_folder`.
        OSError: a file cannot be read.
    """
    result = Path(request.result)
    model = result / "model"
    adapter_folder: Path | None = None
    if model.is_dir():
        folder = model
    elif (result / "adapter").is_dir():
        adapter_folder = result / "adapter"
        folder = _base(request)
    else:
        raise SlidepackError(
            "RUN-NO-RESULT",
            "There is no result in this folder.",
            why=f"{result} has neither adapter nor model",
            fix="Name a completed job, or the folder `result` of a run.",
        )
    report = check_folder(folder)
    adapter = None if adapter_folder is None else read_adapter(adapter_folder, report.shape)
    return Subject(
        folder=folder,
        shape=report.shape,
        adapter=adapter,
        adapter_folder=adapter_folder,
        speech=read_speech(folder, adapter_folder),
        license=report.license,
    )


def _base(request: ExportRequest) -> Path:
    if not request.base:
        raise SlidepackError(
            "MODEL-NOT-FOUND",
            "The base model of this adapter is not known.",
            why=f"{request.result} does not say where it is on this machine",
            fix="Name its folder with --base.",
        )
    base = Path(request.base)
    if request.base_hash not in ("", "-") and base.is_dir():
        found = content_hash(base)
        if found != request.base_hash:
            raise SlidepackError(
                "MODEL-CHANGED",
                "The base model is not the one that was trained on.",
                why=f"{base} has the content hash {found[:12]}, the job wants "
                f"{request.base_hash[:12]}",
                fix="Put the base model's own files back, or name them with --base.",
            )
    return base
