"""The grouped LoRA linear on the CPU: against autograd, PEFT and its solo runs; its refusals."""

from dataclasses import replace
from typing import Any

import peft
import pytest
import torch
from support.lora_cases import Lane, LoraCase, draw
from support.lora_judges import assert_close, assert_equal, expected
from torch import Tensor

from slidepack.kernels import LoraLayout, LoraWeights, lora_linear, lora_tables
from slidepack.kernels.lora.tables import TOKEN_CHUNK

F64, F32 = torch.float64, torch.float32
CPU = torch.device("cpu")
# Sums of at most a few hundred terms near one, or of a few thousand beside a tolerance relative to
# the largest: some dozens of roundings of 2^-53.
TOLERANCE = 1e-13


def _lanes(*lanes: tuple[tuple[int, ...], int]) -> tuple[Lane, ...]:
    return tuple(Lane(key=key, ranks=ranks, tokens=n) for key, (ranks, n) in enumerate(lanes))


CASES = [
    LoraCase(
        name="ranks",
        in_width=20,
        part_widths=(12,),
        lanes=_lanes(((1,), 9), ((3,), 1), ((8,), 0), ((24,), 17), ((128,), 4)),
    ),
    LoraCase(
        name="large-ranks",
        in_width=33,
        part_widths=(40,),
        lanes=_lanes(((130,), 7), ((300,), 6), ((2,), 3)),
    ),
    LoraCase(
        name="q-k-v",
        in_width=24,
        part_widths=(32, 8, 5),
        lanes=_lanes(((8, 8, 8), 5), ((0, 3, 1), 6), ((4, 0, 0), 1), ((1, 130, 0), 3)),
    ),
    LoraCase(
        name="nobody-is-targeted",
        in_width=6,
        part_widths=(4, 3),
        lanes=_lanes(((0, 0), 3), ((0, 0), 0), ((2, 0), 2)),
    ),
    LoraCase(
        name="token-chunks",
        in_width=3,
        part_widths=(2, 2),
        lanes=_lanes(((1, 2), 2 * TOKEN_CHUNK + 5), ((2, 0), TOKEN_CHUNK), ((1, 1), 1)),
    ),
    LoraCase(name="no-token", in_width=5, part_widths=(4,), lanes=_lanes(((2,), 0), ((1,), 0))),
    LoraCase(name="no-lane", in_width=5, part_widths=(4,), lanes=()),
]
PACK = LoraCase(
    name="pack",
    in_width=18,
    part_widths=(20, 6),
    lanes=_lanes(((8, 8), 13), ((1, 0), 1), ((24, 3), 30), ((130, 2), 7)),
)


@pytest.mark.parametrize("case", [case for case in CASES if case.lanes], ids=lambda case: case.name)
def test_output_and_gradients_equal_autograd(case: LoraCase) -> None:
    row = draw(case).row(F64)
    assert_close(row.run(fused=False), expected(row), TOLERANCE)
    assert row.padding().isnan().all()


def test_a_row_without_lanes() -> None:
    layout = LoraLayout(in_width=5, part_widths=(4,), ranks=())
    empty = torch.empty(0, dtype=F64)
    weights = LoraWeights(empty, empty, (), torch.empty(0, dtype=torch.int64), torch.empty(0))
    tables = lora_tables(layout, (0,), CPU)
    x, weight = torch.empty(0, 5, dtype=F64), torch.ones(4, 5, dtype=F64)
    assert lora_linear(x, weight, tables, weights).shape == (0, 4)


def test_lengths_and_ranks_meet_every_way() -> None:
    # Each lane's chunk of 2,048 tokens begins at its own start.
    lanes = _lanes(((3,), 1), ((1,), TOKEN_CHUNK + 1), ((8,), 0), ((2,), 1))
    case = LoraCase(name="", in_width=2, part_widths=(3,), lanes=lanes)
    tables = draw(case).row(F64).tables
    chunks = {(tile[0], tile[1], tile[2]) for tile in tables.input_side.outer.host}
    assert chunks == {
        (0, 0, 1),
        (1, 1, 1 + TOKEN_CHUNK),
        (1, 1 + TOKEN_CHUNK, 2 + TOKEN_CHUNK),
        (2, 2 + TOKEN_CHUNK, 2 + TOKEN_CHUNK),
        (3, 2 + TOKEN_CHUNK, 3 + TOKEN_CHUNK),
    }


