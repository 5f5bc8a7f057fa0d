"""What is asked of an export, and what the daemon knows of one."""

from typing import Final, Literal

import msgspec

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.export.contract import ExportFormat, Quant, Stage, Verification

__all__ = ["ENDED", "ExportRecord", "ExportState", "ExportWanted", "RemovedExport"]

ExportState = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: Final[frozenset[ExportState]] = frozenset({"done", "failed", "cancelled"})
_MOST_NAME: Final = 200


class ExportWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An export to make of a completed job."""

    format: ExportFormat
    quant: Quant = "f16"
    """How a GGUF file stores matrices."""
    adapter_only: bool = False
    """With gguf: the adapter alone, as a GGUF LoRA."""
    verify: bool = True
    """Read it back and compare its logits with the trainer's."""
    name: str = ""
    """How the model is called; empty takes the job's name."""

    def checked(self) -> "ExportWanted":
        """Return it, with a quantisation only where there is one.

        Raises:
            SlidepackError: EXPORT-INVALID.
        """
        if self.adapter_only and self.format != "gguf":
            raise _invalid(f"adapter_only goes with gguf, not with {self.format}")
        if len(self.name) > _MOST_NAME:
            raise _invalid(f"the name has {len(self.name)} characters; use {_MOST_NAME} at most")
        stored = self.format in ("gguf", "ollama") and not self.adapter_only
        if not stored and self.quant != "f16":
            what = "a GGUF LoRA" if self.adapter_only else self.format
            raise _invalid(f"quant {self.quant} goes with gguf and ollama, not with {what}")
        return self


class ExportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One export as the API shows it."""

    id: int
    job_id: int
    """Of the job that it was made of, which may be deleted by now."""
    job_name: str
    wanted: ExportWanted
    state: ExportState
    cancelling: bool
    """Whether a cancel is asked for and not done yet."""
    stage: Stage | None = None
    done: int = 0
    """How far the stage is, of `total`."""
    total: int = 0
    folder: str
    """Where its files are once it is done."""
    files: dict[str, int]
    """Names and sizes in bytes; empty until it is done."""
    bytes: int
    """What it takes on the disk once it has ended."""
    verification: Verification | None
    notes: list[str]
    error: ErrorReport | None
    created_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def ended(self) -> bool:
        """Whether it can never change again."""
        return self.state in ENDED


class RemovedExport(msgspec.Struct, frozen=True, kw_only=True):
    """An export that was deleted."""

    removed: int
    freed_bytes: int


def _invalid(why: str) -> SlidepackError:
    return SlidepackError(
        "EXPORT-INVALID",
        "There is no such export.",
        why=why,
        fix="Use peft, merged, gguf (f16, q8_0, or adapter_only) or ollama (f16, q8_0).",
    )
