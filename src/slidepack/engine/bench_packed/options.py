"""What `slidepack bench packed` is asked for."""

from dataclasses import dataclass
from typing import Final, Literal

from slidepack.engine.bench_slide.shapes import shape_named
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.shape import ModelShape

__all__ = ["DEFAULT_LANES", "PackedOptions", "lane_counts"]

BaseForm = Literal["bf16", "nf4"]
RowsPlace = Literal["device", "host"]

DEFAULT_LANES: Final = (1, 2, 4, 8, 16, 32)
_PASS_TOKENS: Final = 16384
"""Of a pass where none is asked for."""
_MOST_LANES: Final = 1024
_MOST_RANK: Final = 1024


def lane_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `1,2,4`, each once, smallest first.

    Raises:
        ValueError: a part of it is no number.
    """
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise ValueError(f"lanes is {text!r}; use numbers such as 1,2,4") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedOptions:
    """One measurement."""

    shape: str
    lanes: tuple[int, ...] = DEFAULT_LANES
    """Numbers of lanes that are measured, smallest first."""
    batch: int
    """Rows of a lane in a step."""
    seq: int
    """Tokens in a row."""
    rank: int
    steps: int = 10
    """Steps measured, after the warm-up."""
    warm_up: int = 3
    """Steps before them."""
    max_tokens: int | None = None
    """Most tokens of a pass; None for the whole step, but at most 16384 unless a row is longer."""
    activations: ActivationPolicy | None = None
    """Of every layer; None keeps them, unless the base slides."""
    base: BaseForm = "bf16"
    """How the packs' base is held; bf16 is fp32 on a CPU. Ceiling and PEFT are over bf16."""
    slide: bool = False
    """The packs' base waits in host memory, and its layers slide through the card."""
    weight_slots: int | None = None
    """Layers on the card at once, where they slide; None leaves it to the planner."""
    rows: RowsPlace | None = None
    """Where the inputs of layers that slide wait; None leaves it to the planner."""
    vram_cap_gb: float | None = None
    """Device memory that packs, and PEFT, may use, in 1e9 bytes; None for all. What a base that
    slides or is held in 4 bits is measured against may use all."""
    solo: bool = True
    """Measure one lane even where `lanes` does not have it."""
    peft: bool = True
    """Measure PEFT too."""
    ceiling: bool = True
    """Measure the ceiling too."""
    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu` runs the same path without a card, to test it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        shape_named(self.shape)
        if not self.lanes or list(self.lanes) != sorted(set(self.lanes)):
            raise ValueError(f"lanes is {list(self.lanes)}; use rising numbers")
        if not 1 <= self.lanes[0] <= self.lanes[-1] <= _MOST_LANES:
            raise ValueError(f"lanes is {list(self.lanes)}; use 1 to {_MOST_LANES}")
        if min(self.batch, self.steps) < 1 or self.warm_up < 0 or self.seq < 2:
            raise ValueError("batch and steps are 1 or more, warm-up 0 or more, seq 2 or more")
        if not 1 <= self.rank <= _MOST_RANK:
            raise ValueError(f"rank is {self.rank}; use 1 to {_MOST_RANK}")
        if self.max_tokens is not None and self.max_tokens < self.seq:
            raise ValueError(f"max-tokens is {self.max_tokens}; use at least a row, {self.seq}")
        if self.activations not in (None, "keep", "recompute"):
            raise ValueError(f"activations is {self.activations}; use keep or recompute")
        self._check_base()
        if self.vram_cap_gb is not None and not self.vram_cap_gb > 0.0:
            raise ValueError(f"vram-cap is {self.vram_cap_gb}; use above 0")
        if self.device not in ("cuda", "cpu"):
            raise ValueError(f"device is {self.device}; use cuda or cpu")

    def _check_base(self) -> None:
        if self.base not in ("bf16", "nf4"):
            raise ValueError(f"base is {self.base}; use bf16 or nf4")
        if not self.slide:
            if (self.weight_slots, self.rows) != (None, None):
                raise ValueError("weight-slots and rows are those of a base that slides; use slide")
            return
        if self.base == "nf4":
            raise ValueError("base is nf4, which does not slide; use bf16, or leave out slide")
        if self.activations == "keep":
            raise ValueError("activations is keep; a base that slides has to recompute")
        if self.weight_slots is not None and self.weight_slots < 2:
            raise ValueError(f"weight-slots is {self.weight_slots}; use 2 or more")
        if self.rows not in (None, "device", "host"):
            raise ValueError(f"rows is {self.rows}; use device or host")

    @property
    def policy(self) -> ActivationPolicy:
        """What becomes of every layer's activations."""
        return self.activations or ("recompute" if self.slide else "keep")

    @property
    def lays_out_everything(self) -> bool:
        """Whether nothing of how the base slides is left to the planner."""
        return None not in (self.weight_slots, self.rows, self.max_tokens)

    @property
    def model_shape(self) -> ModelShape:
        """Sizes of the base."""
        return shape_named(self.shape)

    @property
    def alpha(self) -> int:
        """Of every adapter, ours and PEFT's."""
        return 2 * self.rank

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of lanes that are run: those asked for, and one alone as their yardstick."""
        return tuple(sorted({1, *self.lanes})) if self.solo else self.lanes

    def step_tokens(self, lanes: int) -> int:
        """Return the tokens of a step of that many lanes."""
        return lanes * self.batch * self.seq

    def pass_limit(self, lanes: int) -> int:
        """Return the most tokens of a pass of that many lanes over a resident base."""
        if self.max_tokens is not None:
            return self.max_tokens
        return max(self.seq, min(_PASS_TOKENS, self.step_tokens(lanes)))
