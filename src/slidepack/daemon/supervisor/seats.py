"""Who sits on which device now, and who may come."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slidepack.daemon.hardware import DeviceNow
from slidepack.daemon.store.attempts import AttemptRecord
from slidepack.daemon.store.packs import PackRecord

__all__ = ["DeviceSeat", "seats_of"]


@dataclass(slots=True)
class DeviceSeat:
    """A device, and the worker on it."""

    device: DeviceNow
    pack: PackRecord | None = None
    """The pack that runs on it; None where none does."""
    jobs: list[int] = field(default_factory=list)
    """Jobs whose worker is on it."""
    closed: str = ""
    """Why nobody may come for now, whatever is free."""

    @property
    def idle(self) -> bool:
        """Whether no worker is here."""
        return not self.jobs and self.pack is None

    @property
    def taken(self) -> str:
        """Why another worker cannot start here; empty where one can."""
        if self.jobs:
            others = f" and {len(self.jobs) - 1} others" if len(self.jobs) > 1 else ""
            return f"waits for job {self.jobs[0]}{others} to end"
        return self.closed or ("waits for a worker to end" if self.pack is not None else "")

    def takes(self, model: str) -> bool:
        """Return whether a lane over this base may join the pack here."""
        pack = self.pack
        open_pack = pack is not None and not pack.alone and bool(self.jobs)
        return open_pack and not self.closed and pack is not None and pack.model == model


def seats_of(
    devices: Sequence[DeviceNow],
    live: Iterable[AttemptRecord],
    packs: Iterable[PackRecord],
    leaving: Collection[str],
    held: Mapping[str, str],
) -> list[DeviceSeat]:
    """Return a seat for each device.

    Args:
        devices: that there are.
        live: attempts that have not ended.
        packs: that have not ended.
        leaving: nonces of workers that were asked to leave as a whole.
        held: why nobody may come to some devices, by their keys.
    """
    seats = {device.key: DeviceSeat(device, closed=held.get(device.key, "")) for device in devices}
    # What an older version began does not say where; it was the first device.
    first = devices[0].key
    for pack in packs:
        seat = seats.get(pack.device)
        if seat is not None:
            seat.pack = pack
            if pack.nonce in leaving:
                seat.closed = "waits for a worker to leave"
    for attempt in live:
        seat = seats.get(attempt.device or first)
        if seat is not None:
            seat.jobs.append(attempt.job_id)
            if attempt.nonce in leaving:
                seat.closed = f"waits for job {attempt.job_id} to end"
    return list(seats.values())
