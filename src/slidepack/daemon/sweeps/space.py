"""Where a setting's values come from: one of a list, or drawn from a range."""

import math
import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from slidepack.daemon.requests import JobSettings

__all__ = ["MULTIPLE", "VARIABLE", "WHOLE", "Axis", "parse_axes"]

MULTIPLE: Final = "alpha_times_rank"
"""Stands for alpha, as a multiple of the member's rank."""
VARIABLE: Final = (
    "lr",
    "rank",
    "alpha",
    MULTIPLE,
    "dropout",
    "targets",
    "rslora",
    "batch_size",
    "epochs",
    "steps",
    "seed",
    "schedule",
    "warmup_fraction",
    "weight_decay",
    "clip_norm",
)
"""What members may differ in: nothing that decides which rows are held out, or how they are cut."""

WHOLE: Final = frozenset(
    field.name for field in msgspec.structs.fields(JobSettings) if field.type is int
)
"""Settings that are whole numbers."""
_NUMBERS: Final = WHOLE | {
    MULTIPLE,
    *(
        field.name
        for field in msgspec.structs.fields(JobSettings)
        if field.type in (float, float | None)
    ),
}
_DIGITS: Final = 4
"""Of what is drawn, so that a member's name says exactly what it was trained with."""


class Axis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one setting is drawn from."""

    log: tuple[float, float] | None = None
    """From, to: each magnitude is as likely as another."""
    uniform: tuple[float, float] | None = None
    """From, to."""
    choices: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn from."""
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of log, uniform and choices, not {given or 'none'}")
        if self.choices is not None and not self.choices:
            raise ValueError("choices is empty")
        low, high = self.log or self.uniform or (0.0, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)) or low > high:
            raise ValueError(f"it goes from {low:g} to {high:g}; give the lower end first")
        if self.log is not None and low <= 0:
            raise ValueError(f"log begins at {low:g}; use above 0")

    def draw(self, setting: str, source: random.Random) -> Any:
        """Return a value; a whole number where the setting is one."""
        if self.choices is not None:
            return source.choice(self.choices)
        if self.log is not None:
            low, high = self.log
            value = math.exp(source.uniform(math.log(low), math.log(high)))
        else:
            assert self.uniform is not None
            low, high = self.uniform
            value = source.uniform(low, high)
        # Rounding may leave the range.
        if setting in WHOLE:
            first, last = self.whole_bounds()
            return min(max(round(value), first), last)
        return min(max(float(f"{value:.{_DIGITS}g}"), low), high)

    def whole_bounds(self) -> tuple[int, int]:
        """Return the first and the last whole number of a range."""
        low, high = self.log or self.uniform or (0.0, 0.0)
        return math.ceil(low), math.floor(high)


def parse_axes(given: Mapping[str, Any]) -> dict[str, Axis]:
    """Return where each setting is drawn from.

    Raises:
        ValueError: one is no axis, or a range of what is no number; it is named.
    """
    axes: dict[str, Axis] = {}
    for setting, value in given.items():
        try:
            axis = msgspec.convert(value, Axis)
        except msgspec.ValidationError as error:
            raise ValueError(f"{setting}: {error}") from error
        if axis.choices is None and setting not in _NUMBERS:
            raise ValueError(f"{setting} is no number; give choices")
        if axis.choices is None and setting in WHOLE:
            first, last = axis.whole_bounds()
            if first > last:
                raise ValueError(f"{setting}: no whole number lies in its range")
        axes[setting] = axis
    return axes
