"""Results to export: small models that llama.cpp can compute, tokenizers, random adapters."""

import json
import os
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.export.contract import ExportRequest, ExportResult
from slidepack.engine.export.peft import write_peft_folder
from slidepack.engine.export.report import Reporter
from slidepack.engine.export.run import run
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.shape import read_shape
from support.families import LLAMA3_ROPE, WINDOW
from support.tiny import TEMPLATE

SPECIAL: Final = ("<|start|>", "<|end|>", "<|pad|>")
USER_DEFINED: Final = "<note>"
MERGES: Final = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "a"), ("Ġ", "t"))
VOCAB: Final = 273
"""More rows than tokens, as of many published models."""
_PIECES: Final = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
_PIECE_MERGES: Final = [
    ("l", "l"),
    ("h", "e"),
    ("▁", "he"),
    ("ll", "o"),
    ("▁he", "llo"),
    ("▁", "l"),
]
_SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_WORDS: Final = {
    "llama-bpe": r"\p{N}{1,3}",
    "qwen2": r"\p{N}",
}
EXPORTABLE: Final = (
    "llama",
    "llama-tied",
    "llama3",
    "mistral",
    "mistral-window",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "gemma3-linear",
)


def exportable_config(name: str) -> PreTrainedConfig:
    """Return a small configuration of a family, in a form that llama.cpp computes."""
    gemma = _SIZES | {
        "head_dim": 24,
        "query_pre_attn_scalar": 24,
        "sliding_window": WINDOW,
        "tie_word_embeddings": True,
    }
    layers = ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"]
    local = {"rope_type": "default", "rope_theta": 10000.0}
    match name:
        case "llama" | "llama-tied":
            rope = {"rope_theta": 3000.0, "rope_type": "default"}
            tied = name == "llama-tied"
            return LlamaConfig(**_SIZES, rope_parameters=rope, tie_word_embeddings=tied)
        case "llama3":
            return LlamaConfig(**_SIZES, head_dim=24, rope_parameters=LLAMA3_ROPE)
        case "mistral":
            return MistralConfig(**_SIZES, head_dim=24, sliding_window=None)
        case "mistral-window":
            return MistralConfig(**_SIZES, sliding_window=24)
        case "qwen2":
            return Qwen2Config(**_SIZES, tie_word_embeddings=True)
        case "qwen3":
            return Qwen3Config(**_SIZES, head_dim=24)
        case "gemma2":
            return Gemma2Config(**gemma, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
        case "gemma3":
            return Gemma3TextConfig(**(gemma | {"num_hidden_layers": 7}), layer_types=layers)
        case "gemma3-linear":
            full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 9000.0}
            ropes = {"full_attention": full, "sliding_attention": local}
            sizes = gemma | {"num_hidden_layers": 7}
            return Gemma3TextConfig(**sizes, layer_types=layers, rope_parameters=ropes)
    raise KeyError(name)


def words(pre: str) -> pre_tokenizers.PreTokenizer:
    """Return how a pre-tokenizer that llama.cpp knows divides text."""
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, words("gpt-2")])
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + _WORDS[pre]
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only])


def merging_tokenizer(pre: str = "gpt-2") -> Tokenizer:
    """Return a byte-level tokenizer with a few merges, special tokens and one of the user's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL, *alphabet, *("".join(pair) for pair in MERGES)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES)))
    tokenizer.pre_tokenizer = words(pre)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(USER_DEFINED, special=False, normalized=False)])
    return tokenizer


def save_merging_tokenizer(folder: Path, pre: str = "gpt-2") -> None:
    """Write the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    merging_tokenizer(pre).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|start|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_pieces(folder: Path, *, prefix: bool) -> Tokenizer:
    """Write a tokenizer as those that were made from SentencePiece models."""
    made = ["".join(pair) for pair in _PIECE_MERGES]
    tokens = [*_PIECES, *made, "▁", "h", "e", "l", "o"]
    vocab = {token: index for index, token in enumerate(tokens)}
    assert len(vocab) <= VOCAB
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab, merges=_PIECE_MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return tokenizer


def save_exportable(
    folder: Path, name: str, *, dtype: torch.dtype = torch.float32, pre: str = "gpt-2"
) -> Path:
    """Write a small random model of a family with its tokenizer and return its folder."""
    torch.manual_seed(3)
    model: Any = AutoModelForCausalLM.from_config(exportable_config(name))
    plus_one = name.startswith("gemma")
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "norm" in path:
                parameter.uniform_(-0.5 if plus_one else 0.5, 0.5 if plus_one else 1.5)
            elif path.endswith("bias"):
                parameter.normal_(0.0, 0.5)
    torch.nn.Module.to(model, dtype)
    model.save_pretrained(folder)
    save_merging_tokenizer(folder, pre)
    return folder


def random_adapter(base: Path, result: Path, method: LoraMethod | None = None) -> Path:
    """Write an adapter as training does, B drawn at random, and return the result folder."""
    shape = read_shape(base)
    arena = LoraArena(
        shape,
        method or LoraMethod(rank=3, alpha=5),
        LanePool(torch.device("cpu"), torch.float32),
    )
    arena.initialise(1)
    values = arena.master().clone()
    generator = torch.Generator().manual_seed(2)
    for _, _, pair in arena.pairs(values):
        pair.b.copy_(torch.empty(pair.b.shape).normal_(0.0, 0.1, generator=generator))
    arena.set_master(values)
    write_peft_folder(arena, "base", result / "adapter")
    return result


def export(result: Path, base: Path, target: Path, kind: Any, **changes: Any) -> ExportResult:
    """Export a result in this process."""
    request = ExportRequest(
        result=str(result), base=str(base), target=str(target), format=kind, **changes
    )
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        return run(request, Reporter(nowhere))
    finally:
        os.close(nowhere)