@pytest.mark.parametrize(
    ("in_width", "parts", "ranks", "expected_alignment"),
    [
        (64, (128,), (3,), 128),
        (64, (128, 64), (3, 8), 64),
        (64, (128, 33), (8, 8), 1),
        # B's rows do not start at multiples of 16 behind 3 x 20 elements of A.
        (20, (128,), (3,), 1),
        (20, (128,), (4,), 128),
    ],
)
def test_only_aligned_weights_are_said_to_be_aligned(
    in_width: int, parts: tuple[int, ...], ranks: tuple[int, ...], expected_alignment: int
) -> None:
    layout = LoraLayout(in_width=in_width, part_widths=parts, ranks=(ranks,))
    side = lora_tables(layout, (0, 1), CPU).output_side
    assert side.shrink.alignment == side.expand.alignment == side.outer.alignment
    assert side.shrink.alignment == expected_alignment


@pytest.mark.parametrize("index", range(4))
def test_a_lane_in_a_pack_is_the_lane_alone(index: int) -> None:
    # In integers, so that a library which adds in another order for another row changes nothing.
    case = replace(PACK, integers=True)
    packed = draw(case).row(F64).run(fused=False)
    alone = draw(case.alone(index)).row(F64).run(fused=False)
    assert_equal([packed[index]], alone)


def test_two_micro_batches_add_up_to_one() -> None:
    whole = draw(PACK).row(F64).run(fused=False)
    halves = [
        replace(PACK, lanes=tuple(replace(lane, **cut(lane.tokens)) for lane in PACK.lanes))
        for cut in (lambda n: {"end": n // 3}, lambda n: {"first": n // 3})
    ]
    first, second = (draw(half).row(F64) for half in halves)
    first.run(fused=False)
    second.weights.grads.copy_(first.weights.grads)
    added = second.run(fused=False, add=True)
    for ours, theirs in zip(added, whole, strict=True):
        for name in ours.keys() - {"y", "dx"}:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-12, atol=1e-12)


def test_gradients_are_overwritten_unless_added() -> None:
    row = draw(PACK).row(F64)
    once = row.run(fused=False)
    assert_equal(row.run(fused=False), once)
    twice = row.run(fused=False, add=True)
    for ours, theirs in zip(twice, once, strict=True):
        for name in ours.keys() - {"y", "dx"}:
            assert torch.equal(ours[name], 2 * theirs[name])


def test_adapters_are_trained_without_a_gradient_of_x() -> None:
    whole = draw(PACK).row(F64).run(fused=False)
    partly = draw(PACK).row(F64).run(fused=False, want_dx=False)
    for ours, theirs in zip(partly, whole, strict=True):
        assert not ours.pop("dx").any()
        assert_equal([ours], [{name: theirs[name] for name in ours}])


def test_inference_records_nothing_and_writes_no_gradient() -> None:
    row = draw(PACK).row(F64)
    frozen = replace(row.weights, pool=row.weights.pool.detach())
    y = lora_linear(row.x, row.weight, row.tables, frozen)
    assert not y.requires_grad
    assert_equal(
        [{"y": y}], [{"y": torch.cat([lane["y"] for lane in draw(PACK).row(F64).run(fused=False)])}]
    )
    assert frozen.grads.isnan().all()


def test_the_public_function_takes_a_transposed_input_and_gradient() -> None:
    row = draw(PACK).row(F64)
    expected_lanes = row.run(fused=False)
    x = row.x.T.contiguous().T.requires_grad_()
    y = lora_linear(x, row.weight, row.tables, row.weights)
    y.backward(row.dy.T.contiguous().T)
    assert x.grad is not None
    assert_equal(row.split(y.detach(), x.grad), expected_lanes)


def test_gradcheck_of_the_input() -> None:
    lanes = _lanes(((2, 1), 3), ((0, 3), 1), ((1, 1), 0))
    case = LoraCase(name="", in_width=4, part_widths=(3, 2), lanes=lanes)
    row = draw(case).row(F64)
    x = row.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: lora_linear(x, row.weight, row.tables, row.weights), (x,)
    )


