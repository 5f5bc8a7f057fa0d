"""A seat by itself, where there is nothing but lanes of one base: what `simulate` says, sooner.

The search asks this many thousand times. A test holds it to the simulation, bit for bit.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Placement, Recompute, Schedule
from slidepack.daemon.planner.tasks import BaseOnDevice

__all__ = ["SeatRuns"]


class SeatRuns:
    """Runs of single seats of a problem."""

    def __init__(self, instance: Instance) -> None:
        """Look up which lanes are alike."""
        self._instance = instance
        self.possible = _is_plain(instance)
        """Whether the problem is one of those that this is for."""
        found: dict[tuple[int, int, int, int], _Lane] = {}
        self._lanes: list[_Lane] = []
        for task in instance.tasks:
            like = (task.tokens, task.step_tokens, task.params, task.row_tokens)
            self._lanes.append(found.setdefault(like, _Lane(*like)))

    def run(
        self, seat: int, order: Sequence[int], cap: float, recompute: Recompute, max_lanes: int
    ) -> Schedule:
        """Return what `simulate` says of these tasks on this seat, without why they wait.

        Args:
            seat: on which all of them fit.
            order: of the tasks.
            cap: most tokens of a step, as in `Strategy`.
            recompute: as in `Strategy`.
            max_lanes: of a pack; 0 leaves it to the seat.
        """
        schedule = Schedule()
        if order:
            run = _Run(self._instance, seat, order, self._lanes)
            run.limit(cap, recompute, max_lanes)
            run.play(schedule)
        return schedule


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """What a pack can tell of a lane; the same object for lanes that are alike."""

    tokens: int
    step_tokens: int
    params: int
    row: int


class _Run:
    """A pack from its first lane to its last."""

    __slots__ = (
        *("_seat", "_lanes", "_waiting", "_ends", "_begun", "_memory", "_fixed", "_per_param"),
        *("_floor", "_alpha", "_slower", "_beside", "_each", "_once", "_startup", "_row_bytes"),
        *("_kept_bytes", "_keep_tokens", "_most_params", "_most_lanes", "_most_tokens"),
        *("_recompute", "_now", "_working_from", "_step", "_pace", "_tokens", "_step_tokens"),
        *("_params", "_longest", "_keeps", "_steps_of"),
    )

    def __init__(
        self, instance: Instance, seat: int, order: Sequence[int], lanes: Sequence[_Lane]
    ) -> None:
        found, base = instance.seats[seat], instance.base(order[0], seat)
        cost = base.cost
        self._seat, self._lanes, self._waiting = seat, lanes, list(order)
        self._steps_of = {task: instance.tasks[task].steps for task in order}
        self._ends: list[tuple[float, int]] = []
        self._begun: dict[int, float] = {}
        self._memory, self._fixed = found.memory_bytes, base.fixed_bytes
        self._per_param = base.bytes_per_param
        self._floor, self._alpha = cost.floor_seconds, cost.token_seconds
        self._slower = cost.token_seconds * base.recompute_slowdown
        self._beside, self._each = cost.fixed_tokens, cost.lane_seconds
        self._once = instance.once_seconds(order[0], seat)
        self._startup = instance.startup_seconds(order[0], seat)
        self._row_bytes = {row: base.recompute.of(row) for row in {k.row for k in lanes}}
        self._kept_bytes, self._keep_tokens = _KeptBytes(base), base.keep_tokens
        self._most_params = math.inf if base.most_params is None else base.most_params
        self._most_lanes = found.max_lanes
        self._most_tokens = cost.break_even_tokens
        self._recompute: Recompute = "freely"
        self._now, self._working_from = instance.free_from[seat], 0.0
        self._step = self._pace = 0.0
        self._tokens = self._step_tokens = self._params = self._longest = 0
        self._keeps = False

    def limit(self, cap: float, recompute: Recompute, max_lanes: int) -> None:
        """Set what a strategy says of packs."""
        self._most_tokens *= cap
        self._recompute = recompute
        limits = (limit for limit in (self._most_lanes, max_lanes) if limit)
        self._most_lanes = min(limits, default=len(self._waiting))

    def play(self, schedule: Schedule) -> None:
        """Play until nobody is left."""
        while self._waiting or self._ends:
            self._admit()
            self._pass_time(schedule)

    def _admit(self) -> None:
        waiting, lanes = self._waiting, self._lanes
        refused = set[_Lane]()
        at = 0
        while at < len(waiting) and len(self._ends) < self._most_lanes:
            task = waiting[at]
            lane = lanes[task]
            if lane in refused:
                at += 1
            elif not self._ends or self._fits(lane):
                del waiting[at]
                self._join(task, lane)
            else:
                refused.add(lane)
                at += 1

    def _fits(self, lane: _Lane) -> bool:
        params = self._params + lane.params
        if self._tokens + lane.tokens > self._most_tokens or params > self._most_params:
            return False
        row = max(self._longest, lane.row)
        if self._fixed + round(params * self._per_param) + self._row_bytes[row] > self._memory:
            return False
        if self._recompute == "freely" or not self._keeps:
            return True
        if self._would_keep(params, row, self._step_tokens + lane.step_tokens):
            return True
        if self._recompute == "never":
            return False
        tokens = self._tokens + lane.tokens
        working = self._slower * (tokens + self._beside)
        pace = max(self._floor, working) + self._each * (len(self._ends) + 1)
        return tokens / pace > self._tokens / self._pace

    def _would_keep(self, params: int, row: int, step_tokens: int) -> bool:
        kept = self._kept_bytes[max(row, min(step_tokens, self._keep_tokens))]
        return self._fixed + params * self._per_param + kept <= self._memory

    def _join(self, task: int, lane: _Lane) -> None:
        if self._ends:
            self._working_from = max(self._working_from, self._now) + self._once
        else:
            self._step = 0.0
            self._working_from = self._now + self._startup + self._once
        heapq.heappush(self._ends, (self._step + self._steps_of[task], task))
        self._begun[task] = self._now
        self._tokens += lane.tokens
        self._step_tokens += lane.step_tokens
        self._params += lane.params
        self._longest = max(self._longest, lane.row)
        self._set_pace()

    def _set_pace(self) -> None:
        self._keeps = self._would_keep(self._params, self._longest, self._step_tokens)
        slope = self._alpha if self._keeps else self._slower
        working = slope * (self._tokens + self._beside)
        self._pace = max(self._floor, working) + self._each * len(self._ends)

    def _pass_time(self, schedule: Schedule) -> None:
        """Go on to where the next lanes end, and let them go."""
        ends, lanes = self._ends, self._lanes
        reached = ends[0][0]
        now = max(self._now, self._working_from) + (reached - self._step) * self._pace
        self._now, self._step = now, reached
        gone = 0
        while ends and ends[0][0] <= reached + 1e-6:
            _, task = heapq.heappop(ends)
            lane = lanes[task]
            self._tokens -= lane.tokens
            self._step_tokens -= lane.step_tokens
            self._params -= lane.params
            gone = max(gone, lane.row)
            schedule.placements.append(Placement(task, self._seat, self._begun[task], now))
        if gone >= self._longest:
            self._longest = max((lanes[task].row for _, task in ends), default=0)
        if ends:
            self._set_pace()


class _KeptBytes(dict[int, float]):
    """Bytes of a pass of so many tokens that keeps its activations; endless where none does."""

    def __init__(self, base: BaseOnDevice) -> None:
        super().__init__()
        self._base = base

    def __missing__(self, tokens: int) -> float:
        keep = self._base.keep
        found = self[tokens] = math.inf if keep is None else float(keep.of(tokens))
        return found


def _is_plain(instance: Instance) -> bool:
    """Return whether all tasks are lanes of one base that may begin at once, and none is first."""
    tasks = instance.tasks
    endless = instance.hours.total == math.inf and not instance.hours.breaks
    return (
        endless
        and max(instance.free_from, default=math.inf) < math.inf
        and len({task.model for task in tasks}) == 1
        and len({task.priority for task in tasks}) == 1
        and not any(
            task.full is not None
            or task.deadline is not None
            or task.not_before is not None
            or task.after
            or task.running_on
            for task in tasks
        )
    )
