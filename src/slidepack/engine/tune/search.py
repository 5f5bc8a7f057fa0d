"""Times candidate sizes against each other, and says what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from triton.errors import TritonError

from slidepack.engine.bench_kernels.measure import Meter

__all__ = ["Load", "Row", "Scored", "Search", "figures", "search"]

Sizes = TypeVar("Sizes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Load(Generic[Sizes]):
    """What the candidates are timed with."""

    weight: float
    """Of its time in the score."""
    bind: Callable[[Sizes], Callable[[], Any]]
    """Makes the call of a candidate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored(Generic[Sizes]):
    """A candidate that runs."""

    sizes: Sizes
    times_ms: tuple[float, ...]
    """Of each load."""
    score: float
    """Weighted sum of the times; less is better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Search(Generic[Sizes]):
    """What came of the candidates of one kernel."""

    scored: tuple[Scored[Sizes], ...]
    """Best first, at least one."""
    skipped: int
    """Candidates that this GPU or its compiler does not take."""

    @property
    def best(self) -> Scored[Sizes]:
        """The one with the least score."""
        return self.scored[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What a search puts into the tile table."""

    sizes: dict[str, int]
    measured: str
    """What chose the sizes; the machine is not named yet."""


def search(
    candidates: Sequence[Sizes], loads: Sequence[Load[Sizes]], meter: Meter
) -> Search[Sizes]:
    """Time every candidate under every load, candidates in turn.

    Raises:
        RuntimeError: none of them runs.
    """
    runnable = [sizes for sizes in candidates if _runs(sizes, loads)]
    if not runnable:
        raise RuntimeError(f"None of {len(candidates)} sizes runs on this GPU.")
    times = [meter.interleaved_ms([load.bind(sizes) for sizes in runnable]) for load in loads]
    scored = [
        Scored(
            sizes=sizes,
            times_ms=of_loads,
            score=sum(load.weight * ms for load, ms in zip(loads, of_loads, strict=True)),
        )
        for sizes, of_loads in zip(runnable, zip(*times, strict=True), strict=True)
    ]
    return Search(
        scored=tuple(sorted(scored, key=lambda one: one.score)),
        skipped=len(candidates) - len(runnable),
    )


def figures(found: Search[Sizes], taken: Scored[Sizes] | None = None) -> str:
    """Return the time of the sizes that were taken, the best ones by default, among all."""
    first = [scored.times_ms[0] * 1e3 for scored in found.scored]
    time = (found.best if taken is None else taken).times_ms[0] * 1e3
    skipped = f", {found.skipped} more do not run" if found.skipped else ""
    return (
        f"{time:.1f} us of {len(first)} settings ({min(first):.1f} to {max(first):.1f} us{skipped})"
    )


def _runs(sizes: Sizes, loads: Sequence[Load[Sizes]]) -> bool:
    """Compile and launch once; what a card is too small for fails before it is launched."""
    try:
        for load in loads:
            load.bind(sizes)()
    except TritonError:
        return False
    except RuntimeError as error:
        # A pass of the compiler that fails has no class of its own; anything else is not skipped.
        if "PassManager" not in str(error):
            raise
        return False
    return True
