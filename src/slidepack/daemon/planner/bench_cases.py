"""The benchmark's devices and queues: the search space of PLoRA's 120 configurations on rooflines.

Devices are not measured: the engine's work and memory at the share of the dense bf16 peak that
training reaches, and a launch floor a layer.
"""

import itertools
import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from slidepack.daemon.planner.cards import CARDS
from slidepack.daemon.planner.cost import StepCost
from slidepack.daemon.planner.from_engine import base_on_device, memory_to_plan
from slidepack.daemon.planner.tasks import Device, Task
from slidepack.engine.contract.job import LORA_TARGETS, LoraMethod
from slidepack.engine.memory_parts import Machine
from slidepack.engine.rates import rates_of
from slidepack.engine.shape import ModelShape, RopeShape

__all__ = [
    "LONG_ROW",
    "MIXED",
    "QWEN_3B",
    "QWEN_7B",
    "ROW_TOKENS",
    "BenchBase",
    "devices_of",
    "queue",
    "with_paper_profile",
]

_RAM_BYTES: Final = 64 << 30
_FIXED_TOKENS: Final = 128.0
"""What tiles that are not full cost, as tokens."""
_LAUNCH_SECONDS_PER_LAYER: Final = 3e-3
"""Of a step, layer by layer from Python, as the paper's engine runs it."""
_BATCHES: Final = (1, 2, 4, 8, 16, 32)
_RANKS: Final = (8, 16, 32, 64, 128)
_PAIRS: Final = ((2e-5, 0.25), (6e-5, 1.0), (2e-4, 2.0), (4e-4, 4.0))
"""Learning rates and alpha over rank: they change nothing about time and memory."""
LONG_ROW: Final = 1024
_ROWS: Final = 3668
"""MRPC's training set."""
ROW_TOKENS: Final = 70
"""Of a row of MRPC, on average: the longest allowed is 1,024, and none is near."""
_PAPER_FIXED_SAMPLES: Final = 0.986 / 0.0143
"""The paper's profile: a step of 8 samples takes 1.10 times as long as a step of one."""


class BenchBase(msgspec.Struct, frozen=True, kw_only=True):
    """A base by its shape."""

    name: str
    shape: ModelShape


def _qwen(name: str, *, tied: bool, **sizes: Any) -> BenchBase:
    shape = ModelShape(
        architecture="Qwen2ForCausalLM",
        head_dim=128,
        max_positions=32768,
        rms_eps=1e-6,
        rope=RopeShape(kind="default", theta=1e6),
        tied_head=tied,
        qkv_bias=True,
        **sizes,
    )
    return BenchBase(name=name, shape=shape)


QWEN_7B: Final = _qwen(
    "Qwen2.5-7B",
    tied=False,
    num_layers=28,
    hidden=3584,
    ffn=18944,
    num_heads=28,
    num_kv_heads=4,
    vocab=152064,
)
QWEN_3B: Final = _qwen(
    "Qwen2.5-3B",
    tied=True,
    num_layers=36,
    hidden=2048,
    ffn=11008,
    num_heads=16,
    num_kv_heads=2,
    vocab=151936,
)
MIXED: Final = ("RTX 3090", "RTX 4090", "RX 7900 XTX", "A10")


def queue(count: int, base: BenchBase, row_tokens: int, seed: int) -> list[Task]:
    """Return configurations of the search space: the grid of 120, or random ones where there are
    more."""
    grid = list(itertools.product(_BATCHES, _RANKS, _PAIRS))
    generator = random.Random(seed)
    chosen = generator.sample(grid, count) if count <= len(grid) else _random(count, generator)
    return [
        Task(
            key=f"{number}: batch {batch}, rank {rank}, alpha {rank * pair[1]:g}, lr {pair[0]:.2g}",
            model=base.name,
            steps=-(-_ROWS // batch),
            tokens=batch * row_tokens,
            most_tokens=batch * LONG_ROW,
            params=base.shape.lora_params(rank, LORA_TARGETS),
            longest=LONG_ROW,
        )
        for number, (batch, rank, pair) in enumerate(chosen)
    ]


def _random(count: int, generator: random.Random) -> list[tuple[int, int, tuple[float, float]]]:
    return [
        (
            generator.choice(_BATCHES),
            generator.choice(_RANKS),
            (generator.uniform(2e-5, 4e-4), generator.choice((0.25, 0.5, 1.0, 2.0, 4.0))),
        )
        for _ in range(count)
    ]


def devices_of(names: Sequence[str], base: BenchBase) -> list[Device]:
    """Return devices by their cards' names, ready to run a base."""
    return [_device(number, name, base) for number, name in enumerate(names)]


def _device(number: int, name: str, base: BenchBase) -> Device:
    card, layers = CARDS[name], base.shape.num_layers
    machine = Machine(
        device="cuda:0",
        device_free_bytes=card.free_bytes,
        ram_available_bytes=_RAM_BYTES,
        cpu_threads=8,
    )
    rates = msgspec.structs.replace(rates_of(name, cpu_threads=8), compute_flops=card.flops)
    predicted = base_on_device(
        LoraMethod(), base.shape, machine, rates, sequence=ROW_TOKENS, startup_seconds=0.0
    )
    assert predicted is not None
    cost = StepCost(
        floor_seconds=layers * _LAUNCH_SECONDS_PER_LAYER,
        token_seconds=predicted.cost.token_seconds,
        fixed_tokens=_FIXED_TOKENS,
        lane_seconds=predicted.cost.lane_seconds,
    )
    return Device(
        key=f"{name} {number}",
        name=name,
        kind=name,
        memory_bytes=memory_to_plan(machine),
        bases={base.name: msgspec.structs.replace(predicted, cost=cost)},
    )


def with_paper_profile(device: Device, row_tokens: int) -> Device:
    """Return the device with the growth of a step over its samples that the paper profiled."""
    bases = {}
    for model, base in device.bases.items():
        one = base.cost.seconds(row_tokens, 1)
        sample = one / (1.0 + _PAPER_FIXED_SAMPLES)
        cost = StepCost(
            floor_seconds=0.0,
            token_seconds=sample / row_tokens,
            fixed_tokens=_PAPER_FIXED_SAMPLES * row_tokens,
        )
        bases[model] = msgspec.structs.replace(base, cost=cost, recompute_slowdown=1.0)
    return msgspec.structs.replace(device, bases=bases)
