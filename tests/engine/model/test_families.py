"""Logits of every family against `transformers`: packed rows, longer than the windows."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.families import FAMILY_NAMES, WINDOW, tiny_family
from support.lanes import packed_logits
from support.packing import packed, random_rows

from slidepack import kernels
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.decoder import decoder_layer
from slidepack.engine.model.ends import embed, final_hidden, head_logits
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import layer_over
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.shape import RopeShape

CPU = torch.device("cpu")
LENGTHS = (7, 1, 23, 64)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_logits_equal_transformers(tmp_path: Path, name: str, tied: bool) -> None:
    judge = tiny_family(tmp_path, name, tied=tied)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    rows = random_rows(LENGTHS, decoder.shape.vocab)
    for row, ours in zip(rows, packed_logits(decoder, rows), strict=True):
        with torch.no_grad():
            theirs = judge(torch.tensor([row.ids])).logits[0]
        assert float(theirs.std()) > 0.1, "a judge that says nothing"
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


NEUTRAL: dict[str, dict[str, Any]] = {
    "window": {"layer_windows": ()},
    "wider window": {"layer_windows": (WINDOW + 1, WINDOW + 1, None)},
    "plus one": {"norm_plus_one": False},
    "activation": {"activation": "silu"},
    "embedding": {"embed_scale": 1.0},
    "scale": {"attention_scale": None},
    "attention cap": {"attention_soft_cap": None},
    "final cap": {"final_soft_cap": None},
    "second rope": {"sliding_rope": None},
    "rope scaling": {"rope": RopeShape(kind="default", theta=9000.0)},
}
"""Changes that take one part of a family away."""


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mistral-window", "window"),
        ("mistral-window", "wider window"),
        ("qwen2-window", "window"),
        *(("gemma2", p) for p in NEUTRAL if p not in ("second rope", "rope scaling")),
        *(("gemma3-linear", p) for p in NEUTRAL if not p.endswith("cap")),
    ],
)
def test_the_comparison_sees_every_part(tmp_path: Path, name: str, part: str) -> None:
    tiny_family(tmp_path, name)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    changed = replace(decoder, shape=msgspec.structs.replace(decoder.shape, **NEUTRAL[part]))
    rows = random_rows(LENGTHS, decoder.shape.vocab)
    whole, without = (packed_logits(one, rows)[-1] for one in (decoder, changed))
    assert float((whole - without).abs().max()) > 1e-2


def _loss(logits: torch.Tensor, row: EncodedRow) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(row.ids[1:]))


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_gradients_of_every_weight_equal_transformers(tmp_path: Path, name: str) -> None:
    judge = tiny_family(tmp_path, name, dtype=torch.float32)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    shape = decoder.shape
    (row,) = random_rows((40,), shape.vocab)
    _loss(judge(torch.tensor([row.ids])).logits[0], row).backward()

    # Each layer's buffer lies in the middle of a larger one, as in a ring of slots.
    slots = [torch.cat((layer.flat.new_zeros(5), layer.flat)) for layer in decoder.layers]
    flats = [slot[5:].requires_grad_() for slot in slots]
    ends = [
        x.clone().requires_grad_() for x in (decoder.embedding, decoder.final_norm, decoder.head)
    ]
    attention = layer_attention(shape, CPU, torch.float32)
    (batch,) = packed(decoder, [row])
    x = embed(ends[0], batch.ids, shape)
    for index, flat in enumerate(flats):
        choice = attention.at(index)
        x = decoder_layer(
            x,
            layer_over(flat, shape),
            shape,
            batch.rope.of_window(choice.window),
            functools.partial(kernels.attention, segments=batch.segments, choice=choice),
            None,
        )
    _loss(head_logits(final_hidden(x, ends[1], shape), ends[2], shape), row).backward()

    theirs = {path: parameter.grad for path, parameter in judge.named_parameters()}
    ours = {"model.embed_tokens.weight": ends[0].grad, "model.norm.weight": ends[1].grad}
    ours["lm_head.weight"] = ends[2].grad
    for index, flat in enumerate(flats):
        assert flat.grad is not None
        views = layer_over(flat.grad, shape).named
        ours |= {f"model.layers.{index}.{path}": view for path, view in views.items()}
    assert ours.keys() == theirs.keys() == shape.tensor_shapes().keys()
    for path, grad in theirs.items():
        assert grad is not None
        mine = ours[path]
        assert mine is not None
        scale = float(grad.abs().max())
        assert scale > 0, path
        torch.testing.assert_close(mine, grad, rtol=0, atol=2e-4 * scale, msg=path)
