"""Seats: the devices, and the groups of equal ones that can carry one pack together."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slidepack.daemon.planner.cost import StepCost
from slidepack.daemon.planner.tasks import BaseOnDevice, Device

__all__ = ["Seat", "base_on_group", "seats_of"]

_GROUP_EFFICIENCY: Final = 0.85
"""Of each doubling: what is left of the second half after the exchange between devices."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One device, or some that work as one."""

    devices: tuple[int, ...]
    """Their places in the list of devices."""
    keys: tuple[str, ...]
    memory_bytes: int
    max_lanes: int
    free_from: float
    bases: dict[str, BaseOnDevice]

    @property
    def degree(self) -> int:
        """How many devices it is."""
        return len(self.devices)


def seats_of(devices: Sequence[Device], degrees: Sequence[int]) -> list[Seat]:
    """Return the single devices, then the groups of each degree: neighbours of one kind."""
    seats = [_seat(devices, (index,)) for index in range(len(devices))]
    kinds: dict[str, list[int]] = {}
    for index, device in enumerate(devices):
        if device.kind:
            kinds.setdefault(device.kind, []).append(index)
    for degree in sorted(set(degrees) - {1}):
        for members in kinds.values():
            for start in range(0, len(members) - degree + 1, degree):
                seats.append(_seat(devices, tuple(members[start : start + degree])))
    return seats


def _seat(devices: Sequence[Device], members: tuple[int, ...]) -> Seat:
    chosen = [devices[index] for index in members]
    first, degree = chosen[0], len(members)
    shared = set.intersection(*(set(device.bases) for device in chosen))
    limits = [device.max_lanes for device in chosen if device.max_lanes]
    return Seat(
        devices=members,
        keys=tuple(device.key for device in chosen),
        memory_bytes=degree * min(device.memory_bytes for device in chosen),
        max_lanes=min(limits, default=0),
        free_from=max(device.free_from for device in chosen),
        bases={
            model: base_on_group(base, degree)
            for model, base in first.bases.items()
            if model in shared
        },
    )


def base_on_group(base: BaseOnDevice, degree: int) -> BaseOnDevice:
    """Return how a base trains on so many devices at once: split, at a loss for each doubling."""
    if degree == 1:
        return base
    speed = degree * _GROUP_EFFICIENCY ** (degree.bit_length() - 1)
    cost = base.cost
    return msgspec.structs.replace(
        base,
        # Each device still launches every operation, on less work.
        cost=StepCost(
            floor_seconds=cost.floor_seconds,
            token_seconds=cost.token_seconds / speed,
            fixed_tokens=cost.fixed_tokens * speed,
            lane_seconds=cost.lane_seconds,
        ),
        fixed_bytes=base.fixed_bytes + (degree - 1) * base.bytes_each,
    )
