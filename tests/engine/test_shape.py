"""Shapes from configs of every vintage, judged by `transformers`' own models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LORA_TARGETS
from slidepack.engine.shape import ModelShape, read_shape, refuse_pickles, shape_from_config

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 301,
}
FOLDER = Path("folder")


def _shape(**changes: Any) -> ModelShape:
    config = CONFIG | changes
    return shape_from_config({k: v for k, v in config.items() if v != "absent"}, FOLDER)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("hidden", "heads", "kv_heads", "head_dim"),
    [(48, 4, 4, 12), (48, 4, 2, 12), (48, 4, 1, 20), (64, 2, 2, None)],
)
def test_counts_equal_transformers(
    tmp_path: Path, tied: bool, hidden: int, heads: int, kv_heads: int, head_dim: int | None
) -> None:
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=97,
        max_position_embeddings=333,
        rms_norm_eps=3e-5,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    named = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shape.tensor_shapes() == named
    assert shape.total_params == sum(p.numel() for p in model.parameters())
    assert shape.layer_params == sum(p.numel() for p in model.model.layers[0].parameters())
    assert (shape.max_positions, shape.rms_eps, shape.tied_head) == (333, 3e-5, tied)
    assert shape.rope.theta == 5000.0
    assert "rope_parameters" in (tmp_path / "config.json").read_text()
    for target in LORA_TARGETS:
        weight = next(p for n, p in named.items() if f".{target}." in n)
        assert shape.linear_shape(target) == weight
        assert shape.lora_params(4, (target,)) == 2 * 4 * sum(weight)


def test_defaults_are_those_of_transformers() -> None:
    judge = LlamaConfig()
    shape = _shape()
    assert (shape.num_kv_heads, shape.head_dim) == (4, 12)
    assert shape.max_positions == judge.max_position_embeddings
    assert shape.rms_eps == judge.rms_norm_eps
    assert shape.tied_head == judge.tie_word_embeddings
    assert judge.rope_parameters is not None
    assert shape.rope.theta == judge.rope_parameters["rope_theta"]


LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("changes", "kind", "theta"),
    [
        ({}, "default", 10000.0),
        ({"rope_theta": 500000.0}, "default", 500000.0),
        ({"rope_theta": 500000, "rope_scaling": None}, "default", 500000.0),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, "default", 7.0),
        ({"rope_theta": 5.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}, "llama3", 5.0),
        ({"rope_theta": 5.0, "rope_scaling": {"type": "llama3", **LLAMA3}}, "llama3", 5.0),
        (
            {"rope_parameters": {"rope_theta": 9.0, "rope_type": "llama3", **LLAMA3}},
            "llama3",
            9.0,
        ),
    ],
)
def test_rotary_fields_of_both_versions(changes: dict[str, Any], kind: str, theta: float) -> None:
    rope = _shape(**changes).rope
    assert (rope.kind, rope.theta) == (kind, theta)
    if kind == "llama3":
        assert (rope.factor, rope.original_max_position) == (32.0, 8192)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["GPT2LMHeadModel"]},
        {"auto_map": {"AutoModel": "x.Y"}},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"quantization_config": {"quant_method": "gptq"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
        {"rope_scaling": {"rope_type": ["x"]}},
        {"head_dim": 13},
    ],
    ids=str,
)
def test_what_is_not_supported_says_so(changes: dict[str, Any]) -> None:
    with pytest.raises(SlidepackError) as caught:
        _shape(**changes)
    assert caught.value.report.code == "MODEL-UNSUPPORTED"


_SIZES = [name for name in CONFIG if name != "architectures"]
_WRONG_SIZES: list[Any] = ["absent", None, 0, -1, "48", 48.5, [], True, 1 << 40]


@pytest.mark.parametrize(
    "changes",
    [
        *({name: value} for name in _SIZES for value in _WRONG_SIZES),
        {"architectures": None},
        {"architectures": []},
        {"architectures": "LlamaForCausalLM"},
        {"num_key_value_heads": 3},
        {"num_key_value_heads": "x"},
        {"head_dim": -2},
        {"num_attention_heads": 64},
        {"max_position_embeddings": "long"},
        {"rms_norm_eps": 0},
        {"rms_norm_eps": "small"},
        {"rms_norm_eps": float("nan")},
        {"tie_word_embeddings": "false"},
        {"rope_theta": -1},
        {"rope_theta": "x"},
        {"rope_scaling": "llama3"},
        {"rope_parameters": [1]},
        {"rope_scaling": {"rope_type": "llama3"}},
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": "x"}},
    ],
    ids=str,
)
def test_garbled_configs_are_no_model(changes: dict[str, Any]) -> None:
    with pytest.raises(SlidepackError) as caught:
        _shape(**changes)
    assert caught.value.report.code == "MODEL-NOT-A-MODEL"
    assert len(caught.value.report.line()) < 500


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000])
def test_files_that_are_no_config(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(SlidepackError) as caught:
        read_shape(tmp_path)
    assert caught.value.report.code == "MODEL-NOT-A-MODEL"


def test_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(SlidepackError) as caught:
            read_shape(path)
        assert caught.value.report.code == "MODEL-NOT-FOUND"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickles_alone_are_refused(tmp_path: Path, name: str) -> None:
    refuse_pickles(tmp_path)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SlidepackError) as caught:
        refuse_pickles(tmp_path)
    assert caught.value.report.code == "MODEL-PICKLE"
    assert name in caught.value.report.why
    (tmp_path / "model.safetensors").write_bytes(b"x")
    refuse_pickles(tmp_path)


def test_unknown_linears_are_a_bug_of_the_caller() -> None:
    with pytest.raises(KeyError):
        _shape().linear_shape("lm_head")


def test_a_tiny_models_config(tiny_model: Path) -> None:
    assert read_shape(tiny_model) == _shape(
        num_key_value_heads=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    config = json.loads((tiny_model / "config.json").read_text())
    assert "rope_parameters" in config
