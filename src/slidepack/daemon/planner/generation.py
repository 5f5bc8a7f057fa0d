"""The time of the best packs there are, as a program over all of them, made by column generation.

How many steps each pack makes is a number of the program: together they make all steps of all
tasks, and no device is busy for longer than the makespan. A plan is such numbers, so none is
shorter. Packs are far too many to list. Those that could make the program's solution better are
found by the prices of its rows: a knapsack for each way in which lanes can share a place. What the
knapsacks leave to gain bounds how far the packs that are known are from all.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from slidepack.daemon.planner.milp import Milp, Solver
from slidepack.daemon.planner.packing import Layout, Pack, Room, rooms_of, solo_packs

__all__ = ["Generated", "generate"]

_MOST_ROUNDS: Final = 300
_CLOSE: Final = 5e-4
"""Relative distance to the bound at which more packs are worth nothing."""
_SMOOTH: Final = 0.5
"""Of the best prices so far in those that are tried: the newest alone swing from end to end."""
_GAIN: Final = 1e-6
"""Of a step's cost: less is the rounding of a solver."""
_PRICING_SECONDS: Final = 0.5
_LEAST_PRICE: Final = 1e-5
"""Of a device, of the dearest one's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """The packs that are worth knowing, and what they prove."""

    packs: tuple[Pack, ...]
    seconds: float
    """Of the program with these packs; infinite where time was up before it was solved."""
    bound: float
    """Open seconds that no plan is below."""


@dataclass(frozen=True, slots=True)
class _Prices:
    of_step: tuple[float, ...]
    """Of each kind, in seconds of the makespan."""
    of_second: tuple[float, ...]
    """Of each place."""

    def towards(self, other: "_Prices", share: float) -> "_Prices":
        def mean(mine: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
            return tuple((1.0 - share) * a + share * b for a, b in zip(mine, others, strict=True))

        return _Prices(mean(self.of_step, other.of_step), mean(self.of_second, other.of_second))


def generate(
    layout: Layout,
    solver: Solver,
    known: Iterable[Pack],
    *,
    seconds_left: Callable[[], float],
) -> Generated:
    """Find packs until they are as good as all, or time is up.

    Args:
        layout: of the tasks.
        solver: of the programs.
        known: packs to begin with, as those of a plan.
        seconds_left: asked before each program; its bound holds whenever it stops.
    """
    return _Generation(layout, solver, known).run(seconds_left)


class _Generation:
    def __init__(self, layout: Layout, solver: Solver, known: Iterable[Pack]) -> None:
        self._layout, self._solver = layout, solver
        self._solo = list(solo_packs(layout))
        self._rooms = list(rooms_of(layout))
        self._packs = {(pack.place, pack.counts): pack for pack in (*self._solo, *known)}
        self._seconds = float("inf")
        self._bound = 0.0
        self._best: _Prices | None = None

    def run(self, seconds_left: Callable[[], float]) -> Generated:
        for _ in range(_MOST_ROUNDS):
            left = seconds_left()
            prices = self._solve(left) if left > 0.0 else None
            if prices is None or self._seconds <= (1.0 + _CLOSE) * self._bound:
                break
            if not self._find(prices, seconds_left):
                break
        return Generated(
            packs=tuple(self._packs.values()), seconds=self._seconds, bound=self._bound
        )

    def _solve(self, seconds: float) -> _Prices | None:
        """Solve the program over the packs that are known; return the prices of its rows."""
        layout = self._layout
        milp = Milp()
        makespan = milp.column(cost=1.0)
        makes: list[list[tuple[int, float]]] = [[] for _ in layout.kinds]
        busy: list[list[tuple[int, float]]] = [[] for _ in layout.places]
        for pack in self._packs.values():
            column = milp.column()
            for kind, many in pack.counts:
                makes[kind].append((column, float(many)))
            busy[pack.place].append((column, pack.seconds))
        for found, terms in zip(layout.kinds, makes, strict=True):
            milp.row(terms, lower=float(found.steps * len(found.tasks)))
        for count, places in layout.limits:
            shared = [term for place in places for term in busy[place]]
            milp.row([*shared, (makespan, -float(count))], upper=0.0)
        solved = self._solver.solve(milp, seconds=seconds)
        if not solved.optimal or not solved.duals:
            return None
        self._seconds = solved.objective
        return self._prices(solved.duals)

    def _prices(self, duals: Sequence[float]) -> _Prices:
        """Return the prices of a solution, those of devices summing to one, and none to nothing:
        with a device for nothing, no price of a step would be too high."""
        layout = self._layout
        of_limit = [max(0.0, -dual) for dual in duals[len(layout.kinds) :]]
        least = _LEAST_PRICE * max(of_limit)
        of_limit = [max(least, price) for price in of_limit]
        total = sum(
            count * price for price, (count, _) in zip(of_limit, layout.limits, strict=True)
        )
        of_second = [0.0] * len(layout.places)
        for price, (_, places) in zip(of_limit, layout.limits, strict=True):
            for place in places:
                of_second[place] += price / total
        of_step = [max(0.0, dual) for dual in duals[: len(layout.kinds)]]
        return _Prices(tuple(of_step), tuple(of_second))

    def _find(self, newest: _Prices, seconds_left: Callable[[], float]) -> bool:
        """Add packs that the prices say are missing; return whether there are any."""
        tried = [newest] if self._best is None else [newest.towards(self._best, _SMOOTH), newest]
        for prices in tried:
            before = len(self._packs)
            if not self._price(prices, seconds_left):
                return False
            if len(self._packs) > before:
                return True
        return False

    def _price(self, prices: _Prices, seconds_left: Callable[[], float]) -> bool:
        """Look for better packs in all rooms; return whether there was the time for it."""
        excess = max(self._excess_alone(pack, prices) for pack in self._solo)
        for room in self._rooms:
            left = seconds_left()
            if left <= 0.0:
                return False
            gain, counts = self._best_pack(room, prices, min(left, _PRICING_SECONDS))
            excess = max(excess, gain)
            if gain > _GAIN:
                self._add(room.place, counts)
        # With the prices of steps so much lower, no pack gains anything: then they add up to what
        # any plan costs at least.
        demand = (
            kind.steps * len(kind.tasks) * price
            for kind, price in zip(self._layout.kinds, prices.of_step, strict=True)
        )
        bound = sum(demand) / (1.0 + max(0.0, excess))
        if bound > self._bound:
            self._bound, self._best = bound, prices
        return True

    def _excess_alone(self, pack: Pack, prices: _Prices) -> float:
        paid = sum(many * prices.of_step[kind] for kind, many in pack.counts)
        return paid / (prices.of_second[pack.place] * pack.seconds) - 1.0

    def _add(self, place: int, counts: dict[int, int]) -> None:
        """Add a pack to its place, and to those where it is as good a guess."""
        for other, found in enumerate(self._layout.places):
            if other != place and not counts.keys() <= set(found.kinds):
                continue
            pack = self._layout.pack(other, counts) if counts else None
            if pack is not None:
                self._packs.setdefault((pack.place, pack.counts), pack)

    def _best_pack(
        self, room: Room, prices: _Prices, seconds: float
    ) -> tuple[float, dict[int, int]]:
        """Return at most how much a pack gains, as a share of its cost, and the one that does."""
        layout, instance = self._layout, self._layout.instance
        seat = layout.places[room.place].first
        cost = instance.seats[seat].bases[room.model].cost
        second = prices.of_second[room.place]
        tasks = {kind: instance.tasks[layout.kinds[kind].first] for kind in room.kinds}
        worth = {
            kind: prices.of_step[kind]
            - second * (cost.lane_seconds + layout.once_a_step(kind, seat))
            for kind in room.kinds
        }
        chosen = [kind for kind in room.kinds if worth[kind] > 0.0]
        if not chosen:
            return 0.0, {}
        slope = cost.token_seconds * room.slowdown
        fewest = min(task.tokens for task in tasks.values())
        least = second * max(cost.floor_seconds, slope * (fewest + cost.fixed_tokens))
        milp = Milp()
        lanes = [
            milp.column(
                cost=-worth[kind] / least,
                upper=float(len(layout.kinds[kind].tasks)),
                integer=True,
            )
            for kind in chosen
        ]
        step = milp.column(cost=second / least)
        milp.row([(step, 1.0)], lower=cost.floor_seconds)
        tokens = [(c, -slope * tasks[kind].tokens) for kind, c in zip(chosen, lanes, strict=True)]
        milp.row([(step, 1.0), *tokens], lower=slope * cost.fixed_tokens)
        bytes_each = instance.seats[seat].bases[room.model].bytes_per_param / room.adapter_bytes
        shares = [
            (c, tasks[kind].params * bytes_each) for kind, c in zip(chosen, lanes, strict=True)
        ]
        milp.row(shares, upper=1.0)
        if room.most_step_tokens < float("inf"):
            most = [
                (c, tasks[kind].step_tokens / room.most_step_tokens)
                for kind, c in zip(chosen, lanes, strict=True)
            ]
            milp.row(most, upper=1.0)
        if instance.seats[seat].max_lanes:
            limit = float(instance.seats[seat].max_lanes)
            milp.row([(c, 1.0) for c in lanes], upper=limit)
        solved = self._solver.solve(milp, seconds=seconds)
        counts = {
            kind: round(value)
            for kind, value in zip(chosen, solved.values or (), strict=False)
            if value > 0.5
        }
        return max(0.0, -solved.dual_bound), counts
