"""The pack on one seat while a simulation runs: who is in it, how fast it goes, who ends next."""

import heapq
import math
from typing import Final

from slidepack.daemon.planner.instance import Instance, keeps_activations
from slidepack.daemon.planner.schedule import Strategy, Wait
from slidepack.daemon.planner.tasks import BaseOnDevice, Task

__all__ = ["PackState"]

_AT_THE_END: Final = 0.5
"""Of the time in which a lane holds others up: it is measured and answers before and after."""


class PackState:
    """A seat's pack; its clock counts the steps that all its lanes have made together."""

    def __init__(self, instance: Instance, strategy: Strategy, seat: int) -> None:
        """Begin empty."""
        self._instance = instance
        self.seat = seat
        self._memory = instance.seats[seat].memory_bytes
        limits = (instance.seats[seat].max_lanes, strategy.max_lanes)
        self._most_lanes = min((limit for limit in limits if limit), default=1 << 62)
        factors = strategy.cap_factors
        self._cap_factor = factors[seat] if factors else math.inf
        self._recompute = strategy.recompute[seat] if strategy.recompute else "freely"
        self._keeps = False
        self._base: BaseOnDevice | None = None
        self._full: int | None = None
        self._model = ""
        self._ends: list[tuple[float, int]] = []
        self.begun: dict[int, float] = {}
        """When each task joined."""
        self._bound: dict[int, float] = {}
        """Steps at which lanes with a deadline end."""
        self._steps = self._at = self.working_from = 0.0
        self._pace = 0.0
        self._params = self._tokens = self._step_tokens = self._longest = 0
        self._most_tokens = math.inf
        self.next_end = math.inf

    @property
    def empty(self) -> bool:
        """Whether nobody is here."""
        return not self.begun

    def takes_model(self, task: int) -> bool:
        """Return whether a task could be here by its base alone."""
        if self.empty:
            return True
        asked = self._instance.tasks[task]
        return asked.full is None and self._full is None and asked.model == self._model

    def refusal(self, task: int, now: float) -> Wait | None:
        """Return why a task cannot join now, or None where it can."""
        asked = self._instance.tasks[task]
        if self.empty:
            return None if now >= self._instance.free_from[self.seat] else "device away"
        if self._full is not None or asked.full is not None:
            return "whole device"
        base = self._base
        if base is None or asked.model != self._model:
            return "other base"
        if len(self.begun) >= self._most_lanes:
            return "lanes"
        if self._tokens + asked.tokens > self._most_tokens:
            return "tokens"
        params = self._params + asked.params
        if base.most_params is not None and params > base.most_params:
            return "memory"
        rows = base.recompute.of(max(self._longest, self._instance.rows[task]))
        if base.fixed_bytes + round(params * base.bytes_per_param) + rows > self._memory:
            return "memory"
        if not self._may_recompute(asked, params):
            return "memory"
        return "deadline" if self._bound and self._breaks_deadline(asked, now) else None

    def end_with(self, task: int, now: float) -> float:
        """Return when a task that joins now would end if nobody else came or left."""
        asked, instance = self._instance.tasks[task], self._instance
        once = instance.once_seconds(task, self.seat)
        if self.empty:
            started = now + instance.startup_seconds(task, self.seat) + once
            return started + instance.solo_seconds(task, self.seat)
        return max(now, self.working_from) + once + asked.steps * self._pace_with(asked)

    def drained(self) -> float:
        """Return when the last one here ends at the pace of now."""
        last = max((end for end, _ in self._ends), default=self._steps)
        return max(self._at, self.working_from) + (last - self._steps) * self._pace

    def join(self, task: int, now: float, *, started: bool = False) -> None:
        """Let a task in.

        Args:
            task: that no `refusal` keeps out.
            now: in open seconds.
            started: its worker runs already.
        """
        asked, instance = self._instance.tasks[task], self._instance
        if self.empty:
            self._model, self._full = asked.model, None if asked.full is None else task
            if asked.full is None:
                self._base = instance.base(task, self.seat)
                self._most_tokens = self._cap_factor * self._base.cost.break_even_tokens
            startup = 0.0 if started else instance.startup_seconds(task, self.seat)
            self._steps, self._at, self.working_from = 0.0, now, now + startup
        else:
            self._advance(now)
            self.working_from = max(self.working_from, now)
        # Nobody makes a step meanwhile. Of a lane that is here already, the end is to come.
        once = instance.once_seconds(task, self.seat)
        self.working_from += once * _AT_THE_END if started else once
        end = self._steps + asked.steps
        heapq.heappush(self._ends, (end, task))
        self.begun[task] = now
        if instance.deadlines[task] < math.inf:
            self._bound[task] = end
        self._tokens += asked.tokens
        self._step_tokens += asked.step_tokens
        self._params += asked.params
        self._longest = max(self._longest, instance.rows[task])
        self._set_pace()

    def take_ended(self, now: float) -> list[int]:
        """Let everybody go whose last step is made; `now` is `next_end`."""
        # Counted to the very step, so that no rounding leaves a lane behind.
        self._steps, self._at = self._ends[0][0], now
        ended = []
        while self._ends and self._ends[0][0] <= self._steps + 1e-6:
            ended.append(heapq.heappop(self._ends)[1])
        for task in ended:
            asked = self._instance.tasks[task]
            self._tokens -= asked.tokens
            self._step_tokens -= asked.step_tokens
            self._params -= asked.params
            self._bound.pop(task, None)
        gone = max(self._instance.rows[task] for task in ended)
        if gone >= self._longest:
            stay = (self._instance.rows[task] for _, task in self._ends)
            self._longest = max(stay, default=0)
        self._set_pace()
        return ended

    def leave(self, task: int) -> float:
        """Forget an ended task; return when it joined."""
        return self.begun.pop(task)

    def restart(self, now: float) -> None:
        """Begin again where a later window opens: the worker has to start."""
        self._advance(now)
        startup = self._instance.startup_seconds(self._ends[0][1], self.seat)
        self.working_from = now + startup
        self._set_pace()

    def _advance(self, now: float) -> None:
        worked = now - max(self._at, self.working_from)
        if worked > 0.0:
            self._steps += worked / self._pace
        self._at = now

    def _set_pace(self) -> None:
        if not self._ends:
            self.next_end = math.inf
            return
        if self._full is not None:
            self._pace = self._instance.step_seconds(self._full, self.seat)
        else:
            base = self._base
            assert base is not None
            self._keeps = keeps_activations(
                base, self._memory, self._params, self._longest, self._step_tokens
            )
            slowdown = 1.0 if self._keeps else base.recompute_slowdown
            self._pace = base.cost.seconds(self._tokens, len(self._ends), slowdown)
        left = self._ends[0][0] - self._steps
        self.next_end = max(self._at, self.working_from) + left * self._pace

    def _pace_with(self, asked: Task) -> float:
        base = self._base
        assert base is not None
        keeps = self._would_keep(asked, self._params + asked.params)
        tokens, lanes = self._tokens + asked.tokens, len(self._ends) + 1
        return base.cost.seconds(tokens, lanes, 1.0 if keeps else base.recompute_slowdown)

    def _would_keep(self, asked: Task, params: int) -> bool:
        """Return whether activations are still kept with one more lane."""
        assert self._base is not None
        longest = max(self._longest, asked.row_tokens)
        tokens = self._step_tokens + asked.step_tokens
        return keeps_activations(self._base, self._memory, params, longest, tokens)

    def _may_recompute(self, asked: Task, params: int) -> bool:
        """Return whether a lane may make the pack recompute, where it would."""
        if self._recompute == "freely" or not self._keeps or self._would_keep(asked, params):
            return True
        if self._recompute == "never":
            return False
        return (self._tokens + asked.tokens) / self._pace_with(asked) > self._tokens / self._pace

    def _breaks_deadline(self, asked: Task, now: float) -> bool:
        """Return whether a lane that would be in time no longer is with one more."""
        start = max(now, self.working_from)
        worked = max(0.0, now - max(self._at, self.working_from))
        steps = self._steps + (worked / self._pace if worked else 0.0)
        slower = self._pace_with(asked)
        for task, end in self._bound.items():
            deadline = self._instance.deadlines[task]
            if start + (end - steps) * self._pace <= deadline < start + (end - steps) * slower:
                return True
        return False
