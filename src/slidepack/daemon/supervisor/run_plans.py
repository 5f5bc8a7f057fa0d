"""Plans runs for what is free now, or says what they wait for."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.hardware import DeviceNow, HardwareMonitor, Waiting, devices_now
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.memory import GIB, Machine, plan_run
from slidepack.engine.memory_pack import plan_pack
from slidepack.engine.memory_resume import place_again
from slidepack.engine.shape import ModelShape, read_shape

_MOST_LATER: Final = 64
"""Waiting jobs for whose adapters a pack leaves room."""
_MEMORY: Final = ("RAM-TOO-SMALL", "GPU-OUT-OF-MEMORY")


class NoRoom(Waiting, frozen=True):
    """Why drives have no room for a run's state."""


class RunPlans:
    """Knows the hardware, and what earlier attempts at a job were planned as."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        attempts: AttemptStore,
        hardware: HardwareMonitor,
        settings: Settings,
        reserved_vram_bytes: Callable[[], int],
    ) -> None:
        """Bind what plans are made from.

        Args:
            jobs: the queue.
            attempts: the tries at its jobs.
            hardware: what there is and what is free.
            settings: which devices are used.
            reserved_vram_bytes: of each card, kept free by the policy.
        """
        self._jobs = jobs
        self._attempts = attempts
        self._hardware = hardware
        self._device = settings.device
        self._exact = settings.packing == "exact"
        self._reserved_vram_bytes = reserved_vram_bytes

    def devices(self) -> list[DeviceNow] | Waiting:
        """Return the devices with what a run may use of them now.

        The policy keeps VRAM free, and workers that are starting will take their RAM soon.
        """
        found = devices_now(self._hardware.report(), whole=False, device=self._device)
        if isinstance(found, Waiting):
            return found
        reserved, promised = self._reserved_vram_bytes(), self._promised_ram()
        return [_less(device, reserved, promised) for device in found]

    def of_run(self, job: JobRecord, spec: JobSpec, device: DeviceNow) -> RunPlan | Waiting:
        """Return a plan for a worker of its own, or what is to be waited for.

        Raises:
            SlidepackError: not even a whole device would do.
        """
        earlier = self.earlier(job)
        if earlier is not None:
            return _again(earlier, spec, device)
        shape = read_shape(Path(spec.base.path))
        try:
            return plan_run(spec, shape, device.machine)
        except SlidepackError as error:
            return self._why_not_now(spec, shape, error)

    def of_pack(
        self,
        lanes: Sequence[tuple[JobRecord, JobSpec]],
        later: Sequence[JobSpec],
        device: DeviceNow,
    ) -> tuple[RunPlan, int] | Waiting:
        """Return a plan for the first of some lanes that fit together, and how many they are.

        A lane that is resumed alone keeps the plan of its last attempt where that still fits: its
        results depend on it.

        Args:
            lanes: that can begin, in the order in which they should.
            later: of jobs that may join.
            device: that is free.

        Raises:
            SlidepackError: the first would not even fit a whole device.
        """
        first, spec = lanes[0]
        earlier = self.earlier(first)
        if earlier is not None and _kind(earlier.device) != _kind(device.key):
            return Waiting(why_not_again(earlier, device.machine))
        fits = earlier is not None and not why_not_again(earlier, device.machine)
        if len(lanes) == 1 and earlier is not None and fits:
            return _moved(earlier, device), 1
        shape = read_shape(Path(spec.base.path))
        specs = [other for _, other in lanes]
        for count in range(len(specs), 0, -1):
            rest = [*specs[count:], *later][:_MOST_LATER]
            try:
                plan = plan_pack(specs[:count], rest, shape, device.machine, exact=self._exact)
                return plan, count
            except SlidepackError as error:
                refused = error
        self._require_a_device(spec, shape)
        return Waiting(f"waits for memory: {refused.report.why}")

    def earlier(self, job: JobRecord) -> RunPlan | None:
        """Return the plan of the newest attempt that left a checkpoint, or None.

        A resumed run keeps device, precision, threads and micro-batches, because its results
        depend on them; another job's checkpoint is in the form that its own plan gave it.
        """
        for job_id in (job.id, *self.ancestors(job)):
            for attempt in reversed(self._attempts.of(job_id)):
                if _folder(attempt).list_checkpoints():
                    return _folder(attempt).read_plan()
        return None

    def ancestors(self, job: JobRecord) -> Iterator[int]:
        """Yield the jobs whose checkpoints a job goes on from, the nearest first."""
        adopts = job.adopts
        while adopts is not None:
            yield adopts
            adopts = self._jobs.get(adopts).adopts

    def _promised_ram(self) -> int:
        """Return the RAM that workers will take which have not loaded their model yet."""
        starting = {job.id for job in self._jobs.live() if job.state == "starting"}
        folders = {a.nonce: _folder(a) for a in self._attempts.live() if a.job_id in starting}
        return sum(_planned_ram(folder) for folder in folders.values())

    def _why_not_now(self, spec: JobSpec, shape: ModelShape, error: SlidepackError) -> Waiting:
        """Return what is to be waited for; drives that are full get room, whatever the memory is.

        Raises:
            SlidepackError: not even a whole device would do.
        """
        try:
            self._require_a_device(spec, shape)
        except SlidepackError as refused:
            if refused.report.code != "DISK-FULL":
                raise
            error = refused
        return _waiting(error)

    def _require_a_device(self, spec: JobSpec, shape: ModelShape) -> None:
        """Check that a whole device would do for a job."""
        everything = devices_now(self._hardware.report(), whole=True, device=self._device)
        assert not isinstance(everything, Waiting)
        for number, device in enumerate(everything, 1):
            try:
                plan_run(spec, shape, device.machine)
                return
            except SlidepackError:
                if number == len(everything):
                    raise


def _again(earlier: RunPlan, spec: JobSpec, device: DeviceNow) -> RunPlan | Waiting:
    """Return the plan of a job that goes on, or what it waits for: it has too much to lose to fail.

    What was in RAM stays there, or waits for it; what was on drives goes where there is room now.
    """
    machine = device.machine
    on_drives = earlier.full is not None and earlier.full.nvme is not None
    if not on_drives or _kind(earlier.device) != _kind(device.key):
        reason = why_not_again(earlier, machine)
        return Waiting(reason) if reason else _moved(earlier, device)
    shape = read_shape(Path(spec.base.path))
    try:
        plan = place_again(earlier, spec, shape, machine)
    except SlidepackError as error:
        return _waiting(error)
    reason = why_not_again(plan, machine)
    return Waiting(reason) if reason else plan


def _waiting(error: SlidepackError) -> Waiting:
    report = error.report
    if report.code == "DISK-FULL":
        return NoRoom(f"waits for room: {report.why}. {report.fix}")
    if report.code in _MEMORY:
        return Waiting(f"waits for memory: {report.why}")
    return Waiting(f"waits: {report.what} {report.why}. {report.fix}")


def why_not_again(plan: RunPlan, machine: Machine) -> str:
    """Return why an earlier plan cannot run on this machine now, or an empty string."""
    if _kind(plan.device) != _kind(machine.device):
        return f"waits for {plan.device}, on which it began; this machine offers {machine.device}"
    wanted = [("RAM", plan.predicted_host_bytes, machine.ram_available_bytes)]
    if plan.device != "cpu":
        wanted.append(("VRAM", plan.predicted_device_bytes, machine.device_free_bytes))
    for what, needed, free in wanted:
        if needed > free:
            sizes = f"{needed / GIB:.1f} GiB needed, {free / GIB:.1f} GiB free"
            return f"waits for memory ({what}): {sizes}"
    return ""


def _kind(device: str) -> str:
    """Return `cpu` or `cuda`: another card of the machine will do as well."""
    return device.partition(":")[0]


def _moved(plan: RunPlan, device: DeviceNow) -> RunPlan:
    return msgspec.structs.replace(plan, device=device.key)


def _less(device: DeviceNow, vram: int, ram: int) -> DeviceNow:
    machine = device.machine
    left = msgspec.structs.replace(
        machine,
        device_free_bytes=max(0, machine.device_free_bytes - vram),
        ram_available_bytes=max(0, machine.ram_available_bytes - ram),
    )
    return msgspec.structs.replace(device, machine=left)


def _folder(attempt: AttemptRecord) -> RunFolder:
    return RunFolder(Path(attempt.folder))


def _planned_ram(folder: RunFolder) -> int:
    try:
        return folder.read_plan().predicted_host_bytes
    except SlidepackError:
        # Its worker says what is wrong with its folder, and takes no memory.
        return 0
