"""The residency planner of full fine-tuning: what lives where, and why. Torch-free.

What slides needs a window on the card, whatever the batch: a step is cut into micro-batches, and
the inputs of the layers go to host memory where they would take too much of the card.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod, JobSpec
from slidepack.engine.contract.plan import FullPlan, Residency, RunPlan
from slidepack.engine.memory_full_need import (
    Moments,
    end_sizes,
    engine_for,
    full_need,
    unit_sizes,
)
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

__all__ = ["FEWEST_SLOTS", "MOMENT_FORMATS", "SLOTS", "plan_full"]

MOMENT_FORMATS: Final[tuple[Moments, ...]] = ("fp32", "bf16", "int8")
"""Most precise first."""

_MICRO_TOKENS: Final = 8192
"""Tokens of a micro-batch where they fit: more make no product faster, and take more memory."""
_SMALL_MICRO_TOKENS: Final = 1024
"""Below this the products get slow; a smaller window is the better way out until here."""
SLOTS: Final = ((5, 4), (4, 3), (3, 2))
"""Layers' weights and gradients on the card: enough that passes, copies and updates overlap."""
FEWEST_SLOTS: Final = ((2, 2), (2, 1))
_FEWEST_HOST_GRAD_SLOTS: Final = 2
_MOST_HOST_GRAD_SLOTS: Final = 6
_HOST_GRAD_BYTES: Final = 4_000_000_000
"""Most RAM for gradients on their way to the CPU; the ends', where it has them, are large."""
_CPU_SLOTS: Final = (1, 1)
"""Where the passes run on the CPU: no copy takes time, so nothing is ahead of anything."""
_ROWS_SHARE: Final = 0.25
"""Of the usable VRAM, above which the inputs of the layers go to host memory."""
_RESIDENT_SHARE: Final = 0.5
"""Of the usable VRAM, up to which all layers stay on the card."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """What is to be planned."""

    shape: ModelShape
    method: FullMethod
    machine: Machine
    clip: bool
    longest: int
    """Most tokens of a row."""
    whole_step: int
    """Most tokens of a step."""
    placement: Placement
    """What may go to drives."""

    @property
    def on_cpu(self) -> bool:
        return self.machine.device == "cpu"

    @property
    def engine(self) -> Literal["cpu", "gpu", "auto"]:
        return "cpu" if self.on_cpu else self.method.optimizer_engine

    @property
    def wanted(self) -> tuple[Moments, ...]:
        asked = self.method.moments
        return MOMENT_FORMATS if asked == "auto" else (asked,)

    def need(self, full: FullPlan, micro: int) -> MemoryNeed:
        return full_need(self.shape, full, micro, clip=self.clip, on_cpu=self.on_cpu)

    def fits_device(self, need: MemoryNeed, share: float = 1.0) -> bool:
        usable = usable_bytes(self.machine.device_free_bytes)
        return self.on_cpu or need.device_bytes <= share * usable

    def fits_host(self, need: MemoryNeed) -> bool:
        return need.host_bytes <= usable_bytes(self.machine.ram_available_bytes)

    def placed(self, full: FullPlan, micro: int, *, spill: bool) -> FullPlan | None:
        """Return a plan that fits the RAM; None where this one cannot.

        Args:
            full: the plan with nothing on drives.
            micro: most tokens of a micro-batch.
            spill: more may go to drives than the job asks for.
        """

        def fits(placed: FullPlan) -> bool:
            return self.fits_host(self.need(placed, micro))

        if spill:
            return self.placement.smallest(full, micro, fits)
        asked = self.placement.asked(full, micro)
        return asked if fits(asked) else None


def plan_full(spec: JobSpec, shape: ModelShape, machine: Machine) -> tuple[RunPlan, MemoryNeed]:
    """Decide how a full fine-tuning uses the machine, or say why it cannot.

    Raises:
        SlidepackError: RAM-TOO-SMALL or GPU-OUT-OF-MEMORY, with the figures and what helps.
    """
    case = _case(spec, shape, machine)
    refused = drives_refused(case.method.nvme, machine.nvme)
    if refused and case.placement.is_asked:
        raise not_on_drives(refused)
    on_device = False
    for spill, moments in _ways(case, spill=not refused):
        for full, micro in _layouts(case, moments):
            on_device = True
            placed = case.placed(full, micro, spill=spill)
            if placed is None:
                continue
            need = case.need(placed, micro)
            check_drives(need, case.placement.folders, machine.nvme)
            placed = with_rating(placed, machine.nvme)
            return _run_plan(case, placed, micro, need, _reason(case, placed, micro, need)), need
    if on_device or case.on_cpu:
        raise _ram_too_small(case, refused)
    raise _vram_too_small(case)


def _case(spec: JobSpec, shape: ModelShape, machine: Machine) -> _Case:
    method = spec.method
    assert isinstance(method, FullMethod)
    longest = min(spec.max_seq_len, shape.max_positions)
    folders = method.nvme.folders or (machine.nvme.folders if machine.nvme else ())
    return _Case(
        shape=shape,
        method=method,
        machine=machine,
        clip=spec.optim.clip_norm > 0.0,
        longest=longest,
        whole_step=spec.batch_size * longest,
        placement=Placement(shape, method.nvme, folders, on_cpu=machine.device == "cpu"),
    )


def _ways(case: _Case, *, spill: bool) -> Iterator[tuple[bool, Moments]]:
    """Yield whether state may spill to drives, and the form of the moments, the best way first.

    What spills is the smallest form: more precise moments would be read and written for longer.
    """
    yield from ((False, moments) for moments in case.wanted)
    if spill:
        yield True, case.wanted[-1]


def _layouts(case: _Case, moments: Moments) -> Iterator[tuple[FullPlan, int]]:
    """Yield what fits the card, best first; host memory is for the caller to check."""
    if case.on_cpu:
        rows: Literal["device", "host"] = "host" if case.method.nvme.rows else "device"
        for micro in _micro_sizes(case):
            full = _full(case, moments, "resident", _CPU_SLOTS, rows, _FEWEST_HOST_GRAD_SLOTS)
            yield full, micro
        return
    for host_slots in _host_grad_slots(case):
        # Of host memory, smaller windows take as much.
        places = list(_places_of_rows(case))
        for slots, micro in _windows(case):
            for rows in list(places):
                full = _full(case, moments, "slide", slots, rows, host_slots)
                if case.fits_device(case.need(full, micro)):
                    places.remove(rows)
                    yield _resident_if_small(case, full, micro), micro


def _full(
    case: _Case,
    moments: Moments,
    weights: Literal["slide", "resident"],
    slots: tuple[int, int],
    rows: Literal["device", "host"],
    host_slots: int,
) -> FullPlan:
    return FullPlan(
        weights=weights,
        weight_slots=case.shape.num_layers if weights == "resident" else slots[0],
        grad_slots=slots[1],
        host_grad_slots=host_slots,
        engine=engine_for(case.engine, moments),
        rows=rows,
        moments=moments,
        max_tokens=case.whole_step,
        longest_row=case.longest,
    )


def _resident_if_small(case: _Case, full: FullPlan, micro: int) -> FullPlan:
    resident = msgspec.structs.replace(full, weights="resident", weight_slots=case.shape.num_layers)
    small = case.fits_device(case.need(resident, micro), share=_RESIDENT_SHARE)
    return resident if small else full


def _places_of_rows(case: _Case) -> tuple[Literal["device", "host"], ...]:
    """Return where the inputs of the layers may be, the better place first."""
    rows = (case.shape.num_layers + 1) * case.whole_step * case.shape.hidden * 2
    if case.method.nvme.rows:
        return ("host",)
    few = rows <= _ROWS_SHARE * usable_bytes(case.machine.device_free_bytes)
    return ("device", "host") if few else ("host", "device")


def _host_grad_slots(case: _Case) -> tuple[int, int]:
    """Return how many gradients may wait for the CPU, where the RAM has room, and at least."""
    largest = 2 * case.shape.layer_params
    if case.engine == "cpu":
        largest = max(largest, 4 * max(end_sizes(case.shape)))
    most = min(_MOST_HOST_GRAD_SLOTS, _HOST_GRAD_BYTES // largest)
    return max(_FEWEST_HOST_GRAD_SLOTS, most), _FEWEST_HOST_GRAD_SLOTS


def _micro_sizes(case: _Case) -> list[int]:
    """Return micro-batches to try, the largest first; none is smaller than a row."""
    sizes = [min(case.whole_step, max(case.longest, _MICRO_TOKENS))]
    while sizes[-1] > case.longest:
        sizes.append(max(case.longest, sizes[-1] // 2))
    return sizes


def _windows(case: _Case) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield slots and micro-batches to try, the best first."""
    sizes = _micro_sizes(case)
    for micro in sizes:
        if micro >= _SMALL_MICRO_TOKENS or micro == sizes[0]:
            yield from ((slots, micro) for slots in SLOTS)
    for micro in sizes:
        yield from ((slots, micro) for slots in (*SLOTS, *FEWEST_SLOTS))


