"""What a command and an exporter process say to each other, one JSON object a line.

Imports msgspec and the engine's contract only, so that a command can read an export's progress
without loading what writes models.
"""

from pathlib import PurePath
from typing import Final, Literal

import msgspec

from slidepack.engine.contract.errors import ErrorReport

__all__ = [
    "ExportFailed",
    "ExportFormat",
    "ExportLine",
    "ExportProgress",
    "ExportRequest",
    "ExportResult",
    "Quant",
    "Stage",
    "Verification",
    "decode_line",
    "decode_request",
    "encode_line",
]

ExportFormat = Literal["peft", "merged", "gguf", "ollama"]
Quant = Literal["f16", "q8_0"]
Stage = Literal["reading", "writing", "checking", "ollama"]


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One result to export; the file that the exporter process is started with."""

    result: str
    """Absolute path of a result folder, which holds `adapter/` or `model/`."""
    base: str = ""
    """Absolute path of the base model's folder; a full fine-tuning needs none."""
    base_hash: str = ""
    """Content hash of the base that was trained on; empty or `-` where nobody knows it."""
    target: str
    """Absolute path of the folder to create; it may be there where it is empty."""
    format: ExportFormat
    quant: Quant = "f16"
    """How a GGUF file stores matrices."""
    adapter_only: bool = False
    """For `gguf`: the adapter alone, as a GGUF LoRA."""
    verify: bool = True
    """Read the export back and compare its logits with the trainer's."""
    hand_over: bool = True
    """For `ollama`: run `ollama create` where Ollama is installed."""
    name: str = "model"
    """How the model is called: in the file, and in Ollama."""

    def __post_init__(self) -> None:
        """Refuse values that name nothing, or go against each other."""
        for field in ("result", "base", "target"):
            path = getattr(self, field)
            if "\0" in path or (path and not PurePath(path).is_absolute()):
                raise ValueError(f"{field} is {path!r}; use the absolute path of a folder")
        if not self.result or not PurePath(self.target).name:
            raise ValueError(f"result {self.result!r} and target {self.target!r} must be folders")
        if self.adapter_only and self.format != "gguf":
            raise ValueError(f"adapter_only goes with gguf, not with {self.format}")


class ExportProgress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a stage is: bytes while it writes, steps of its own elsewhere."""

    stage: Stage
    done: int
    total: int


class Verification(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The logits of an export against those of the trainer's own model, on fixed prompts."""

    loader: str
    """What read the export back, and why it was that one."""
    prompts: int
    positions: int
    """Tokens at which logits were compared."""
    max_abs: float
    """Largest absolute difference of a logit."""
    mean_abs: float
    """Mean absolute difference of a logit."""
    top1_agreement: float
    """Share of positions at which both find the same token most likely, 0 to 1."""
    spread: float
    """Standard deviation of the trainer's logits, of which the bounds are shares."""
    max_bound: float
    mean_bound: float
    effect: float | None = None
    """Mean absolute difference that training made to a logit; None without an adapter."""
    learned: float | None = None
    """Share of what training changed that the export has, about 1 whatever rounding adds; 0 for one
    that lost the adapter; None without an adapter, or where it changes nothing."""
    learned_bound: float = 0.5
    """Least share that is accepted."""

    @property
    def holds(self) -> bool:
        """Whether every figure is within its bound; what is no number is not."""
        near = self.max_abs <= self.max_bound and self.mean_abs <= self.mean_bound
        return near and (self.learned is None or self.learned >= self.learned_bound)


class ExportResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line of an export that worked."""

    ok: bool = True
    path: str
    """Absolute path of the folder."""
    files: dict[str, int]
    """Files of the export and their sizes in bytes."""
    format: ExportFormat
    verification: Verification | None
    """None where no check was asked for."""
    notes: list[str] = []
    """What the user should know about it, in sentences."""


class ExportFailed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last line of an export that did not work."""

    ok: bool = False
    error: ErrorReport
    verification: Verification | None = None
    """The figures, where it is they that do not hold."""


ExportLine = ExportProgress | ExportResult | ExportFailed


class _Outcome(msgspec.Struct):
    """The one field that tells the three kinds of line apart; JSON tags cannot be booleans."""

    ok: bool | None = None


_KINDS: Final[dict[bool | None, type[ExportLine]]] = {
    None: ExportProgress,
    True: ExportResult,
    False: ExportFailed,
}


def encode_line(line: ExportLine) -> bytes:
    """Return the line as JSON, newline included."""
    return msgspec.json.encode(line) + b"\n"


def decode_line(line: bytes) -> ExportLine:
    """Parse one line of an exporter's output.

    Raises:
        msgspec.DecodeError: the line is not JSON, or (`ValidationError`) no line of this version.
    """
    outcome = msgspec.json.decode(line, type=_Outcome)
    return msgspec.json.decode(line, type=_KINDS[outcome.ok])


def decode_request(data: bytes) -> ExportRequest:
    """Parse an export request.

    Raises:
        msgspec.DecodeError: the data is not JSON, or (`ValidationError`) no request.
    """
    return msgspec.json.decode(data, type=ExportRequest)
