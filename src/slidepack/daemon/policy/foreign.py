"""Who else uses the cards. Pure: what the drivers said is given, nothing is asked.

Where the driver says which process holds what, others' use is a sum. Where it does not (WSL,
Windows drivers, MIG, a container that sees no pids), it is what the card holds in all, less what
it holds while it is idle, less what our own run is planned to take.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from slidepack.daemon.policy.gpu_sample import GpuSample, card_key, card_name
from slidepack.daemon.policy.holding import Reason
from slidepack.daemon.policy.patterns import NamePatterns
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.probe.gpu import Gpu, GpuProcess

_MB: Final = 1e6
_GB: Final = 1e9
_DESKTOP_BYTES: Final = 3 * _GB
"""The most that an idle card is believed to hold: a game may run when it is first looked at."""
_PLAN_SLACK: Final = 1.1
_CONTEXT_BYTES: Final = 1.5 * _GB
"""What a run takes beyond its plan: the driver's context, libraries, fragments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnUse:
    """What of the cards' use is ours."""

    is_ours: Callable[[int], bool]
    """Whether a process is a worker of ours or was one a moment ago."""
    running: bool
    """Whether a worker of ours runs."""
    settling: bool
    """Whether one started or ended a moment ago, so that totals still tell of the time before."""
    planned_vram_bytes: int | None
    """What our run takes of the card by its plan; None where nobody knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignUse:
    """What others have of one card."""

    gpu: Gpu
    vram_bytes: float
    vram_by: tuple[str, ...]
    """Who holds it, the biggest first; empty where the driver does not say."""
    percent: float
    busy: tuple[str, ...]
    """Who takes its time, the busiest first; empty where the driver does not say."""


def foreign_use(
    gpu: Gpu,
    before: Gpu | None,
    seconds: float,
    own: OwnUse,
    ignored: NamePatterns,
    baseline: float | None,
) -> ForeignUse:
    """Return what others have of a card.

    Args:
        gpu: the card now.
        before: the same card at the last look, for processes whose GPU time is a counter.
        seconds: between the two.
        own: what is ours.
        ignored: names whose use never counts.
        baseline: bytes that it holds while idle, beyond what processes are known to hold.
    """
    others = [p for p in gpu.processes if _named(p) and not own.is_ours(p.pid)]
    counted = [p for p in others if not ignored.match(p.name)]
    holders = sorted((p for p in counted if p.used_bytes), key=lambda p: -(p.used_bytes or 0))
    held = sum(p.used_bytes or 0 for p in holders)
    untold = _untold_bytes(gpu, own, baseline)
    shares = _shares(gpu, before, seconds)
    busy = sorted((p for p in counted if shares.get(p.pid, 0.0) > 0), key=lambda p: -shares[p.pid])
    percent = min(sum(shares[p.pid] for p in busy), 100.0)
    if not shares and not own.running and not own.settling:
        percent = float(gpu.utilisation_percent or 0)
    return ForeignUse(
        gpu=gpu,
        vram_bytes=held + untold,
        vram_by=tuple(p.name for p in holders) if held >= untold else (),
        percent=percent,
        busy=tuple(p.name for p in busy),
    )


def idle_bytes(gpu: Gpu, before: float | None) -> float | None:
    """Return what a card holds while nothing of ours runs, beyond what processes hold.

    The least of all looks counts, so that a game that ran at the first look is no part of it.
    """
    unclaimed = _unclaimed(gpu, lambda _pid: False)
    if unclaimed is None:
        return before
    unclaimed = min(unclaimed, _DESKTOP_BYTES)
    return unclaimed if before is None else min(before, unclaimed)


def vram_and_load_reasons(use: ForeignUse, policy: Policy) -> list[Reason]:
    """Return what others' use of a card says against training."""
    reasons = []
    card = card_name(use.gpu)
    limit = policy.foreign_vram_mb * _MB
    if limit and use.vram_bytes > limit:
        amount = f"{use.vram_bytes / _GB:.1f} GB of {card}"
        who, many = _who(use.vram_by)
        reasons.append(
            Reason(
                "foreign-vram",
                text=f"{who} {'hold' if many else 'holds'} {amount}",
                past=f"{who} held {amount}",
            )
        )
    if policy.foreign_gpu_percent and use.percent > policy.foreign_gpu_percent:
        amount = f"{use.percent:.0f}% of the time of {card}"
        who, many = _who(use.busy)
        reasons.append(
            Reason(
                "foreign-load",
                text=f"{who} {'take' if many else 'takes'} {amount}",
                past=f"{who} took {amount}",
            )
        )
    return reasons


