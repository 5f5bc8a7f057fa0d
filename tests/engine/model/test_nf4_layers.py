"""Layers in 4 bits: what they stand for, one at a time."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.families import tiny_family
from support.lanes import LaneRecord, TinyLane, pack_on, step_all
from support.packing import random_rows

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.memory_lora import frozen_bytes
from slidepack.engine.model.generate import generate_greedy
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.model.nf4_layers import Nf4Layers

CPU = torch.device("cpu")
LINEARS = ("qkv", "o", "gate_up", "down")
LANES = (
    TinyLane(
        name="some",
        method=LoraMethod(rank=3, alpha=5, targets=("q_proj", "down_proj")),
        optim=OptimSpec(lr=3e-3),
        lengths=(9, 30, 4),
        total_steps=4,
    ),
    TinyLane(
        name="one",
        method=LoraMethod(rank=1, alpha=1, targets=("down_proj",)),
        lengths=(5, 60),
        total_steps=4,
    ),
)


@pytest.fixture(
    params=["qwen2", *(pytest.param(name, marks=pytest.mark.full) for name in ("llama", "gemma3"))]
)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tiny_family(tmp_path, request.param)
    return tmp_path


def _widened(narrow: Decoder) -> Decoder:
    """Return the same base with every layer widened for good."""
    layers = []
    for layer in narrow.layers:
        layers.append(replace(layer, **{name: getattr(layer, name).clone() for name in LINEARS}))
    return Decoder(narrow.shape, narrow.embedding, layers, narrow.final_norm, narrow.head)


def _exact(record: LaneRecord) -> tuple[object, ...]:
    return (record.outcome, *(tensor.tolist() for tensor in record.tensors))


@pytest.mark.parametrize("policy", ["keep", "recompute"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_equals_that_on_the_widened_base(
    folder: Path, policy: ActivationPolicy, dtype: torch.dtype
) -> None:
    narrow = load_decoder(folder, CPU, dtype, nf4=True)
    records = []
    for decoder in (narrow, _widened(narrow)):
        pack = pack_on(decoder, LANES, max_tokens=64, activations=(policy,) * 3)
        vocab = decoder.shape.vocab
        records.append(
            [_exact(one) for step in range(4) for one in step_all(pack, LANES, step, vocab)]
        )
        records[-1].append((pack.evaluate({"some": random_rows((30, 12), vocab)}),))
    assert records[0] == records[1]


def test_a_layer_stays_near_the_one_that_was_quantised(folder: Path) -> None:
    plain = load_decoder(folder, CPU, torch.float32)
    narrow = load_decoder(folder, CPU, torch.float32, nf4=True)
    assert torch.equal(narrow.embedding, plain.embedding)
    for ours, theirs in zip(narrow.layers, plain.layers, strict=True):
        assert torch.equal(ours.input_norm, theirs.input_norm)
        assert (ours.qkv_bias is None) == (theirs.qkv_bias is None)
        if ours.qkv_bias is not None and theirs.qkv_bias is not None:
            assert torch.equal(ours.qkv_bias, theirs.qkv_bias)
        for name in LINEARS:
            mine, its = getattr(ours, name), getattr(theirs, name)
            # The widest gap between levels is 0.3 of a block's largest value.
            assert 0.0 < float((mine - its).abs().max()) <= 0.16 * float(its.abs().max())


def test_its_memory_is_what_the_plan_says(folder: Path) -> None:
    decoder = load_decoder(folder, CPU, torch.bfloat16, nf4=True)
    assert isinstance(decoder.layers, Nf4Layers)
    shape = decoder.shape
    ends = 2 * (shape.total_params - shape.num_layers * shape.layer_params)
    held = decoder.layers.num_bytes + ends
    # Blocks of linears whose sizes are no multiple of 64 have a scale more.
    assert held == pytest.approx(frozen_bytes(shape, 2, "nf4"), rel=0.01)
    # Half a byte an element, a scale for each block, and one layer in full.
    linears = sum(getattr(decoder.layers[0], name).numel() for name in LINEARS)
    assert decoder.layers.num_bytes < linears * (0.6 * shape.num_layers + 2.1)


def test_answers(folder: Path) -> None:
    narrow = load_decoder(folder, CPU, torch.float32, nf4=True)
    prompts = [row.ids for row in random_rows((5, 11), narrow.shape.vocab)]
    attention = layer_attention(narrow.shape, CPU, torch.float32)
    ours, theirs = (
        generate_greedy(decoder, None, attention, prompts, max_new_tokens=8, stop_ids=frozenset())
        for decoder in (narrow, _widened(narrow))
    )
    assert ours == theirs


def test_several_layers_at_once_are_refused(folder: Path) -> None:
    layers = load_decoder(folder, CPU, torch.float32, nf4=True).layers
    with pytest.raises(TypeError, match="one at a time"):
        layers[0:2]
