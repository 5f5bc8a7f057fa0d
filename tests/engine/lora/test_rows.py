"""How the steps of many lanes become packed rows, over random cases."""

import itertools
from random import Random

import pytest
import torch
from support.packing import random_rows

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.rows import (
    LaneRow,
    Piece,
    lane_row,
    micro_steps,
    supervised_tokens,
)
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.shape import ModelShape, RopeShape

CPU = torch.device("cpu")
VOCAB = 97
SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    num_layers=1,
    hidden=8,
    ffn=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    vocab=VOCAB,
    max_positions=256,
    rms_eps=1e-5,
    rope=RopeShape(kind="default", theta=10000.0),
    tied_head=True,
)
SEEDS = pytest.mark.parametrize("seed", range(40))


def _steps(random: Random) -> list[list[EncodedRow]]:
    """Return the rows of some lanes; a lane may sit out."""
    return [
        random_rows(
            tuple(random.randint(1, 40) for _ in range(random.randint(0, 7))),
            VOCAB,
            seed=random.getrandbits(32),
        )
        for _ in range(random.randint(1, 6))
    ]


def _laid_out(steps: list[list[EncodedRow]], max_tokens: int, pad_to: int = 0) -> list[LaneRow]:
    denominators = [supervised_tokens(rows) for rows in steps]
    return [
        lane_row(pieces, denominators, SHAPE, CPU, torch.float64, pad_to=pad_to)
        for pieces in micro_steps(steps, max_tokens)
    ]


def _label_bounds(row: LaneRow) -> list[int]:
    return [0, *row.label_counts.cumsum(0).tolist()]


def _tokens(piece: Piece | None) -> int:
    return 0 if piece is None else piece.tokens


@SEEDS
def test_every_row_passes_once_in_order(seed: int) -> None:
    random = Random(seed)
    steps, max_tokens = _steps(random), random.randint(1, 120)
    batches = micro_steps(steps, max_tokens)
    for lane, rows in enumerate(steps):
        pieces = [piece for batch in batches if (piece := batch[lane]) is not None]
        assert [row for piece in pieces for row in piece.rows] == rows
        firsts = itertools.accumulate((len(piece.rows) for piece in pieces), initial=0)
        assert [piece.first_sample for piece in pieces] == list(firsts)[:-1]
    for batch in batches:
        assert len(batch) == len(steps)
        assert any(piece is not None for piece in batch)


@SEEDS
def test_no_micro_batch_is_too_long_and_a_long_row_travels_alone(seed: int) -> None:
    random = Random(seed)
    max_tokens = random.randint(1, 120)
    for batch in micro_steps(_steps(random), max_tokens):
        present = [piece for piece in batch if piece is not None]
        if sum(map(_tokens, present)) > max_tokens:
            (piece,) = present
            assert len(piece.rows) == 1


@SEEDS
def test_a_lane_is_cut_as_it_is_alone(seed: int) -> None:
    random = Random(seed)
    steps, max_tokens = _steps(random), random.randint(1, 120)
    together = micro_steps(steps, max_tokens)
    for lane, rows in enumerate(steps):
        alone = micro_steps([rows], max_tokens)
        assert [batch[lane] for batch in together if batch[lane]] == [piece for (piece,) in alone]


@SEEDS
def test_lanes_that_fit_together_pass_together(seed: int) -> None:
    steps = _steps(Random(seed))
    total = sum(len(row.ids) for rows in steps for row in rows)
    assert len(micro_steps(steps, max(1, total))) == min(1, total)


def test_short_lanes_travel_beside_a_long_one() -> None:
    steps = [random_rows(lengths, VOCAB) for lengths in ((2,), (2,), (8, 8, 8))]
    assert len(micro_steps(steps, 10)) == 3


@SEEDS
def test_the_weights_of_a_lane_add_up_to_one_over_its_step(seed: int) -> None:
    random = Random(seed)
    steps, max_tokens = _steps(random), random.randint(1, 120)
    sums = [0.0] * len(steps)
    for row in _laid_out(steps, max_tokens, pad_to=121):
        for lane, (start, end) in enumerate(itertools.pairwise(_label_bounds(row))):
            sums[lane] += float(row.weights[start:end].sum())
        assert not row.weights[_label_bounds(row)[-1] :].any()
    for total, rows in zip(sums, steps, strict=True):
        assert total == pytest.approx(1.0 if supervised_tokens(rows) else 0.0, rel=1e-12)