def hot_cards(gpus: tuple[Gpu, ...], policy: Policy, hot_before: frozenset[str]) -> frozenset[str]:
    """Return the keys of the cards that are too hot, or were and have not cooled down yet."""
    if not policy.max_gpu_celsius:
        return frozenset()
    cooled = policy.max_gpu_celsius - policy.cool_by_celsius
    return frozenset(
        card_key(gpu)
        for gpu in gpus
        if gpu.temperature_celsius is not None
        and (
            gpu.temperature_celsius >= policy.max_gpu_celsius
            or (card_key(gpu) in hot_before and gpu.temperature_celsius > cooled)
        )
    )


def hot_reason(gpu: Gpu, policy: Policy) -> Reason:
    """Return what a hot card says against training."""
    cooled = policy.max_gpu_celsius - policy.cool_by_celsius
    limits = f"the limit is {policy.max_gpu_celsius:g}, and it must cool to {cooled:g}"
    return Reason(
        "hot",
        text=f"{card_name(gpu)} is at {gpu.temperature_celsius} °C; {limits}",
        past=f"{card_name(gpu)} was hotter than {policy.max_gpu_celsius:g} °C",
    )


def lost_cards(sample: GpuSample, known: Mapping[str, Gpu]) -> list[Reason]:
    """Return the cards that were there and no longer answer, as reasons to wait."""
    answering = {card_key(gpu) for gpu in sample.gpus if gpu.vram_total_bytes is not None}
    reasons = []
    for key, gpu in known.items():
        if key in answering:
            continue
        same = (now for now in sample.gpus if (now.vendor, now.index) == (gpu.vendor, gpu.index))
        said = "; ".join(problem for now in same for problem in now.problems)
        why = (said or sample.problem or "its driver no longer lists it").rstrip(".")
        name = card_name(gpu)
        reasons.append(
            Reason(
                "gpu-lost",
                text=f"{name} does not answer: {why}. See `slidepack doctor`; "
                "if you took it out, say `slidepack resume`.",
                past=f"{name} did not answer",
            )
        )
    return reasons


def _named(process: GpuProcess) -> bool:
    # One that /proc does not show may be our own, seen from outside a container.
    return bool(process.name)


def _untold_bytes(gpu: Gpu, own: OwnUse, baseline: float | None) -> float:
    """Return what somebody holds of whom the driver does not tell; 0 where that is unknown."""
    unclaimed = _unclaimed(gpu, own.is_ours)
    if unclaimed is None or baseline is None or own.settling:
        return 0.0
    if own.running and not any(own.is_ours(p.pid) and p.used_bytes for p in gpu.processes):
        if own.planned_vram_bytes is None:
            return 0.0
        unclaimed -= own.planned_vram_bytes * _PLAN_SLACK + _CONTEXT_BYTES
    return max(unclaimed - baseline, 0.0)


def _unclaimed(gpu: Gpu, is_ours: Callable[[int], bool]) -> float | None:
    if gpu.vram_total_bytes is None or gpu.vram_free_bytes is None:
        return None
    told = sum(p.used_bytes or 0 for p in gpu.processes if _named(p) or is_ours(p.pid))
    return max(gpu.vram_total_bytes - gpu.vram_free_bytes - told, 0.0)


def _shares(gpu: Gpu, before: Gpu | None, seconds: float) -> dict[int, float]:
    """Return the share of the card's time of each process, in percent, where the driver says."""
    earlier = {p.pid: p.busy_nanoseconds for p in before.processes} if before is not None else {}
    shares: dict[int, float] = {}
    for process in gpu.processes:
        then = earlier.get(process.pid)
        if process.gpu_percent is not None:
            shares[process.pid] = float(process.gpu_percent)
        elif process.busy_nanoseconds is not None and then is not None and seconds > 0:
            busy = (process.busy_nanoseconds - then) / (seconds * 1e9) * 100
            shares[process.pid] = min(max(busy, 0.0), 100.0)
    return shares


def _who(names: tuple[str, ...]) -> tuple[str, bool]:
    """Return whom to name, and whether that is more than one."""
    distinct = tuple(dict.fromkeys(names))
    if not distinct:
        return "another program", False
    if len(distinct) == 1:
        return distinct[0], False
    others = len(distinct) - 1
    return f"{distinct[0]} and {others} {'other' if others == 1 else 'others'}", True
