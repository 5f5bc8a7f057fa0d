"""A mixed-integer linear program as plain data, and what a solver says of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import msgspec

__all__ = ["Milp", "Solved", "Solver"]


@dataclass(kw_only=True, slots=True)
class Milp:
    """Minimise the costs. Columns and rows are numbered in the order in which they are added."""

    costs: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    """Of the columns; the lower bounds are 0."""
    integer: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    rows: list[list[tuple[int, float]]] = field(default_factory=list)

    def column(self, *, cost: float = 0.0, upper: float = inf, integer: bool = False) -> int:
        """Add a column; return its number."""
        self.costs.append(cost)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.costs) - 1

    def row(
        self, terms: Sequence[tuple[int, float]], *, lower: float = -inf, upper: float = inf
    ) -> None:
        """Add a row."""
        self.rows.append(list(terms))
        self.row_lower.append(lower)
        self.row_upper.append(upper)


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when the solver stops."""

    values: list[float] | None
    """Of the columns; None where no solution was found."""
    objective: float
    dual_bound: float
    """No solution is better; minus infinity where nothing is known."""
    optimal: bool
    duals: list[float] = []
    """Of the rows, where no column is an integer: what one more of each would cost."""


class Solver(Protocol):
    """Solves programs."""

    def solve(
        self,
        milp: Milp,
        *,
        seconds: float,
        start: Sequence[float] | None = None,
        presolve: bool = True,
    ) -> Solved:
        """Solve within so many seconds.

        Args:
            milp: the program.
            seconds: after which the best so far is taken.
            start: values of the columns to begin with.
            presolve: whether to simplify the program first, where that is worth its time.
        """
        ...
