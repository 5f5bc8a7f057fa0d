"""What a plan counts for state on drives is what its run allocates and moves."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import torch
from support.full_runs import CPU, Recipe, Tier, cache_folder, family, settings_of, state_of
from support.packing import random_rows

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.job import (
    DatasetRef,
    FullMethod,
    JobSpec,
    ModelRef,
    NvmeUse,
    OptimSpec,
)
from slidepack.engine.contract.plan import FullPlan, NvmePlan, RunPlan
from slidepack.engine.drive_wear import copies_text
from slidepack.engine.memory import Machine, plan_in_detail, tighten
from slidepack.engine.memory_nvme import with_traffic
from slidepack.engine.memory_parts import MemoryNeed, NvmeRoom
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.nvme.files import padded
from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.sliding.build import FullSetup, build_full
from slidepack.engine.sliding.state import StateFormat
from slidepack.engine.sliding.tier_layout import TierParts, unit_layout
from slidepack.engine.sliding.tier_options import tier_options
from slidepack.engine.sliding.tier_weights import weight_pieces

ROOM = NvmeRoom(
    folders=("/mnt/fast",),
    free_bytes=20 * 10**12,
    read_bytes_per_second=3e9,
    write_bytes_per_second=2e9,
    both_bytes_per_second=5e9,
    measured=True,
    rated_write_bytes=600e12,
    rated_source="its data sheet",
    written_bytes=100e12,
)
ALL = NvmeUse(moments=1.0, master=1.0, rows=1.0)


def _spec(**method: Any) -> JobSpec:
    return JobSpec(
        name="n",
        base=ModelRef(model_id="m", path="m", content_hash="-"),
        dataset=DatasetRef(dataset_id="d", path="d", content_hash="-"),
        method=FullMethod(**method),
        optim=OptimSpec(clip_norm=0.0),
        batch_size=8,
        max_seq_len=1024,
        steps=1,
    )


def _planned(shape: str, *, vram: float = 24.0, **method: Any) -> tuple[RunPlan, MemoryNeed]:
    machine = Machine(
        device="cuda:0" if vram else "cpu",
        device_free_bytes=int(vram * 1e9),
        ram_available_bytes=300 * 10**9,
        cpu_threads=8,
        nvme=ROOM,
    )
    return plan_in_detail(_spec(**method), SHAPES[shape], machine)


def _tier(plan: RunPlan) -> NvmePlan:
    assert plan.full is not None
    assert plan.full.nvme is not None
    return plan.full.nvme


def _allocated(name: str, plan: RunPlan) -> int:
    """Return the bytes of all that what is on drives passes through, as it is allocated."""
    full, tier, shape = plan.full, _tier(plan), SHAPES[name]
    assert full is not None
    options, width = tier_options(full, shape), 2
    form = StateFormat(split=True, moments=full.moments)
    layout = unit_layout(
        shape.vocab * shape.hidden, form, TierParts(master=True, moments=True), tier.chunk_elements
    )
    assert layout is not None
    # The store has a chunk of its own, and a copy of it.
    stages = options["state_stages"] * (2 if full.engine == "auto" else 1) + 2
    _, piece = weight_pieces(shape.layer_params * width, tier.chunk_elements * width)
    rows = padded(plan.micro_batch_tokens * shape.hidden * width)
    return int(
        stages * layout.stage_bytes
        + options["weight_stages"] * piece
        + options["row_stages"] * rows
    )


@pytest.mark.parametrize(
    ("shape", "engine", "moments"),
    list(
        itertools.product(
            ["llama-8b", "smollm2-135m"], ["auto", "cpu", "gpu"], ["fp32", "bf16", "int8"]
        )
    ),
)
def test_the_ram_that_is_counted_is_what_is_allocated(
    shape: str, engine: str, moments: str
) -> None:
    plan, need = _planned(shape, optimizer_engine=engine, moments=moments, nvme=ALL)
    counted = need.host["state on its way to and from drives"]
    assert _allocated(shape, plan) == pytest.approx(counted, rel=2e-3)


@pytest.mark.parametrize("elements", [1, 4096, 8 << 20, (8 << 20) + 1, 218_112_000])
def test_pieces_hold_a_layer_and_next_to_nothing_more(elements: int) -> None:
    pieces, piece = weight_pieces(2 * elements, 2 * (8 << 20))
    assert piece % 4096 == 0
    assert 2 * elements <= pieces * piece <= 2 * elements + 2 * 4096 * pieces
    assert piece <= 2 * (8 << 20)


def test_layers_that_begin_to_slide_are_read_from_the_drive() -> None:
    plan, _ = _planned("llama-1b", vram=140.0, nvme=NvmeUse(moments=1.0, master=0.5))
    shape, tier = SHAPES["llama-1b"], _tier(plan)
    assert plan.full is not None
    assert plan.full.weights == "resident"
    smaller = tighten(plan, _spec(nvme=NvmeUse(moments=1.0, master=0.5)), shape)
    assert smaller is not None
    assert smaller.full is not None
    assert smaller.full.weights == "slide"
    read = 2 * 2 * shape.layer_params * sum(unit < shape.num_layers for unit in tier.master)
    assert _tier(smaller).step_read_bytes - tier.step_read_bytes == read
    assert _tier(smaller).step_write_bytes == tier.step_write_bytes
    on_drives = [layer for layer, home in enumerate(smaller.layer_weights) if home == "nvme"]
    assert on_drives == [unit for unit in tier.master if unit < shape.num_layers]
    assert set(smaller.layer_weights) == {"nvme", "host"}


class Calls:
    """Counts the transfers of rows."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def counted(self, name: str, move: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            if "rows" in os.readlink(f"/proc/self/fd/{descriptor}"):
                self.seen[name] += 1
            return move(descriptor, views, offset)

        return call