@pytest.mark.parametrize("rs", [False, True])
@pytest.mark.parametrize("rank", [1, 4, 64])
def test_one_adapter_equals_peft(rank: int, rs: bool) -> None:
    lane = Lane(key=2, ranks=(rank,), tokens=11)
    row = draw(LoraCase(name="", in_width=30, part_widths=(17,), lanes=(lane,))).row(F64)
    alpha = int(lane.scale * (rank**0.5 if rs else rank))
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=["proj"], use_rslora=rs, lora_dropout=0.0
    )
    linear = torch.nn.Linear(30, 17, bias=False)
    model = peft.get_peft_model(torch.nn.ModuleDict({"proj": linear}), config).double()
    layer: Any = model.get_submodule("base_model.model.proj")
    ((a, b),) = row.tables.layout.views(row.weights.pool.detach(), 0, 0)
    factors = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        layer.base_layer.weight.copy_(row.weight)
        factors[0].copy_(a)
        factors[1].copy_(b.T)
    x = row.x.clone().requires_grad_()
    y = layer(x)
    y.backward(row.dy)
    theirs = {"y": y.detach(), "dx": x.grad, "a0": factors[0].grad, "b0": factors[1].grad.T}
    assert_close(row.run(fused=False), [theirs], 1e-12)


def _call(**changes: Any) -> None:
    row = draw(PACK).row(F64)
    weights = {"pool": row.weights.pool, "grads": row.weights.grads, "starts": row.weights.starts}
    given: dict[str, Any] = {"x": row.x, "weight": row.weight} | weights | changes
    kept = replace(row.weights, **{name: given[name] for name in weights})
    lora_linear(given["x"], given["weight"], row.tables, kept)


POOL = draw(PACK).pool


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.zeros(50, 18, dtype=F64)}, r"x is \(50, 18\), .* are of \(51, 18\)"),
        ({"x": torch.zeros(51, 17, dtype=F64)}, r"x is \(51, 17\)"),
        ({"weight": torch.zeros(18, 26, dtype=F64)}, r"weight is \(18, 26\); .* \(26, 18\)"),
        ({"x": torch.zeros(51, 18)}, "x is torch.float32, weight is torch.float64"),
        ({"weight": torch.zeros(26, 18)}, "weight is torch.float32, the pool is torch.float64"),
        ({"pool": POOL.float()}, "the pool is .*torch.float32"),
        ({"grads": POOL.float()}, "gradients must be torch.float64"),
        ({"grads": POOL[1:]}, r"gradients are \(\d+,\) torch.float64, the pool is \(\d+,\)"),
        ({"starts": (0, 16, 32)}, r"3 starts, offsets \(4,\)"),
        ({"starts": (0, 16, 32, 47)}, "not all multiples of 16"),
        ({"starts": (0, 16, 32, 1 << 20)}, "the pool ends at"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_call_that_does_not_fit_is_refused(changes: dict[str, Tensor], words: str) -> None:
    _call()
    with pytest.raises(ValueError, match=words):
        _call(**changes)


def test_layouts_and_bounds_that_mean_nothing_are_refused() -> None:
    for in_width, parts in ((0, (4,)), (4, ()), (4, (3, 0))):
        with pytest.raises(ValueError, match="must be positive"):
            LoraLayout(in_width=in_width, part_widths=parts, ranks=())
    for ranks in ((1,), (1, 2, 3), (1, -1)):
        with pytest.raises(ValueError, match=r"ranks \(1.*do not fit 2 parts"):
            LoraLayout(in_width=4, part_widths=(3, 2), ranks=(ranks,))
    layout = LoraLayout(in_width=4, part_widths=(3,), ranks=((1,), (2,)))
    for bounds in ((), (0, 3), (0, 1, 2, 3), (1, 2, 3)):
        with pytest.raises(ValueError, match="for 2 adapters, from 0"):
            lora_tables(layout, bounds, CPU)
    with pytest.raises(ValueError, match=r"bounds \(0, 3, 2\) fall"):
        lora_tables(layout, (0, 3, 2), CPU)
