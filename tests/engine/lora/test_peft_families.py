"""An adapter of every family, written by us and read by PEFT: same logits, same gradients."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from support.families import FAMILY_NAMES, tiny_family
from support.lanes import TinyLane, pack_on, packed_logits

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.export.peft import write_peft_folder
from slidepack.engine.model.loading import load_decoder

CPU = torch.device("cpu")
LANE = TinyLane(name="lane", method=LoraMethod(rank=3, alpha=5), lengths=(9, 30), total_steps=1)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_peft_reads_the_adapter_and_agrees(tmp_path: Path, name: str) -> None:
    judge = tiny_family(tmp_path / "base", name)
    decoder = load_decoder(tmp_path / "base", CPU, torch.float32)
    pack = pack_on(decoder, [LANE])
    arena = pack.lanes[LANE.name]
    generator = torch.Generator().manual_seed(2)
    for _, _, pair in arena.named_pairs():
        pair.b.normal_(0.0, 0.1, generator=generator)
    write_peft_folder(arena, "base", tmp_path / "adapter")
    work = LANE.work(0, decoder.shape.vocab)
    rows = list(work.rows)
    ours = packed_logits(decoder, rows, pack)
    bare = packed_logits(decoder, rows)
    assert all(float((a - b).abs().max()) > 1e-2 for a, b in zip(ours, bare, strict=True))
    loss = pack.step({LANE.name: work})[LANE.name].loss

    model: Any = peft.PeftModel.from_pretrained(judge, tmp_path / "adapter", is_trainable=True)
    model.eval()
    total = torch.zeros(())
    for row, mine in zip(rows, ours, strict=True):
        theirs = model(torch.tensor([row.ids])).logits[0]
        torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-4)
        counted = torch.tensor(row.supervised[1:])
        labels = torch.tensor(row.ids[1:])[counted]
        total = total + torch.nn.functional.cross_entropy(
            theirs[:-1][counted], labels, reduction="sum"
        )
    (total / loss.tokens).backward()
    assert loss.mean == pytest.approx(float(total.detach()) / loss.tokens, rel=1e-5)

    gradients = {path: p.grad for path, p in model.named_parameters() if p.requires_grad}
    assert len(gradients) == 2 * 7 * decoder.shape.num_layers
    for layer, target, pair in arena.pairs(arena.grads):
        for gradient, letter in ((pair.a, "A"), (pair.b, "B")):
            inside = f".layers.{layer}."
            ending = f".{target}.lora_{letter}.default.weight"
            (its,) = (g for p, g in gradients.items() if inside in p and p.endswith(ending))
            scale = float(its.abs().max())
            assert scale > 0
            torch.testing.assert_close(gradient, its, rtol=0, atol=3e-4 * scale)
