"""Rows as blocks of bytes: what is in them, and that they pass as the rows themselves do."""

import itertools
from dataclasses import replace
from random import Random

import pytest
import torch
from support.lanes import TinyLane, pack_on, tiny_decoder
from support.packing import random_rows

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.lanes import LaneAdapters, LaneWork
from slidepack.engine.lora.pack import Pack
from slidepack.engine.lora.rows import lane_tensors, micro_steps, supervised_tokens
from slidepack.engine.lora.staging import StagedMicro, rounded, stage, staged_on
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder

CPU = torch.device("cpu")
LANES = (
    TinyLane(name="all", method=LoraMethod(rank=4), lengths=(5,), total_steps=1),
    TinyLane(
        name="some",
        method=LoraMethod(rank=3, dropout=0.5, targets=("q_proj", "down_proj")),
        lengths=(5,),
        total_steps=1,
    ),
)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("model"), torch.float64)


@pytest.fixture
def pack(decoder: Decoder) -> Pack:
    return pack_on(decoder, LANES)


def _work(lengths: list[tuple[int, ...]], vocab: int, **changes: int) -> LaneWork:
    steps = [random_rows(some, vocab, seed=sum(some)) for some in lengths]
    (pieces,) = micro_steps(steps, 1 << 20)
    settings = {"exact_tokens": 0, "most_tokens": 1 << 20} | changes
    return LaneWork(
        pieces=pieces,
        denominators=[supervised_tokens(rows) for rows in steps],
        seeds=[11, 12],
        first=True,
        exact_tokens=settings["exact_tokens"],
        most_tokens=settings["most_tokens"],
    )


def _staged(pack: Pack, work: LaneWork) -> StagedMicro:
    return stage(work, pack.adapters(("all", "some")), torch.float64)


def test_rounded_sizes_hold_what_they_round_and_waste_an_eighth_at_most() -> None:
    sizes = [rounded(size) for size in range(1, 20000)]
    assert all(size <= after for size, after in enumerate(sizes, 1))
    assert all(after - size < max(64, size / 8 + 1) for size, after in enumerate(sizes, 1))
    assert all(rounded(after) == after for after in set(sizes))
    # Few kinds of passes: each is recorded.
    assert len(set(sizes)) < 60


@pytest.mark.parametrize("seed", range(10))
def test_a_staged_row_passes_as_the_row_filled_up_launch_by_launch(
    seed: int, decoder: Decoder, pack: Pack
) -> None:
    random = Random(seed)
    lengths = [tuple(random.randint(1, 30) for _ in range(random.randint(1, 5))) for _ in range(2)]
    work = _work(lengths, decoder.shape.vocab)
    adapters = pack.adapters(("all", "some"))
    micro = _staged(pack, work)
    block = torch.zeros_like(micro.block)
    staged = staged_on(micro, block)
    block.copy_(micro.block)
    # A card reads where sequences end from the device; here it is read from the host.
    ends = tuple(staged.row.row.cu_seqlens.tolist())
    there = replace(staged.row, row=replace(staged.row.row, bounds=ends))
    row = there.bind(decoder.shape, CPU, torch.float64)
    driver = LaneDriver(
        decoder, layer_attention(decoder.shape, CPU, torch.float64), ("keep", "recompute", "keep")
    )

    def gradients() -> torch.Tensor:
        return torch.cat([arena.grads.flatten() for arena in adapters.arenas]).clone()

    losses = driver.train(row, staged.lanes)
    ours = gradients()
    laid = lane_tensors(
        work.pieces,
        work.denominators,
        torch.float64,
        pad_to=micro.key.tokens,
        pad_labels=micro.key.labels,
    ).bind(decoder.shape, CPU, torch.float64)
    dropout = adapters.dropout(laid, work.seeds)
    plain = driver.train(laid, adapters.lane_pass(laid.bounds, dropout=dropout))
    assert torch.equal(losses, plain)
    assert torch.equal(ours, gradients())
    # And but for roundings, as the row as it is.
    bare = work.bind(adapters, decoder.shape, torch.float64)
    assert torch.allclose(driver.train(bare.row, bare.lanes), losses, rtol=1e-12)
    assert torch.allclose(gradients(), ours, rtol=1e-9, atol=1e-15)


def test_another_row_of_the_key_takes_the_place_of_the_first(decoder: Decoder, pack: Pack) -> None:
    vocab = decoder.shape.vocab
    first = _staged(pack, _work([(30, 20), (9,)], vocab))
    second = _staged(pack, _work([(13,), (31, 16)], vocab))
    assert first.key == second.key
    block = first.block.clone()
    staged = staged_on(first, block)
    block.copy_(second.block)
    for ours, theirs in (
        (staged.row.row.ids, second.staged.row.row.ids),
        (staged.row.row.cu_seqlens, second.staged.row.row.cu_seqlens),
        (staged.row.row.labels, second.staged.row.row.labels),
        (staged.row.weights, second.staged.row.weights),
        (staged.row.label_counts, second.staged.row.label_counts),
        (staged.lanes.tables["qkv"].output_side.outer.device,
         second.staged.lanes.tables["qkv"].output_side.outer.device),
    ):  # fmt: skip
        assert torch.equal(ours, theirs)
    assert staged.lanes.dropout is not None
    assert second.staged.lanes.dropout is not None
    assert torch.equal(staged.lanes.dropout.samples, second.staged.lanes.dropout.samples)


def test_the_key_tells_apart_what_passes_by_other_launches(decoder: Decoder, pack: Pack) -> None:
    vocab = decoder.shape.vocab
    base = _staged(pack, _work([(30, 20), (9,)], vocab)).key
    others = [
        _staged(pack, _work([(60, 20), (9,)], vocab)).key,
        _staged(pack, _work([(30, 5, 5, 5, 5), (9,)], vocab)).key,
        stage(
            _work([(30, 20), (9,)], vocab),
            LaneAdapters(decoder.shape, list(pack.lanes.values()), CPU),
            torch.float64,
        ).key,
    ]
    assert all(a != b for a, b in itertools.combinations([base, *others], 2))


def test_no_row_is_filled_up_beyond_what_a_pass_may_have(decoder: Decoder, pack: Pack) -> None:
    vocab = decoder.shape.vocab
    assert _staged(pack, _work([(50,), (20,)], vocab, most_tokens=80)).key.tokens == 80
    # A single row that is longer passes as it is.
    assert _staged(pack, _work([(90,), ()], vocab, most_tokens=80)).key.tokens == 90
    exact = _staged(pack, _work([(50,), (20,)], vocab, exact_tokens=100)).key
    assert (exact.tokens, exact.labels) == (100, 100)
