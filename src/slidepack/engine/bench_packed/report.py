"""The measurement as JSON: every ratio is of figures of the same run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import triton

from slidepack.engine.bench_packed.base import BaseBytes
from slidepack.engine.bench_packed.ceiling import CeilingResult
from slidepack.engine.bench_packed.crossover import LEAST_GAIN, find_crossover
from slidepack.engine.bench_packed.device import measured_dtype
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.packs import PackResult
from slidepack.engine.bench_packed.peft_process import PeftResult
from slidepack.engine.bench_packed.predict import compared, predict
from slidepack.engine.bench_packed.slides import ResidentResult
from slidepack.engine.bench_packed.steps import StepTimes
from slidepack.engine.contract.job import LORA_TARGETS
from slidepack.engine.rates import Rates
from slidepack.engine.resident_memory import known_peak_resident_bytes

__all__ = ["OurResults", "report"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OurResults:
    """What this engine took."""

    attention: str
    """The path of the attention."""
    base_bytes: BaseBytes
    packs: Sequence[PackResult]
    """Fewest lanes first."""
    residents: Sequence[ResidentResult]
    """One for each pack whose base slid."""
    ceilings: Sequence[CeilingResult]
    """One for each size of a pass; none where it was not asked for."""
    rates: Rates
    """That predictions are made with."""


def report(
    options: PackedOptions, device: torch.device, ours: OurResults, peft: PeftResult
) -> dict[str, Any]:
    """Put the results together.

    Returns:
        Settings, `packs` (a row a number of lanes), and what they are held against: `one_by_one`,
        `peft` and `ceiling`, then `crossover`. Each pack has what was `predicted` for it, and where
        its base slid, `resident`: the same lanes over a resident one. What was not measured is
        None.
    """
    solo = next((pack for pack in ours.packs if pack.lanes == 1), None)
    rates = _Rates(
        solo=None if solo is None else _rate(options, solo),
        peft=None if peft.answer is None else _per_second(options, 1, peft.answer.times),
        ceilings={each.tokens: each.times for each in ours.ceilings},
    )
    residents = {
        pack.lanes: resident for pack, resident in zip(ours.packs, ours.residents, strict=False)
    }
    on_cpu = device.type == "cpu"
    points = [(pack.lanes, _rate(options, pack)) for pack in ours.packs]
    crossover = find_crossover(points)
    return {
        **_settings(options, device, ours),
        "packs": [
            {
                **_pack(options, pack, rates),
                **_resident(options, pack, residents.get(pack.lanes)),
                **compared(pack, predict(options, pack, ours.rates, on_cpu=on_cpu)),
            }
            for pack in ours.packs
            if pack.lanes in options.lanes
        ],
        "one_by_one": None if solo is None else _one_by_one(options, solo),
        "peft": _peft(options, peft),
        "ceiling": _ceiling(ours.ceilings),
        "crossover": {
            "lanes": crossover.lanes,
            "least_gain": LEAST_GAIN,
            "text": crossover.text,
        },
        "host_peak_bytes": known_peak_resident_bytes(),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rates:
    """What packs are held against, in tokens a second; passes of the ceiling by their tokens."""

    solo: float | None
    peft: float | None
    ceilings: Mapping[int, StepTimes | None]

    def ceiling(self, passes: Sequence[int]) -> float | None:
        """Return the ceiling's rate over the same passes."""
        seconds = 0.0
        for tokens in passes:
            times = self.ceilings.get(tokens)
            if times is None:
                return None
            seconds += times.median_seconds
        return sum(passes) / seconds


def _settings(options: PackedOptions, device: torch.device, ours: OurResults) -> dict[str, Any]:
    shape = options.model_shape
    return {
        "shape": options.shape,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "precision": _name(measured_dtype(device)),
        "threads": torch.get_num_threads(),
        "attention": ours.attention,
        "parameters": shape.total_params,
        "trainable_parameters_per_lane": shape.lora_params(options.rank, LORA_TARGETS),
        "batch": options.batch,
        "seq": options.seq,
        "rank": options.rank,
        "alpha": options.alpha,
        "base": options.base,
        "base_device_bytes": ours.base_bytes.device,
        "base_host_bytes": ours.base_bytes.host,
        "slides": options.slide,
        "activations": options.policy,
        "max_tokens": options.max_tokens,
        "vram_cap_gb": options.vram_cap_gb,
        "warm_up_steps": options.warm_up,
        "steps": options.steps,
        "rates": msgspec.to_builtins(ours.rates),
    }


