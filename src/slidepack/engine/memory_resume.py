"""The plan of a full fine-tuning that goes on: what lies on drives is decided anew. Torch-free.

Its results depend on the kind of device, the precision, the threads, the micro-batches and the form
of the moments, which stay. Where the state lies decides nothing, and any of it is read from any
checkpoint; so a drive that is full, or dead, need not be waited for.
"""

import msgspec

from slidepack.engine.contract.job import FullMethod, JobSpec
from slidepack.engine.contract.plan import FullPlan, Residency, RunPlan
from slidepack.engine.memory_full_need import full_need, unit_sizes
from slidepack.engine.memory_nvme import Placement
from slidepack.engine.memory_nvme_text import (
    check_drives,
    drives_refused,
    not_on_drives,
    tier_text,
    with_rating,
)
from slidepack.engine.memory_parts import GIB, Machine, MemoryNeed, too_small, usable_bytes
from slidepack.engine.shape import ModelShape

__all__ = ["place_again"]


def place_again(earlier: RunPlan, spec: JobSpec, shape: ModelShape, machine: Machine) -> RunPlan:
    """Return an earlier plan with as little on drives as lets it fit now.

    Args:
        earlier: of the attempt that is gone on from, on a device of this kind.
        spec: of the job that goes on.
        shape: sizes.
        machine: what is free now.

    Raises:
        SlidepackError: RAM-TOO-SMALL, DISK-FULL or RUN-SPEC-INVALID: as `plan_full` does.
    """
    full, method = earlier.full, spec.method
    assert full is not None
    assert isinstance(method, FullMethod)
    on_cpu, micro = machine.device == "cpu", earlier.micro_batch_tokens
    folders = method.nvme.folders or (machine.nvme.folders if machine.nvme else ())
    placement = Placement(shape, method.nvme, folders, on_cpu=on_cpu)
    refused = drives_refused(method.nvme, machine.nvme)
    if refused and placement.is_asked:
        raise not_on_drives(refused)

    def need_of(placed: FullPlan) -> MemoryNeed:
        return full_need(shape, placed, micro, clip=spec.optim.clip_norm > 0.0, on_cpu=on_cpu)

    def fits(placed: FullPlan) -> bool:
        return need_of(placed).host_bytes <= usable_bytes(machine.ram_available_bytes)

    plain = msgspec.structs.replace(full, nvme=None)
    if method.nvme.rows:
        plain = msgspec.structs.replace(plain, rows="host")
    asked = placement.asked(plain, micro)
    placed = asked if fits(asked) else None
    if placed is None and not refused:
        placed = placement.smallest(plain, micro, fits)
    if placed is None:
        needed, fix = need_of(asked).host_bytes, "Close other programs."
        if refused:
            fix = f"Close other programs; its state could go to an NVMe drive, but {refused}."
        raise too_small(True, needed, machine.ram_available_bytes, fix)
    need = need_of(placed)
    check_drives(need, folders, machine.nvme)
    return _as_run(earlier, shape, machine, with_rating(placed, machine.nvme), need)


def _as_run(
    earlier: RunPlan, shape: ModelShape, machine: Machine, full: FullPlan, need: MemoryNeed
) -> RunPlan:
    layers = shape.num_layers
    home: Residency = "device" if full.weights == "resident" else "host"
    on_drives = full.nvme.master if full.nvme else ()
    moments = len(full.nvme.moments) if full.nvme else 0
    return msgspec.structs.replace(
        earlier,
        device=machine.device,
        layer_weights=tuple("nvme" if layer in on_drives else home for layer in range(layers)),
        layer_activations=("recompute" if full.rows == "device" else "offload",) * layers,
        optimizer_state="nvme" if moments == len(unit_sizes(shape)) else "host",
        predicted_device_bytes=need.device_bytes,
        predicted_host_bytes=need.host_bytes,
        predicted_disk_bytes=need.disk_bytes,
        reason=_reason(earlier, shape, machine, full, need),
        full=full,
    )


def _reason(
    earlier: RunPlan, shape: ModelShape, machine: Machine, full: FullPlan, need: MemoryNeed
) -> str:
    ram = f"{need.host_bytes / GIB:.1f} of {machine.ram_available_bytes / GIB:.1f} GiB free"
    where = f"all of its state is in RAM ({ram})"
    if full.nvme is not None:
        told = tier_text(shape, full, full.nvme, on_cpu=machine.device == "cpu")
        where = f"its state is in RAM ({ram}) and on drives; {told}"
    return (
        f"It goes on in {earlier.precision} with the micro-batches of at most "
        f"{earlier.micro_batch_tokens} tokens and the {full.moments} moments that it began with; "
        f"{where}."
    )
