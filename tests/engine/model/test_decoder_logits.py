from pathlib import Path

import pytest
import torch
from support.judges import tiny_llama
from support.lanes import packed_logits
from support.packing import random_rows
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.model.loading import load_decoder

CPU = torch.device("cpu")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4], ids=["one-kv", "grouped", "full-kv"])
def test_logits_equal_transformers_on_random_llamas(
    tmp_path: Path, kv_heads: int, tied: bool
) -> None:
    judge = tiny_llama(tmp_path, kv_heads=kv_heads, tied=tied)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    rows = random_rows((7, 1, 23, 64), decoder.shape.vocab)
    for row, ours in zip(rows, packed_logits(decoder, rows), strict=True):
        theirs = judge(torch.tensor([row.ids])).logits[0]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_llama3_rope_scaling_equals_transformers(tmp_path: Path, factor: float) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=97,
        max_position_embeddings=512,
        initializer_range=0.2,
        rope_parameters={
            "rope_theta": 500000.0,
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    )
    judge = LlamaForCausalLM(config).eval()
    judge.save_pretrained(tmp_path)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    rows = random_rows((300,), 97)
    (ours,) = packed_logits(decoder, rows)
    theirs = judge(torch.tensor([rows[0].ids])).logits[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_logits_equal_transformers_on_the_demo_model(smollm2_folder: Path) -> None:
    tokenizer = load_tokenizer(smollm2_folder)
    texts = (
        "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
        "In 1969, Apollo 11 landed on the Moon. def f(x):\n    return x ** 2",
        "日本語と emoji 🎉 mixed, don't you think?",
    )
    rows = [
        EncodedRow(i, tuple(tokenizer.encode(text)), (True,) * len(tokenizer.encode(text)))
        for i, text in enumerate(texts)
    ]
    judge = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()
    decoder = load_decoder(smollm2_folder, CPU, torch.float32)
    for row, ours in zip(rows, packed_logits(decoder, rows), strict=True):
        with torch.no_grad():
            theirs = judge(torch.tensor([row.ids])).logits[0]
        difference = (ours - theirs).abs().max()
        assert difference <= 1e-3, difference
