"""Events: how a worker tells the world what it does, one JSON object a line.

The events file is append-only and is the truth about a run's progress. The daemon reads it from
a byte offset that it stores, so a restart on either side loses nothing.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.job import Frozen
from slidepack.engine.contract.judgement import JudgeReport

Phase = Literal["loading", "tokenising", "evaluating", "sampling", "judging", "training", "saving"]


class Event(Frozen, frozen=True, kw_only=True, tag_field="type"):
    """What every event carries."""

    at: float
    """Unix time in seconds."""


class Started(Event, frozen=True, kw_only=True, tag="started"):
    """The worker runs: device, sizes, and where it goes on from."""

    pid: int
    device: str
    precision: str
    total_steps: int
    from_step: int
    """0 for a new run, the checkpoint's step for a resumed one."""
    train_rows: int
    eval_rows: int
    trainable_params: int
    attention: str
    """The attention path chosen, with its reason."""
    drives: str = ""
    """What moves state to drives and back, with its reason; empty where none is there."""
    resumed_from: str = ""


class PhaseChanged(Event, frozen=True, kw_only=True, tag="phase"):
    """The run entered a phase; `done` and `total` measure it where it can be measured."""

    phase: Phase
    done: int = 0
    total: int = 0


class Progress(Event, frozen=True, kw_only=True, tag="progress"):
    """One optimizer step is done."""

    step: int
    """Steps done, from 1."""
    total_steps: int
    loss: float | None
    """Mean over the supervised tokens of the step; None where it is no number."""
    grad_norm: float | None
    """Global norm before clipping; None where it is no number."""
    lr: float
    tokens: int
    """Tokens processed in this step."""
    supervised_tokens: int
    tokens_per_second: float
    eta_seconds: float


class Evaluated(Event, frozen=True, kw_only=True, tag="eval"):
    """Held-out loss, as a mean over supervised tokens."""

    step: int
    split: Literal["selection", "test"]
    loss: float | None
    """None where it is no number."""
    rows: int
    supervised_tokens: int


class Sampled(Event, frozen=True, kw_only=True, tag="sample"):
    """One question and the model's greedy answer at a step (0: the untouched base)."""

    step: int
    prompt: str
    answer: str


class Judged(Event, frozen=True, kw_only=True, tag="judged"):
    """Whether the model is better than its base, as far as it is known; the newest one counts."""

    report: JudgeReport


class Checkpointed(Event, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint is safe on disk."""

    step: int
    path: str
    seconds: float
    reason: str
    healthy: bool = True
    """Whether the last losses and norms were numbers, and as usual: only from such a checkpoint
    does another job go on (`RunIdentity.adopt_from`)."""


class LaneJoined(Event, frozen=True, kw_only=True, tag="lane_joined"):
    """A lane took a seat in the pack."""

    lane: str
    step: int


class LaneLeft(Event, frozen=True, kw_only=True, tag="lane_left"):
    """A lane left the pack."""

    lane: str
    step: int
    reason: str
    held_up_seconds: float = 0.0
    """For how long no lane made a step because of this one: it joined, was measured, wrote."""
    error: ErrorReport | None = None
    """Why it failed, where its own events file could not take that."""


class StepTimed(Event, frozen=True, kw_only=True, tag="step_timed"):
    """What steps of the pack took while the same lanes were in it: medians of some alike."""

    tokens: int
    """Of a step, of all lanes together."""
    lanes: int
    seconds: float
    steps: int
    """How many were timed."""


class ControlDone(Event, frozen=True, kw_only=True, tag="control_done"):
    """A command of the control file was carried out."""

    command_id: str
    outcome: str


class Warned(Event, frozen=True, kw_only=True, tag="warning"):
    """Something the user should know that does not stop the run."""

    code: str
    message: str


class Finished(Event, frozen=True, kw_only=True, tag="finished"):
    """The run is complete and its result is on disk."""

    steps: int
    result: str
    """Folder of the result."""
    eval_loss_before: float | None
    eval_loss_after: float | None
    seconds: float
    """Training time of the whole run in seconds, over all attempts."""
    tokens_per_second: float
    peak_host_bytes: int
    """Largest resident set of the worker."""
    peak_device_bytes: int
    """Most device memory that torch had reserved; 0 on the CPU."""


class Yielded(Event, frozen=True, kw_only=True, tag="yielded"):
    """The worker leaves because it was asked to; its last whole step is checkpointed."""

    reason: str
    seconds: float | None = None
    """From when the worker heard of it until its checkpoint was on disk; None where it is of an
    older version."""


class Failed(Event, frozen=True, kw_only=True, tag="failed"):
    """The run ended with an error."""

    error: ErrorReport


AnyEvent = (
    Started
    | PhaseChanged
    | Progress
    | Evaluated
    | Sampled
    | Judged
    | Checkpointed
    | LaneJoined
    | LaneLeft
    | StepTimed
    | ControlDone
    | Warned
    | Finished
    | Yielded
    | Failed
)

_decoder = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


def encode_event(event: AnyEvent) -> bytes:
    """Return the event as one line of JSON, newline included."""
    return _encoder.encode(event) + b"\n"


def decode_event(line: bytes) -> AnyEvent:
    """Parse one line.

    Raises:
        msgspec.ValidationError: the line is not an event of this version.
    """
    return _decoder.decode(line)


def split_complete_lines(data: bytes) -> Iterator[bytes]:
    """Yield the complete lines of `data`, without newlines; a last, unfinished line is left out."""
    start = 0
    while (end := data.find(b"\n", start)) != -1:
        yield data[start:end]
        start = end + 1
