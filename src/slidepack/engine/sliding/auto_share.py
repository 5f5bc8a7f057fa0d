"""Shares the layers out between the optimizer's engines, so that both finish together.

The engines share the memory of the host, and the card's shares the link with the weights, so what
counts is how fast each is while the other works. That is measured in the first steps of a run; both
engines give the same bits, so a change of the share never changes a result.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.build import assign
from slidepack.engine.sliding.optimizer import AsyncOptimizer, EngineName

__all__ = ["START_SHARE", "AutoShare", "CountedEngine", "balanced_share"]

START_SHARE: Final = 0.5
"""Of the layers, for the CPU, before anything is measured."""
_WARM_UP_STEPS: Final = 1
"""The first step compiles the card's kernels."""
_MOST_CHANGES: Final = 6
_QUIET_STEPS: Final = 3
"""Steps in a row that ask for no change, after which the share stays."""


class CountedEngine(Protocol):
    """What is measured of an engine."""

    @property
    def worked(self) -> tuple[float, int]:
        """Seconds at work and elements done so far."""


def balanced_share(
    cpu_rate: float, gpu_rate: float, *, layers: int, ends: int, ends_on_cpu: int = 0
) -> float:
    """Return the CPU's share of the layers with which both engines finish together.

    Args:
        cpu_rate: elements a second of the CPU's engine, measured while the other works.
        gpu_rate: the same of the card's.
        layers: parameters of all layers.
        ends: parameters of the ends.
        ends_on_cpu: how many of them are the CPU's; the others are the card's.
    """
    # (share · layers + e) / cpu_rate = ((1 - share) · layers + ends - e) / gpu_rate
    whole = layers + ends
    share = (cpu_rate * whole / (cpu_rate + gpu_rate) - ends_on_cpu) / layers
    return min(1.0, max(0.0, share))


class AutoShare:
    """Adjusts an optimizer's assignment between steps, until it fits."""

    def __init__(
        self,
        optimizer: AsyncOptimizer,
        engines: Mapping[EngineName, CountedEngine],
        shape: ModelShape,
    ) -> None:
        """Begin with the assignment as it is; the ends must be the card's.

        Args:
            optimizer: whose assignment is adjusted.
            engines: those that run. There is nothing to share where one is missing.
            shape: sizes.
        """
        self._optimizer = optimizer
        self._engines = engines
        self._shape = shape
        self._ends = optimizer.assignment[shape.num_layers :]
        self._before: dict[EngineName, tuple[float, int]] = {}
        self._rates: dict[EngineName, float] = {}
        self._steps = 0
        self._quiet = 0
        self.changes = 0
        self.settled = set(engines) != {"cpu", "gpu"}
        """Whether the share stays as it is from here on."""

    @property
    def share(self) -> float:
        """The CPU's share of the layers."""
        layers = self._optimizer.assignment[: self._shape.num_layers]
        return layers.count("cpu") / len(layers)

    def after_step(self) -> None:
        """Read what the engines did since the last call, and move layers where that helps."""
        if self.settled:
            return
        self._steps += 1
        self._measure()
        if self._steps <= _WARM_UP_STEPS or len(self._rates) < len(self._engines):
            return
        layers = self._shape.num_layers * self._shape.layer_params
        share = balanced_share(
            self._rates["cpu"],
            self._rates["gpu"],
            layers=layers,
            ends=self._shape.total_params - layers,
            ends_on_cpu=self._optimizer.shared_elements,
        )
        count = self._shape.num_layers
        assignment = assign(count, count, share) + self._ends
        if assignment == self._optimizer.assignment:
            self._quiet += 1
            self.settled = self._quiet >= _QUIET_STEPS
            return
        self._optimizer.reassign(assignment)
        self._quiet = 0
        self.changes += 1
        self.settled = self.changes >= _MOST_CHANGES

    def _measure(self) -> None:
        for name, engine in self._engines.items():
            before = self._before.get(name, (0.0, 0))
            now = self._before[name] = engine.worked
            seconds, elements = now[0] - before[0], now[1] - before[1]
            # An engine that had nothing to do keeps the rate that it had before.
            if self._steps > _WARM_UP_STEPS and elements > 0 and seconds > 0.0:
                self._rates[name] = elements / seconds