@SEEDS
def test_a_lanes_part_of_a_row_does_not_depend_on_the_others(seed: int) -> None:
    random = Random(seed)
    steps = _steps(random)
    steps.append(random_rows((5, 9), VOCAB))
    (row,) = _laid_out(steps, 1 << 20)
    for lane, rows in enumerate(steps):
        if not rows:
            assert row.bounds[lane] == row.bounds[lane + 1]
            continue
        (alone,) = _laid_out([rows], 1 << 20)
        tokens = slice(*row.bounds[lane : lane + 2])
        labels = slice(*_label_bounds(row)[lane : lane + 2])
        first = tokens.start
        assert torch.equal(row.batch.ids[tokens], alone.batch.ids)
        assert torch.equal(row.samples[tokens], alone.samples)
        assert torch.equal(row.positions[tokens], alone.positions)
        assert torch.equal(row.batch.predicting[labels] - first, alone.batch.predicting)
        assert torch.equal(row.batch.labels[labels], alone.batch.labels)
        assert torch.equal(row.weights[labels], alone.weights)
        inside = [bound - first for bound in row.batch.segments.bounds]
        assert [b for b in inside if 0 <= b <= alone.batch.num_tokens] == list(
            alone.batch.segments.bounds
        )


@SEEDS
def test_the_place_of_a_token_does_not_depend_on_the_micro_batches(seed: int) -> None:
    """Dropout is drawn by sample and position, so it must not move with the cut either."""
    random = Random(seed)
    rows = random_rows(tuple(random.randint(1, 40) for _ in range(6)), VOCAB)
    (whole,) = _laid_out([rows], 1 << 20)
    cut = _laid_out([rows], random.randint(1, 80))
    assert torch.equal(torch.cat([row.samples for row in cut]), whole.samples)
    assert torch.equal(torch.cat([row.positions for row in cut]), whole.positions)


@SEEDS
def test_padding_fills_a_row_up_and_nothing_else(seed: int) -> None:
    random = Random(seed)
    steps = _steps(random)
    steps[0] = random_rows((3, 12), VOCAB)
    (bare,) = _laid_out(steps, 1 << 20)
    tokens, labels = bare.bounds[-2], _label_bounds(bare)[-1]
    pad_to = tokens + random.randint(1, 400)
    (row,) = _laid_out(steps, 1 << 20, pad_to=pad_to)
    assert row.bounds == (*bare.bounds[:-1], pad_to)
    assert torch.equal(row.label_counts, bare.label_counts)
    for longer, shorter in (
        (row.batch.ids, bare.batch.ids),
        (row.samples, bare.samples),
        (row.positions, bare.positions),
    ):
        assert longer.shape == (pad_to,)
        assert torch.equal(longer[:tokens], shorter)
    for longer, shorter in (
        (row.batch.predicting, bare.batch.predicting),
        (row.batch.labels, bare.batch.labels),
        (row.weights, bare.weights),
    ):
        assert longer.shape == (pad_to,)
        assert torch.equal(longer[:labels], shorter)
    assert not row.weights[labels:].any()
    assert bool((row.batch.predicting[labels:] >= tokens).all())
    # No sequence holds tokens of a lane and padding.
    assert tokens in row.batch.segments.bounds
    assert row.batch.segments.bounds[-1] == pad_to


def test_no_padding_is_enough_and_less_is_refused() -> None:
    steps = [random_rows((7, 5), VOCAB)]
    for pad_to in (12, 13):
        (row,) = _laid_out(steps, 64, pad_to=pad_to)
        assert row.batch.num_tokens == pad_to
    for pad_to in (11, 1):
        with pytest.raises(ValueError, match="longer than it may be"):
            _laid_out(steps, 64, pad_to=pad_to)


def test_a_row_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        lane_row([None, None], [0, 0], SHAPE, CPU, torch.float32)


def test_nothing_to_do_is_no_micro_batch() -> None:
    assert micro_steps([[], []], 8) == []
    assert micro_steps([], 8) == []


@SEEDS
def test_supervised_tokens_are_those_with_a_label(seed: int) -> None:
    random = Random(seed)
    rows = random_rows(tuple(random.randint(1, 20) for _ in range(5)), VOCAB, seed=seed)
    assert supervised_tokens(rows) == pack_rows(rows, SHAPE, CPU, torch.float32).labels.numel()
    assert supervised_tokens([]) == 0
    first_only = EncodedRow(1, (5, 6), (True, False))
    assert supervised_tokens([first_only]) == 0
