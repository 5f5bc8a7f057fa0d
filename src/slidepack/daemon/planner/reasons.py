"""Why a task waits, and what would make one fit that does not. In words, for people."""

from typing import Final

from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Schedule, Wait
from slidepack.daemon.planner.seats import Seat
from slidepack.daemon.planner.tasks import BaseOnDevice, Task
from slidepack.engine.memory_parts import GIB

__all__ = ["misfit", "why_it_waits"]

_SENTENCES: Final[dict[Wait, str]] = {
    "closed": "Waits for the hours in which work may run.",
    "not before": "Waits for its time: it was asked to begin later.",
    "dependency": "Waits for {before}.",
    "device away": "Waits for a device that is not there yet.",
    "other base": "Waits for a device that trains another base now.",
    "whole device": "Waits for a device of its own: others are on it until then.",
    "reserved": "Waits because a device is kept for a task that goes first.",
    "lanes": "Waits for a seat: the pack has as many lanes as it may.",
    "memory": "Waits for memory: the pack fills the device.",
    "tokens": "Waits because one more lane now would slow the pack down for nothing.",
    "deadline": "Waits because one more lane would make another miss its deadline.",
    "moving": "Waits for its checkpoint before it goes on elsewhere.",
}


def why_it_waits(instance: Instance, schedule: Schedule, task: int) -> str:
    """Return why a task does not begin at once; empty where it does."""
    asked = instance.tasks[task]
    if instance.missing[task]:
        named = ", ".join(instance.missing[task])
        return f"Waits for {named}, which is not in the queue: it never begins."
    if task in instance.circular:
        return "Waits for itself by way of others: it never begins."
    if not instance.hours.spans:
        return "No hours are known in which work may run."
    why = schedule.waits.get(task)
    if why is None:
        opens = instance.hours.spans[0][0] > instance.now
        return _SENTENCES["closed"] if opens else ""
    before = ", ".join(asked.after)
    return _SENTENCES[why].format(before=before)


def misfit(instance: Instance, task: int) -> tuple[str, str]:
    """Return why a task fits no device, and what would make it fit."""
    asked = instance.tasks[task]
    if not instance.seats:
        return "There is no device.", "Switch a device on."
    if asked.full is not None:
        return asked.full.refusal or "It fits no device.", ""
    seats = [seat for seat in instance.seats if asked.model in seat.bases]
    if not seats:
        return "No device can run its base.", "Choose a smaller base, or one in 4 bits (nf4)."
    best = max(seats, key=lambda seat: seat.memory_bytes - seat.bases[asked.model].fixed_bytes)
    base = best.bases[asked.model]
    needed = _bytes(base, asked.params, asked.row_tokens)
    if base.most_params is not None and asked.params > base.most_params:
        return (
            f"Its adapter has {asked.params:,} parameters, and {base.most_params:,} fit the RAM.",
            f"Use at most {base.most_params / asked.params:.0%} of its rank.",
        )
    why = (
        f"It needs {needed / GIB:.1f} GiB, and {best.memory_bytes / GIB:.1f} may be used on "
        f"{' and '.join(best.keys)}."
    )
    return why, _remedy(best, base, asked, needed)


def _remedy(seat: Seat, base: BaseOnDevice, asked: Task, needed: int) -> str:
    room = seat.memory_bytes - base.fixed_bytes
    rows = room - round(asked.params * base.bytes_per_param)
    ways = []
    for_params = room - base.recompute.of(asked.row_tokens)
    share = for_params / (asked.params * base.bytes_per_param) if asked.params else 0.0
    if share > 0.0:
        ways.append(f"at most {share:.0%} of its rank")
    tokens = _most_tokens(base, rows)
    if tokens >= 16:
        ways.append(f"rows of at most {tokens} tokens")
    ways.append(f"a device with {needed / GIB:.1f} GiB to use")
    return f"Use {', or '.join(ways)}."


def _most_tokens(base: BaseOnDevice, room: int) -> int:
    """Return the tokens of the longest row that fits."""
    low, high = 0, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if base.recompute.of(middle) <= room else (low, middle)
    return low


def _bytes(base: BaseOnDevice, params: int, row_tokens: int) -> int:
    return base.fixed_bytes + round(params * base.bytes_per_param) + base.recompute.of(row_tokens)