def _run_plan(case: _Case, full: FullPlan, micro: int, need: MemoryNeed, reason: str) -> RunPlan:
    layers = case.shape.num_layers
    home: Residency = "device" if full.weights == "resident" else "host"
    on_drives = full.nvme.master if full.nvme else ()
    moments = len(full.nvme.moments) if full.nvme else 0
    return RunPlan(
        device=case.machine.device,
        precision="fp32" if case.on_cpu else "bf16",
        layer_weights=tuple("nvme" if layer in on_drives else home for layer in range(layers)),
        layer_activations=("recompute" if full.rows == "device" else "offload",) * layers,
        optimizer_state="nvme" if moments == len(unit_sizes(case.shape)) else "host",
        cpu_threads=case.machine.cpu_threads,
        micro_batch_tokens=micro,
        predicted_device_bytes=need.device_bytes,
        predicted_host_bytes=need.host_bytes,
        predicted_disk_bytes=need.disk_bytes,
        reason=reason,
        full=full,
    )


def _reason(case: _Case, full: FullPlan, micro: int, need: MemoryNeed) -> str:
    ram = f"{need.host_bytes / GIB:.1f} of {case.machine.ram_available_bytes / GIB:.1f} GiB"
    vram = f"{need.device_bytes / GIB:.1f} of {case.machine.device_free_bytes / GIB:.1f} GiB"
    said = []
    if case.on_cpu:
        said.append(f"The whole model trains on the CPU, in fp32 ({ram} free RAM)")
    elif full.weights == "resident":
        said.append(f"All {case.shape.num_layers} layers stay on the card ({vram} free VRAM)")
    else:
        said.append(
            f"A window of {full.weight_slots} of {case.shape.num_layers} layers slides over the "
            f"card ({vram} free VRAM)"
        )
    held = f"master weights and {full.moments} moments"
    where = "in RAM" if full.nvme is None else "in RAM and on drives"
    said.append(f"the {held} are {where}" + ("" if case.on_cpu else f" ({ram} free)"))
    if full.moments != case.wanted[0]:
        said[-1] += f", as {case.wanted[0]} moments would not fit"
    if micro < case.whole_step:
        said.append(f"a step's {case.whole_step} tokens pass in parts of at most {micro}")
    kept = "stay on the card" if full.rows == "device" and not case.on_cpu else "wait in RAM"
    said.append(f"layers are recomputed in the backward pass, and their inputs {kept}")
    if full.nvme is not None:
        said.append(tier_text(case.shape, full, full.nvme, on_cpu=case.on_cpu))
    if case.clip:
        said.append("gradients wait in RAM for the norm that clipping needs")
    if case.on_cpu and case.method.optimizer_engine == "gpu":
        said.append("the CPU updates the weights, as there is no card to do it")
    return "; ".join(said) + "."


