"""The job specification: what a user asks for, frozen when the job is queued."""

import math
from typing import Final, Literal

import msgspec

SPEC_VERSION: Final = 1
MAX_SAMPLE_PROMPTS: Final = 16
"""They are answered together, each with a key/value cache of its own."""
_MOST_EPOCHS: Final = 100_000
_MOST_MINUTES: Final = 1440.0
_MOST_JUDGE_ROWS: Final = 1000
"""A checkpoint keeps what the base made of each."""
_MOST_STEPS: Final = 99_999_999
"""Checkpoints are named by steps of eight digits."""

LORA_TARGETS: Final = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
"""The seven linears of a Llama-type decoder layer, in PEFT's names."""

Precision = Literal["auto", "fp32", "bf16", "nf4"]
Schedule = Literal["cosine", "linear", "constant"]
MomentState = Literal["auto", "fp32", "bf16", "int8"]
OptimizerEngine = Literal["auto", "cpu", "gpu"]
OriginKind = Literal["checkpoint", "adapter", "model"]
Taken = Literal["weights", "state"]
TooLong = Literal["drop", "cut", "split"]
"""`drop` leaves a row that is too long out, and counts it. `cut` keeps its start where that still
teaches something. `split` makes several rows of it: a conversation is divided before questions,
its system turn repeated; a text or ready-made ids are divided into pieces of about the same
length. A prompt and its completion cannot be divided, and are left out."""


