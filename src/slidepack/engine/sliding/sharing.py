"""Which of the optimizer's engines updates a unit; both give the same bits.

The engines share the memory of the host, and the card's shares the link with the weights, so how
fast each is changes within a step. A share that is fixed beforehand leaves one engine waiting for
the other in some phase of every step.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

__all__ = ["BalancedSharing", "CountedEngine", "EngineName", "FixedSharing", "Sharing", "assign"]

EngineName = Literal["cpu", "gpu"]

_MEMORY: Final = 0.95
"""Of the past in an engine's rate, at each update: some twenty updates back."""


class CountedEngine(Protocol):
    """What is measured of an engine."""

    @property
    def worked(self) -> tuple[float, int]:
        """Seconds at work and elements done so far."""


class Sharing(Protocol):
    """Decides update by update."""

    def pick(self, unit: int, elements: int) -> EngineName:
        """Return the engine that is to update a unit, and count on it."""

    def book(self, name: EngineName, elements: int) -> None:
        """Count on an update that an engine gets without being picked."""


class FixedSharing:
    """Every unit always has the same engine."""

    def __init__(self, assignment: Sequence[EngineName]) -> None:
        """Bind the engine of each unit."""
        self._assignment = tuple(assignment)

    def pick(self, unit: int, elements: int) -> EngineName:
        """Return the unit's engine."""
        del elements
        return self._assignment[unit]

    def book(self, name: EngineName, elements: int) -> None:
        """Do nothing."""


class BalancedSharing:
    """A layer goes to the engine that will be done with it first, by its backlog and its speed."""

    def __init__(self, engines: Mapping[EngineName, CountedEngine], layers: int) -> None:
        """Begin with engines that are held to be equally fast.

        Args:
            engines: both.
            layers: number of them; the units after them are the card's.
        """
        self._engines = engines
        self._layers = layers
        self._given = {name: engine.worked[1] for name, engine in engines.items()}
        self._seen = {name: engine.worked for name, engine in engines.items()}
        self._recent: dict[EngineName, tuple[float, float]] = {}
        self._started: set[EngineName] = set()

    def pick(self, unit: int, elements: int) -> EngineName:
        """Return the engine that is to update a unit, and count on it."""
        name: EngineName = "gpu"
        if unit < self._layers:
            self._measure()
            rates = self._rates()
            name = min(
                self._engines, key=lambda name: (self._backlog(name) + elements) / rates[name]
            )
        self.book(name, elements)
        return name

    def book(self, name: EngineName, elements: int) -> None:
        """Count on an update that an engine gets without being picked."""
        self._given[name] += elements

    def _backlog(self, name: EngineName) -> int:
        return self._given[name] - self._engines[name].worked[1]

    def _rates(self) -> dict[EngineName, float]:
        if len(self._recent) < len(self._engines):
            return dict.fromkeys(self._engines, 1.0)
        return {name: elements / seconds for name, (seconds, elements) in self._recent.items()}

    def _measure(self) -> None:
        for name, engine in self._engines.items():
            now, before = engine.worked, self._seen[name]
            seconds, elements = now[0] - before[0], now[1] - before[1]
            if elements <= 0 or seconds <= 0.0:
                continue
            self._seen[name] = now
            if name not in self._started:
                # The first update compiles the card's kernel.
                self._started.add(name)
                continue
            old_seconds, old_elements = self._recent.get(name, (0.0, 0.0))
            self._recent[name] = (
                old_seconds * _MEMORY + seconds,
                old_elements * _MEMORY + elements,
            )


def assign(layers: int, units: int, cpu_share: float) -> tuple[EngineName, ...]:
    """Spread the CPU's share of the layers evenly; the ends are the CPU's where all is.

    Where both engines run, the CPU takes half of the embedding beside its layers (`SharedUnit`).
    """
    names: list[EngineName] = []
    done = 0
    for layer in range(layers):
        wanted = round((layer + 1) * cpu_share)
        names.append("cpu" if wanted > done else "gpu")
        done = max(done, wanted)
    last: EngineName = "cpu" if cpu_share >= 1.0 else "gpu"
    return (*names, *([last] * (units - layers)))
