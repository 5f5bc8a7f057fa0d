"""What is true of every plan, worked out from its spans alone."""

import itertools
from collections.abc import Iterable, Sequence

from slidepack.daemon.planner.answer import LaneSpan, Options, Plan
from slidepack.daemon.planner.seats import base_on_group
from slidepack.daemon.planner.tasks import BaseOnDevice, Device, Task

SLACK = 1e-3
"""Seconds: times are sums of many floats."""


def check_plan(
    plan: Plan, tasks: Sequence[Task], devices: Sequence[Device], now: float, options: Options
) -> None:
    """Assert everything that no plan may break."""
    _nothing_is_lost(plan, tasks)
    _windows_are_kept(plan, now, options)
    _devices_are_shared_rightly(plan, tasks, devices)
    _order_is_kept(plan, tasks)
    _every_step_is_made(plan, tasks, devices)
    assert plan.bound_seconds <= plan.open_seconds + SLACK
    assert plan.gap >= -1e-9


def _nothing_is_lost(plan: Plan, tasks: Sequence[Task]) -> None:
    assert [task.task for task in plan.tasks] == [task.key for task in tasks]
    ending = [span.task for span in plan.spans if span.ends]
    assert sorted(ending) == sorted(task.task for task in plan.tasks if task.end is not None)
    for found in plan.tasks:
        if found.end is None and found.begin is None:
            assert found.waits, f"{found.task} is left out, and nothing says why"
        assert found.fits or found.waits


def _windows_are_kept(plan: Plan, now: float, options: Options) -> None:
    for span in plan.spans:
        assert now - SLACK <= span.begin < span.end
        if options.windows:
            assert any(
                window.begin - SLACK <= span.begin and span.end <= window.end + SLACK
                for window in _joined(options)
            )


def _joined(options: Options) -> list[LaneSpan]:
    """Return the windows, those that touch or overlap as one."""
    found: list[LaneSpan] = []
    for window in sorted(options.windows, key=lambda w: (w.begin, w.end)):
        if found and window.begin <= found[-1].end:
            begin, end = found.pop().begin, window.end
        else:
            begin, end = window.begin, window.end
        found.append(LaneSpan(task="", devices=(), begin=begin, end=end, ends=False))
    return found


def moments(spans: Iterable[LaneSpan]) -> list[float]:
    """Return instants between which nothing changes."""
    return sorted({instant for span in spans for instant in (span.begin, span.end)})


def _present(spans: Sequence[LaneSpan], begin: float, end: float) -> list[LaneSpan]:
    middle = (begin + end) / 2
    return [span for span in spans if span.begin < middle < span.end]


def _devices_are_shared_rightly(
    plan: Plan, tasks: Sequence[Task], devices: Sequence[Device]
) -> None:
    by_key = {task.key: task for task in tasks}
    for device in devices:
        here = [span for span in plan.spans if device.key in span.devices]
        instants = moments(here)
        for begin, end in itertools.pairwise(instants):
            if end - begin < SLACK:
                continue
            present = _present(here, begin, end)
            packed = [by_key[span.task] for span in present]
            assert len({span.task for span in present}) == len(present)
            assert len({span.devices for span in present}) <= 1
            if any(task.full is not None for task in packed):
                assert len(packed) == 1
                continue
            assert len({task.model for task in packed}) <= 1
            if packed:
                _fits(device, present[0].devices, packed)


def _fits(device: Device, together: tuple[str, ...], packed: Sequence[Task]) -> None:
    if all(task.running_on for task in packed):
        return
    base = base_on_group(device.bases[packed[0].model], len(together))
    used = (
        base.fixed_bytes
        + sum(task.params for task in packed) * base.bytes_per_param
        + base.recompute.of(max(task.longest or task.tokens for task in packed))
    )
    assert used <= len(together) * device.memory_bytes + 1
    assert not device.max_lanes or len(packed) <= device.max_lanes


def _order_is_kept(plan: Plan, tasks: Sequence[Task]) -> None:
    found = {task.task: task for task in plan.tasks}
    for task in tasks:
        begin, end = found[task.key].begin, found[task.key].end
        if begin is None:
            continue
        if task.not_before is not None and not task.running_on:
            assert begin >= task.not_before - SLACK
        for other in task.after if not task.running_on else ():
            before = found[other].end
            assert before is not None
            assert begin >= before - SLACK
        if task.deadline is not None:
            assert found[task.key].in_time == (end is not None and end <= task.deadline + SLACK)


def _every_step_is_made(plan: Plan, tasks: Sequence[Task], devices: Sequence[Device]) -> None:
    """Count the steps between any two instants; a task that ends has made at least all of its own.

    The start of workers takes time in which no step is made, so the count is an upper bound.
    """
    by_key = {task.key: task for task in tasks}
    by_device = {device.key: device for device in devices}
    made = dict.fromkeys(by_key, 0.0)
    for together in {span.devices for span in plan.spans}:
        here = [span for span in plan.spans if span.devices == together]
        instants = moments(here)
        for begin, end in itertools.pairwise(instants):
            packed = [by_key[span.task] for span in _present(here, begin, end)]
            if packed:
                pace = _pace(by_device[together[0]], together, packed)
                for task in packed:
                    made[task.key] += (end - begin) / pace
    for found in plan.tasks:
        if found.end is not None:
            steps = by_key[found.task].steps
            assert made[found.task] >= steps * (1 - 1e-6) - 1e-3


def _pace(device: Device, together: tuple[str, ...], packed: Sequence[Task]) -> float:
    if packed[0].full is not None:
        return packed[0].full.step_seconds[device.key]
    base: BaseOnDevice = base_on_group(device.bases[packed[0].model], len(together))
    tokens = sum(task.tokens for task in packed)
    most = sum(max(task.tokens, task.most_tokens) for task in packed)
    longest = max(task.longest or task.tokens for task in packed)
    params = sum(task.params for task in packed)
    slowdown = base.recompute_slowdown
    if base.keep is not None:
        kept = base.keep.of(max(longest, min(most, base.keep_tokens)))
        memory = len(together) * device.memory_bytes
        if base.fixed_bytes + params * base.bytes_per_param + kept <= memory:
            slowdown = 1.0
    cost = base.cost
    working = cost.token_seconds * slowdown * (tokens + cost.fixed_tokens)
    return max(cost.floor_seconds, working) + cost.lane_seconds * len(packed)