class Frozen(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """Base of the contract's structs: immutable, keyword-only, unknown fields refused."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


class ModelRef(Frozen, frozen=True, kw_only=True):
    """A base model on this machine, pinned by content."""

    model_id: str
    path: str
    """Absolute path of a Hugging Face folder (config.json, safetensors, tokenizer)."""
    content_hash: str
    """sha256 over the folder's weights, config and tokenizer (`engine.importer.fingerprint`)."""
    revision: str = ""
    name: str = ""
    """How the base is named where the path of this machine has no meaning, as in an exported
    adapter: its hub id, or its display name."""


class DatasetRef(Frozen, frozen=True, kw_only=True):
    """A normalised dataset on this machine, pinned by content."""

    dataset_id: str
    path: str
    """Absolute path of the normalised rows (JSON lines, `engine.data.rows`)."""
    content_hash: str
    """sha256 of that file."""
    mapping: str = "auto"
    """The format the original file was read as (`chat`, `alpaca`, `completion`)."""


class LoraMethod(Frozen, frozen=True, kw_only=True, tag_field="kind", tag="lora"):
    """Low-rank adapters on frozen weights (Hu et al., arXiv 2106.09685)."""

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.0
    targets: tuple[str, ...] = LORA_TARGETS
    rslora: bool = False
    """Scale by alpha / sqrt(rank) instead of alpha / rank (arXiv 2312.03732)."""
    base_precision: Precision = "auto"
    """`auto` is bf16 on a GPU and fp32 on the CPU."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train."""
        _require(1 <= self.rank <= 1024, f"rank is {self.rank}; use 1 to 1024")
        _require(self.alpha >= 1, f"alpha is {self.alpha}; use 1 or more")
        _require(0.0 <= self.dropout < 1.0, f"dropout is {self.dropout}; use 0 to below 1")
        _require(bool(self.targets), "targets is empty; name at least one linear")
        _require(
            len(set(self.targets)) == len(self.targets),
            f"targets {list(self.targets)} names a linear twice",
        )
        unknown = sorted(set(self.targets) - set(LORA_TARGETS))
        _require(not unknown, f"targets {unknown} are unknown; choose among {list(LORA_TARGETS)}")

    @property
    def scale(self) -> float:
        """The factor on B·A·x."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)


class NvmeUse(Frozen, frozen=True, kw_only=True):
    """What of a full fine-tuning may lie on drives while it trains."""

    allow: bool = True
    """Where False, state that does not fit the RAM is a refusal."""
    folders: tuple[str, ...] = ()
    """Absolute, one on each drive; empty takes those of the settings."""
    moments: float | None = None
    """Share of the optimizer's moments, 0 to 1; None puts as little there as the RAM allows."""
    master: float | None = None
    """Share of the master weights, as for `moments`, and at most as much."""
    rows: float | None = None
    """Share of the layers' inputs that wait for the backward pass, as for `moments`."""

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        for name in ("moments", "master", "rows"):
            share = getattr(self, name)
            _require(share is None or 0.0 <= share <= 1.0, f"{name} is {share}; use 0 to 1")
        _require(
            self.master is None or self.moments is None or self.master <= self.moments,
            f"master is {self.master} and moments is {self.moments}; use at most as much",
        )
        for folder in self.folders:
            _require(folder.startswith("/"), f"folder is {folder}; use an absolute one")


class FullMethod(Frozen, frozen=True, kw_only=True, tag_field="kind", tag="full"):
    """Full fine-tuning of every weight, with only a window of layers on the card."""

    moments: MomentState = "auto"
    """How AdamW's two moments are stored; `auto` takes the most precise form that fits the RAM."""
    optimizer_engine: OptimizerEngine = "auto"
    """Who updates the weights; `auto` shares them out so that both finish together."""
    nvme: NvmeUse = NvmeUse()
    """What may lie on drives."""


class OptimSpec(Frozen, frozen=True, kw_only=True):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101) and its learning-rate schedule."""

    lr: float = 2e-4
    schedule: Schedule = "cosine"
    warmup_fraction: float = 0.05
    """Share of all steps over which the learning rate rises linearly from 0."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    """Global gradient norm above which gradients are scaled down; 0 turns clipping off."""

    def __post_init__(self) -> None:
        """Refuse values that cannot train."""
        _require(0.0 < self.lr <= 1.0, f"lr is {self.lr}; use above 0 and at most 1")
        _require(
            0.0 <= self.warmup_fraction <= 1.0,
            f"warmup_fraction is {self.warmup_fraction}; use 0 to 1",
        )
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            _require(0.0 <= value < 1.0, f"{name} is {value}; use 0 to below 1")
        # TOML can say inf and nan.
        _require(0.0 < self.eps < math.inf, f"eps is {self.eps}; use above 0")
        for name in ("weight_decay", "clip_norm"):
            value = getattr(self, name)
            _require(0.0 <= value < math.inf, f"{name} is {value}; use 0 or more")


class EvalSpec(Frozen, frozen=True, kw_only=True):
    """What is held out of training, and when it is measured."""

    selection: DatasetRef | None = None
    """A held-out dataset of its own; None takes `selection_fraction` of the training rows."""
    selection_fraction: float = 0.1
    test_fraction: float = 0.0
    """Share of the rows that neither training nor selection ever sees."""
    max_rows: int = 64
    """Upper bound of held-out rows measured each time."""
    every_steps: int = 0
    """Steps between evaluations; 0 chooses a tenth of the run."""
    sample_prompts: tuple[str, ...] = ()
    """Questions answered before and after; empty takes the first held-out ones."""
    sample_tokens: int = 64
    split_seed: int | None = None
    """Decides which rows are held out; None is the job's own seed. Jobs that are compared share
    it, whatever their seeds are."""
    judge_rows: int = 32
    """Held-out rows that the tuned model is compared with its base by, once each; 0 for none."""

    def __post_init__(self) -> None:
        """Refuse values that leave nothing to train on."""
        held_out = self.selection_fraction + self.test_fraction
        _require(
            self.selection_fraction >= 0.0 and self.test_fraction >= 0.0 and held_out <= 0.5,
            f"{held_out:.2f} of the rows are held out; use 0 to 0.5 in all",
        )
        _require(self.max_rows >= 1, f"max_rows is {self.max_rows}; use 1 or more")
        _require(self.every_steps >= 0, f"every_steps is {self.every_steps}; use 0 or more")
        _require(
            0 <= self.judge_rows <= _MOST_JUDGE_ROWS,
            f"judge_rows is {self.judge_rows}; use 0 to {_MOST_JUDGE_ROWS}",
        )
        _require(1 <= self.sample_tokens <= 1024, "sample_tokens must be 1 to 1024")
        _require(
            self.split_seed is None or 0 <= self.split_seed < 1 << 63,
            f"split_seed is {self.split_seed}; use 0 to 2^63 - 1",
        )
        _require(
            len(self.sample_prompts) <= MAX_SAMPLE_PROMPTS,
            f"{len(self.sample_prompts)} sample_prompts; use at most {MAX_SAMPLE_PROMPTS}",
        )


class TrainedRows(Frozen, frozen=True, kw_only=True):
    """Rows that an earlier job trained on: a dataset, and what was held out of it."""

    dataset: DatasetRef
    split_seed: int
    selection_fraction: float
    test_fraction: float


class ContinueRef(Frozen, frozen=True, kw_only=True):
    """What a job goes on from: something that another job left, pinned by content.

    The job that goes on is a new one: its steps count from 0, and its learning rate follows a
    schedule of its own over its own length, warm-up included. With `taken` "state", AdamW's moments
    are those at which the other job stopped, and so is their age, by which their bias is corrected.
    """

    job: str
    """Number of the other job in the queue; the name of a run that had no daemon."""
    path: str
    """Absolute path of what it left: a checkpoint, a PEFT folder or a Hugging Face folder."""
    kind: OriginKind
    digest: str
    """sha256 of the checkpoint's tensors, the adapter's weights or the model's folder."""
    step: int
    """Steps that the other job had behind it."""
    taken: Taken
    """The weights alone, or AdamW's moments with them, which only a checkpoint has."""
    trained_on: tuple[TrainedRows, ...] = ()
    """Rows of all jobs before this one; its held-out rows are compared with them."""
    base_loss: float | None = None
    """Held-out loss of the untouched base on the rows that this job measures, where known."""

    def __post_init__(self) -> None:
        """Refuse what cannot be gone on from."""
        _require(self.path.startswith("/"), f"path is {self.path}; use an absolute one")
        _require(bool(self.digest), "digest is empty")
        _require(self.step >= 0, f"step is {self.step}; use 0 or more")
        _require(
            self.taken == "weights" or self.kind == "checkpoint",
            f"taken is state, and the {self.kind} holds weights only",
        )


