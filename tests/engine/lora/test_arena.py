"""One lane's parameters: where they are, how they begin, how they leave as an adapter."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.lanes import lone_arena, shake, tiny_decoder

from slidepack.engine.contract.job import LORA_TARGETS, LoraMethod
from slidepack.engine.export.peft import write_peft_folder
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.model.layers import Decoder
from slidepack.engine.worker.lane_file import load_lane, save_lane

METHODS = [
    LoraMethod(rank=3),
    LoraMethod(rank=1, targets=("down_proj",)),
    LoraMethod(rank=24, targets=("v_proj", "up_proj", "q_proj")),
]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("arena"), torch.float32)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"rank-{method.rank}")
def test_pairs_are_views_that_never_overlap(decoder: Decoder, method: LoraMethod) -> None:
    arena = lone_arena(decoder, method)
    flat = torch.zeros(arena.size)
    pairs = list(arena.pairs(flat))
    assert len(pairs) == decoder.shape.num_layers * len(method.targets)
    for layer, target, pair in pairs:
        assert 0 <= layer < decoder.shape.num_layers
        out, into = decoder.shape.linear_shape(target)
        assert pair.a.shape == (method.rank, into)
        assert pair.b.shape == (out, method.rank)
        pair.a.add_(1.0)
        pair.b.add_(1.0)
    # Alignment leaves gaps, which no pair reaches.
    assert float(flat.max()) == 1.0
    assert int(flat.sum()) == arena.trainable_params


def test_initial_values_depend_on_seed_layer_and_name_only(decoder: Decoder) -> None:
    method = LoraMethod(rank=3)
    arena, again, other = (lone_arena(decoder, method, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(arena.master(), again.master())
    assert not torch.equal(arena.master(), other.master())
    few = lone_arena(decoder, LoraMethod(rank=3, targets=("o_proj",)))
    mine = {(layer, target): pair for layer, target, pair in arena.named_pairs()}
    for layer, target, its in few.named_pairs():
        assert torch.equal(mine[layer, target].a, its.a)
        # PEFT's bound: Kaiming uniform with a = sqrt 5 is 1 / sqrt(fan in).
        assert 0.5 <= float(its.a.abs().max()) * math.sqrt(decoder.shape.q_width) <= 1.0
        assert not its.b.any()
    assert not torch.equal(mine[0, "o_proj"].a, mine[1, "o_proj"].a)
    assert not torch.equal(mine[0, "q_proj"].a, mine[0, "k_proj"].a)


def test_the_order_in_which_targets_are_named_does_not_matter(decoder: Decoder) -> None:
    ordered = lone_arena(decoder, LoraMethod(rank=2))
    reversed_ = lone_arena(decoder, LoraMethod(rank=2, targets=LORA_TARGETS[::-1]))
    assert torch.equal(ordered.master(), reversed_.master())
    assert ordered.targets == reversed_.targets == LORA_TARGETS


def test_a_lane_has_learned_once_a_b_is_not_zero(decoder: Decoder) -> None:
    arena = lone_arena(decoder, LoraMethod(rank=3))
    assert not arena.has_learned()
    *_, (_, _, last) = arena.named_pairs()
    last.b[-1, -1] = 1e-30
    assert arena.has_learned()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_lane_says_whether_it_is_finite(decoder: Decoder, bad: float) -> None:
    pool = LanePool(decoder.device, torch.bfloat16)
    good, spoilt = (LoraArena(decoder.shape, LoraMethod(rank=2), pool) for _ in range(2))
    for arena in (good, spoilt):
        arena.initialise(1)
    values = spoilt.master()
    values[-1] = bad
    spoilt.set_master(values)
    assert good.is_finite()
    assert not spoilt.is_finite()


def test_an_exported_adapter_has_the_fp32_master_of_a_bf16_lane(
    decoder: Decoder, tmp_path: Path
) -> None:
    pool = LanePool(decoder.device, torch.bfloat16)
    neighbour, arena = (LoraArena(decoder.shape, LoraMethod(rank=3), pool) for _ in range(2))
    exact = lone_arena(decoder, LoraMethod(rank=3))
    shake(exact)
    neighbour.initialise(2)
    arena.set_master(exact.master())
    write_peft_folder(arena, "base", tmp_path / "bf16")
    write_peft_folder(exact, "base", tmp_path / "fp32")
    ours, theirs = (
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("bf16", "fp32")
    )
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, theirs[name])
    assert any(not torch.equal(tensor.bfloat16().float(), tensor) for tensor in ours.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_checkpoint_restores_a_lane_and_leaves_its_neighbours_alone(
    decoder: Decoder, tmp_path: Path, dtype: torch.dtype
) -> None:
    method = LoraMethod(rank=3, targets=("v_proj", "down_proj"))
    source = LoraArena(decoder.shape, method, LanePool(decoder.device, dtype))
    source.initialise(4)
    generator = torch.Generator().manual_seed(0)
    for moment in source.moments():
        moment.normal_(generator=generator)
    digest = save_lane(source, tmp_path)

    pool = LanePool(decoder.device, dtype)
    before, target, after = (LoraArena(decoder.shape, method, pool) for _ in range(3))
    load_lane(target, tmp_path, digest)
    assert torch.equal(target.master(), source.master())
    assert all(map(torch.equal, target.moments(), source.moments()))
    for neighbour in (before, after):
        assert not neighbour.master().any()
        assert not any(moment.any() for moment in neighbour.moments())


@pytest.mark.parametrize(
    "method",
    [
        LoraMethod(rank=24),
        # In a pool it is as large as the one that was saved.
        LoraMethod(rank=4),
        LoraMethod(rank=3, targets=("q_proj", "v_proj", "o_proj")),
    ],
    ids=["rank-24", "rank-4", "three-targets"],
)
def test_a_checkpoint_of_another_lane_changes_nothing(
    decoder: Decoder, tmp_path: Path, method: LoraMethod
) -> None:
    digest = save_lane(lone_arena(decoder, LoraMethod(rank=3)), tmp_path)
    other = lone_arena(decoder, method)
    before = other.master().clone()
    with pytest.raises(ValueError, match=r"master|another rank"):
        load_lane(other, tmp_path, digest)
    assert torch.equal(other.master(), before)


def test_a_damaged_checkpoint_changes_nothing(decoder: Decoder, tmp_path: Path) -> None:
    save_lane(lone_arena(decoder, LoraMethod(rank=3)), tmp_path)
    other = lone_arena(decoder, LoraMethod(rank=3), seed=9)
    before = other.master().clone()
    with pytest.raises(ValueError, match="digest"):
        load_lane(other, tmp_path, "0" * 64)
    assert torch.equal(other.master(), before)
