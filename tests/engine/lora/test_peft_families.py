"""An adapter of every family, written by us and read by PEFT: same logits, same gradients."""

import itertools
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from support.families import FAMILY_NAMES, tiny_family
from support.packing import packed, random_rows

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.export.peft import write_peft_folder
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.driver import Driver

CPU = torch.device("cpu")


def _arena(shape: ModelShape) -> LoraArena:
    arena = LoraArena(shape, LoraMethod(rank=3, alpha=5), CPU)
    arena.initialise(1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, _, pair in arena.named_pairs():
            pair.b.normal_(0.0, 0.1, generator=generator)
    return arena


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_peft_reads_the_adapter_and_agrees(tmp_path: Path, name: str) -> None:
    judge = tiny_family(tmp_path / "base", name)
    decoder = load_decoder(tmp_path / "base", CPU, torch.float32)
    arena = _arena(decoder.shape)
    write_peft_folder(arena, "base", tmp_path / "adapter")
    attention = layer_attention(decoder.shape, CPU, torch.float32)
    driver = Driver(decoder, arena, attention, ("keep", "recompute", "keep"))
    bare = Driver(decoder, None, attention, ("keep",) * 3)
    rows = random_rows((9, 30), decoder.shape.vocab)
    (batch,) = packed(decoder, rows)
    loss = driver.train_step([batch], (0, 0))
    ours = driver.logits(batch)
    assert float((ours - bare.logits(batch)).abs().max()) > 1e-2

    model: Any = peft.PeftModel.from_pretrained(judge, tmp_path / "adapter", is_trainable=True)
    model.eval()
    total = torch.zeros(())
    for row, (start, end) in zip(rows, itertools.pairwise(batch.segments.bounds), strict=True):
        theirs = model(torch.tensor([row.ids])).logits[0]
        torch.testing.assert_close(ours[start:end], theirs.detach(), rtol=0, atol=1e-4)
        counted = torch.tensor(row.supervised[1:])
        labels = torch.tensor(row.ids[1:])[counted]
        total = total + torch.nn.functional.cross_entropy(
            theirs[:-1][counted], labels, reduction="sum"
        )
    (total / loss.tokens).backward()
    assert loss.mean == pytest.approx(float(total.detach()) / loss.tokens, rel=1e-5)

    gradients = {path: p.grad for path, p in model.named_parameters() if p.requires_grad}
    assert len(gradients) == 2 * 7 * decoder.shape.num_layers
    for layer, target, pair in arena.named_pairs():
        for mine, letter in ((pair.a.grad, "A"), (pair.b.grad, "B")):
            inside = f".layers.{layer}."
            ending = f".{target}.lora_{letter}.default.weight"
            (its,) = (g for p, g in gradients.items() if inside in p and p.endswith(ending))
            assert mine is not None
            scale = float(its.abs().max())
            assert scale > 0
            torch.testing.assert_close(mine, its, rtol=0, atol=3e-4 * scale)