def _vram_too_small(case: _Case) -> SlidepackError:
    """Return the refusal of a job whose longest row does not pass through the card."""
    full = _full(case, case.wanted[-1], "slide", FEWEST_SLOTS[-1], "host", _FEWEST_HOST_GRAD_SLOTS)
    need = case.need(full, case.longest)
    return too_small(
        False,
        need.device_bytes,
        case.machine.device_free_bytes,
        f"Choose a smaller model, rows shorter than {case.longest} tokens (max_seq_len), or close "
        "other programs.",
    )


def _ram_too_small(case: _Case, drives: str) -> SlidepackError:
    """Return the refusal of a job whose state does not fit the RAM, and what would."""
    fewest = {
        moments: min(needs, key=lambda need: need.host_bytes)
        for moments in MOMENT_FORMATS
        if (needs := [case.need(full, micro) for full, micro in _layouts(case, moments)])
    }
    asked = fewest[case.wanted[-1]]
    fits = [moments for moments, need in fewest.items() if case.fits_host(need)]
    ways = [f"{asked.host_bytes / usable_bytes(GIB):.1f} GiB of free RAM would do"]
    if fits:
        held = fewest[fits[0]].host_bytes / GIB
        ways.append(f'moments = "{fits[0]}" would take {held:.1f} GiB and fit')
    waiting = asked.host.get("gradients that wait for the global norm", 0)
    if waiting:
        ways.append(f"clip_norm = 0 saves {waiting / GIB:.1f} GiB")
    if drives:
        ways.append(f"state could go to an NVMe drive, but {drives}")
    return too_small(
        True,
        asked.host_bytes,
        case.machine.ram_available_bytes,
        f"{'; '.join(ways)}; or choose a smaller model, batch size or max_seq_len.",
    )
