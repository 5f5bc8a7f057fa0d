"""A whole model with random weights in a Hugging Face folder, for timings through the daemon."""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from slidepack.engine.bench_slide.shapes import shape_named
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.folder import decoder_tensors, write_model_folder
from slidepack.engine.model.loading import random_decoder
from slidepack.engine.shape import ModelShape

__all__ = ["write_random_model"]

_SPECIAL: Final = ("<|start|>", "<|end|>", "<|pad|>")
_TEMPLATE: Final = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def write_random_model(shape_name: str, folder: Path) -> dict[str, Any]:
    """Write a Llama shape with random bf16 weights and a tokenizer of single bytes.

    Returns:
        The folder, and the parameters.

    Raises:
        SlidepackError: RUN-SPEC-INVALID where the shape is no Llama, and those of
            `write_model_folder`.
    """
    shape = shape_named(shape_name)
    if shape.architecture != "LlamaForCausalLM":
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "Random models are Llamas only.",
            why=f"{shape_name} is a {shape.architecture}",
            fix="Use llama-1b, llama-3b or llama-8b.",
        )
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    decoder = random_decoder(shape, device, torch.bfloat16, seed=0)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        base = Path(scratch)
        (base / "config.json").write_text(json.dumps(_config(shape)), encoding="utf-8")
        _write_tokenizer(base)
        write_model_folder(base, decoder_tensors(decoder), torch.bfloat16, folder)
    return {"folder": str(folder), "parameters": shape.total_params}


def _config(shape: ModelShape) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [shape.architecture],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.rms_eps,
        "hidden_act": "silu",
        "rope_theta": shape.rope.theta,
        "tie_word_embeddings": shape.tied_head,
        "torch_dtype": "bfloat16",
    }
    if shape.rope.kind == "llama3":
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": shape.rope.factor,
            "low_freq_factor": shape.rope.low_freq_factor,
            "high_freq_factor": shape.rope.high_freq_factor,
            "original_max_position_embeddings": shape.rope.original_max_position,
        }
    return config


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*_SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