def _pack(options: PackedOptions, pack: PackResult, rates: _Rates) -> dict[str, Any]:
    rate, ceiling = _rate(options, pack), rates.ceiling(pack.passes)
    return {
        "lanes": pack.lanes,
        "tokens": options.step_tokens(pack.lanes),
        "pass_tokens": list(pack.passes),
        **_timing(pack.times),
        "tokens_per_second": rate,
        "tokens_per_second_per_lane": rate / pack.lanes,
        "gain_over_one_by_one": _ratio(rate, rates.solo),
        "gain_over_peft": _ratio(rate, rates.peft),
        "ceiling_tokens_per_second": ceiling,
        "share_of_ceiling": _ratio(rate, ceiling),
        **_memory(pack.times),
        "join_peak_device_bytes": pack.join_peak_bytes,
        "lane_state_bytes": pack.lane_state_bytes,
        "host_peak_bytes": pack.host_peak_bytes,
        "slide": None
        if pack.slide is None
        else {**msgspec.to_builtins(pack.slide), "pass_limit": pack.pass_limit},
        "loss": pack.loss,
        "applied": pack.applied,
    }


def _resident(
    options: PackedOptions, pack: PackResult, resident: ResidentResult | None
) -> dict[str, Any]:
    """Return the same lanes over a resident base."""
    if resident is None or resident.pack is None:
        why = None if resident is None else {"why": resident.why}
        return {"resident_tokens_per_second": None, "share_of_resident": None, "resident": why}
    rate = _rate(options, resident.pack)
    return {
        "resident_tokens_per_second": rate,
        "share_of_resident": _rate(options, pack) / rate,
        "resident": {
            **_timing(resident.pack.times),
            **_memory(resident.pack.times),
            "pass_tokens": list(resident.pack.passes),
            "loss": resident.pack.loss,
            "why": None,
        },
    }


def _one_by_one(options: PackedOptions, solo: PackResult) -> dict[str, Any]:
    return {
        **_timing(solo.times),
        "tokens_per_second": _rate(options, solo),
        **_memory(solo.times),
        "note": "lanes that run one after the other have the tokens a second of one lane alone, "
        "however many they are",
    }


def _peft(options: PackedOptions, peft: PeftResult) -> dict[str, Any]:
    answer = peft.answer
    if answer is None:
        return {"tokens_per_second": None, "why": peft.why}
    return {
        **_timing(answer.times),
        "tokens_per_second": _per_second(options, 1, answer.times),
        **_memory(answer.times),
        "host_peak_bytes": answer.host_peak_bytes,
        "trainable_parameters": answer.trainable_params,
        "adapter_precision": answer.adapter_precision,
        "loss": answer.loss,
        "versions": answer.versions,
        "why": None,
    }


def _ceiling(ceilings: Sequence[CeilingResult]) -> dict[str, Any]:
    """Return the passes, smallest first, and the rate of the largest."""
    passes = [
        {"tokens": each.tokens, "tokens_per_second": None, "why": each.why}
        if each.times is None
        else {
            "tokens": each.tokens,
            **_timing(each.times, of="pass"),
            "tokens_per_second": each.tokens / each.times.median_seconds,
            **_memory(each.times),
            "why": None,
        }
        for each in ceilings
    ]
    largest = passes[-1]["tokens_per_second"] if passes else None
    return {"tokens_per_second": largest, "passes": passes}


def _timing(times: StepTimes, of: str = "step") -> dict[str, Any]:
    return {
        f"{of}_seconds": list(times.step_seconds),
        f"median_{of}_seconds": times.median_seconds,
    }


def _memory(times: StepTimes) -> dict[str, Any]:
    return {
        "device_peak_bytes": times.device_peak_bytes,
        "device_reserved_bytes": times.device_reserved_bytes,
    }


def _rate(options: PackedOptions, pack: PackResult) -> float:
    return _per_second(options, pack.lanes, pack.times)


def _per_second(options: PackedOptions, lanes: int, times: StepTimes) -> float:
    return options.step_tokens(lanes) / times.median_seconds


def _ratio(rate: float, other: float | None) -> float | None:
    return None if other is None else rate / other


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