class JobSpec(Frozen, frozen=True, kw_only=True):
    """One training job, complete and immutable."""

    name: str
    base: ModelRef
    dataset: DatasetRef
    method: LoraMethod | FullMethod
    optim: OptimSpec = OptimSpec()
    batch_size: int = 8
    """Sequences in one optimizer step."""
    max_seq_len: int = 1024
    """Longest sequence in tokens."""
    too_long: TooLong = "drop"
    """What becomes of longer rows: left out and reported, cut behind the limit, or divided."""
    epochs: float = 0.0
    """Passes over the training rows; exactly one of `epochs` and `steps` is above 0."""
    steps: int = 0
    """Optimizer steps."""
    eval: EvalSpec = EvalSpec()
    checkpoint_every_steps: int = 0
    """Steps between checkpoints; 0 spaces them by time."""
    seed: int = 0
    version: int = SPEC_VERSION
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints that are spaced by time; there is one at each evaluation too."""
    continues: ContinueRef | None = None
    """What it goes on from; None begins with the base."""

    def __post_init__(self) -> None:
        """Refuse values that cannot run."""
        _require(self.version == SPEC_VERSION, f"version is {self.version}; this is {SPEC_VERSION}")
        _require(bool(self.name.strip()), "name is empty")
        _require(len(self.name) <= 200, "name is longer than 200 characters")
        _require(
            not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in self.name),
            "name holds a control character",
        )
        _require(1 <= self.batch_size <= 4096, f"batch_size is {self.batch_size}; use 1 to 4096")
        _require(
            16 <= self.max_seq_len <= 1 << 20, f"max_seq_len is {self.max_seq_len}; use 16 or more"
        )
        _require(
            0.0 <= self.epochs <= _MOST_EPOCHS and 0 <= self.steps <= _MOST_STEPS,
            f"epochs is {self.epochs} and steps is {self.steps}; "
            f"use at most {_MOST_EPOCHS} epochs or {_MOST_STEPS} steps",
        )
        _require(
            (self.epochs > 0) != (self.steps > 0),
            f"epochs is {self.epochs} and steps is {self.steps}; set exactly one of them above 0",
        )
        _require(self.checkpoint_every_steps >= 0, "checkpoint_every_steps must be 0 or more")
        _require(
            0.0 < self.checkpoint_minutes <= _MOST_MINUTES,
            f"checkpoint_minutes is {self.checkpoint_minutes}; "
            f"use above 0 and at most {_MOST_MINUTES:g}",
        )
        _require(0 <= self.seed < 1 << 63, f"seed is {self.seed}; use 0 to 2^63 - 1")
        if self.continues is not None:
            other = "model" if isinstance(self.method, LoraMethod) else "adapter"
            _require(
                self.continues.kind != other,
                f"continues is of kind {self.continues.kind}, and the method is another",
            )