@pytest.mark.parametrize("batches", [4, 7, 12])
def test_rows_of_many_micro_batches_are_read_again_for_the_next_layer(batches: int) -> None:
    calls = Calls()
    model, shape = family("llama", False)
    tier = Tier(
        rows=1.0,
        transport=lambda: RingTransport(
            preadv=calls.counted("read", os.preadv), pwritev=calls.counted("write", os.pwritev)
        ),
    )
    recipe = Recipe(micro=4, rows="host", tier=tier)
    state = state_of(model, shape, recipe)
    tokens = 8
    setup = FullSetup(
        device=CPU,
        weights="slide",
        weight_slots=2,
        grad_slots=1,
        host_grad_slots=1,
        cpu_share=1.0,
        rows="host",
        max_tokens=tokens * batches,
        max_micro_tokens=tokens,
        accumulate=True,
        clip=False,
        cpu_threads=1,
        cache=cache_folder(),
        **tier.options(shape),
    )
    trainer = build_full(shape, state, setup)
    step = [
        pack_rows(random_rows((tokens,), shape.vocab, seed=seed), shape, CPU, torch.float32)
        for seed in range(batches)
    ]
    trainer.driver.train_step(step, settings_of(1, recipe), 0.0)
    trainer.close()
    state.close()
    plan = _only_rows(shape.num_layers, tokens * batches, tokens)
    moved = with_traffic(shape, plan, tokens, on_cpu=True).nvme
    assert moved is not None
    measured = calls.seen["read"] / calls.seen["write"]
    assert measured == pytest.approx(moved.step_read_bytes / moved.step_write_bytes)


def _only_rows(layers: int, tokens: int, longest: int) -> FullPlan:
    full = _planned("smollm2-135m", vram=0, nvme=NvmeUse(rows=1.0))[0].full
    assert full is not None
    assert full.nvme is not None
    return msgspec.structs.replace(
        full,
        max_tokens=tokens,
        longest_row=longest,
        nvme=msgspec.structs.replace(full.nvme, rows=tuple(range(layers))),
    )


def test_checkpoints_that_are_copies_are_told_with_the_wear() -> None:
    assert copies_text(0) == ""
    assert "Every checkpoint writes 48 GB more" in copies_text(48 * 10**9)
