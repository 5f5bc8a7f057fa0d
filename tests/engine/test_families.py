"""Shapes of every family: published configs, both versions' keys, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.families import FAMILY_NAMES, WINDOW, family_config, tiny_family
from support.published import PUBLISHED
from transformers import AutoConfig, AutoModelForCausalLM

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LORA_TARGETS
from slidepack.engine.families.table import FAMILIES
from slidepack.engine.shape import (
    SUPPORTED_ARCHITECTURES,
    ModelShape,
    RopeShape,
    read_shape,
    shape_from_config,
)

FOLDER = Path("folder")


def _published(name: str, **changes: Any) -> ModelShape:
    config = PUBLISHED[name][0] | changes
    return shape_from_config({k: v for k, v in config.items() if v != "absent"}, FOLDER)


def _judge(config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        kwargs = {key: value for key, value in config.items() if key != "model_type"}
        return AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config["model_type"], **kwargs)
        )


def _same_as_judge(shape: ModelShape, judge: Any) -> None:
    named = {name: tuple(p.shape) for name, p in judge.named_parameters()}
    assert shape.tensor_shapes() == named
    assert shape.total_params == sum(p.numel() for p in judge.parameters())
    assert shape.layer_params == sum(p.numel() for p in judge.model.layers[0].parameters())
    for layer, block in enumerate(judge.model.layers):
        # Llama has none to name; Mistral names it in its config alone.
        window = getattr(block.self_attn, "sliding_window", None)
        if judge.config.model_type == "mistral":
            window = judge.config.sliding_window
        assert shape.window_of(layer) == window
    for target in LORA_TARGETS:
        weight = next(p for n, p in named.items() if n.endswith(f".{target}.weight"))
        assert shape.linear_shape(target) == weight


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(tmp_path: Path, name: str) -> None:
    config, params = PUBLISHED[name]
    shape = _published(name)
    assert shape.total_params == params
    judge = _judge(config)
    _same_as_judge(shape, judge)
    # The same model's config as transformers 5 writes it.
    judge.config.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert "rope_parameters" in text
    again = read_shape_of(tmp_path, config["architectures"])
    assert again == shape


def read_shape_of(folder: Path, architectures: list[str]) -> ModelShape:
    """Read a config that was saved without a model, which therefore names no architecture."""
    config = AutoConfig.from_pretrained(folder)
    config.architectures = architectures
    config.save_pretrained(folder)
    return read_shape(folder)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_tiny_models(tmp_path: Path, name: str, tied: bool) -> None:
    judge = tiny_family(tmp_path, name, tied=tied)
    shape = read_shape(tmp_path)
    _same_as_judge(shape, judge)
    assert shape.tied_head == tied
    assert shape.num_layers == 3


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_defaults_are_those_of_transformers(architecture: str) -> None:
    model_type = {
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
        "Gemma2ForCausalLM": "gemma2",
        "Gemma3ForCausalLM": "gemma3_text",
    }[architecture]
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "vocab_size": 50,
    }
    judge = _judge({"model_type": model_type, **sizes})
    shape = shape_from_config({"architectures": [architecture], **sizes}, FOLDER)
    _same_as_judge(shape, judge)
    config = judge.config
    assert shape.max_positions == config.max_position_embeddings
    assert shape.rms_eps == config.rms_norm_eps
    assert shape.tied_head == config.tie_word_embeddings
    assert shape.num_kv_heads == config.num_key_value_heads
    ropes = config.rope_parameters
    if "full_attention" in ropes:
        assert shape.sliding_rope is not None
        assert shape.sliding_rope.theta == ropes["sliding_attention"]["rope_theta"]
        ropes = ropes["full_attention"]
    assert shape.rope.theta == ropes["rope_theta"]
    assert shape.attention_soft_cap == getattr(config, "attn_logit_softcapping", None)
    assert shape.final_soft_cap == getattr(config, "final_logit_softcapping", None)
    if shape.attention_scale is not None:
        assert shape.attention_scale == config.query_pre_attn_scalar**-0.5


GEMMA_3_ROPES = (
    RopeShape(kind="linear", theta=1_000_000.0, factor=8.0),
    RopeShape(kind="default", theta=10_000.0),
)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        {"rope_scaling": {"factor": 8.0, "type": "linear"}, "rope_theta": "absent"},
        {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_local_base_freq": "absent"},
        {
            "rope_theta": "absent",
            "rope_local_base_freq": "absent",
            "rope_scaling": "absent",
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ],
    ids=str,
)
def test_two_ropes(changes: dict[str, Any]) -> None:
    shape = _published("gemma-3-1b-it", **changes)
    assert (shape.rope, shape.sliding_rope) == GEMMA_3_ROPES


def test_which_layers_have_windows() -> None:
    assert set(_published("Mistral-7B-v0.1").layer_windows) == {4096}
    assert _published("Mistral-Large-Instruct-2407").layer_windows == ()
    assert _published("Qwen2.5-7B").layer_windows == ()
    assert _published("gemma-2-2b").layer_windows == (4096, None) * 13
    gemma = _published("gemma-3-1b-it").layer_windows
    assert [layer for layer, window in enumerate(gemma) if window is None] == [5, 11, 17, 23]
    tail = _published("Qwen2.5-7B", use_sliding_window=True, max_window_layers=26)
    assert tail.layer_windows == (None,) * 26 + (131072,) * 2
    named = ["full_attention"] * 27 + ["sliding_attention"]
    tail = _published("Qwen2.5-7B", use_sliding_window=True, layer_types=named)
    assert tail.layer_windows == (None,) * 27 + (131072,)


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("gemma-3-1b-it", {"architectures": ["Gemma3ForConditionalGeneration"]}, "Conditional"),
        ("gemma-3-1b-it", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma-3-1b-it", {"use_bidirectional_attention": True}, "use_bidirectional"),
        ("gemma-2-2b", {"hidden_activation": "gelu"}, "gelu"),
        ("gemma-2-2b", {"hidden_activation": "silu"}, "silu"),
        ("Qwen2.5-7B", {"hidden_act": "gelu_pytorch_tanh"}, "gelu_pytorch_tanh"),
        ("Qwen2.5-7B", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ("Qwen2.5-7B", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ("Qwen2.5-7B", {"rope_parameters": {"full_attention": {"factor": 4.0}}}, "layer to layer"),
        ("Qwen2.5-7B", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary"),
        ("Qwen2.5-7B", {"layer_types": ["linear_attention"] * 28}, "linear_attention"),
        ("Qwen3-0.6B", {"attention_bias": True}, "attention_bias"),
        (
            "Mistral-7B-v0.1",
            {"layer_types": ["full_attention", "sliding_attention"] * 16},
            "layer_types",
        ),
    ],
    ids=str,
)
def test_what_is_not_supported_names_it(name: str, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(SlidepackError) as caught:
        _published(name, **changes)
    report = caught.value.report
    assert report.code == "MODEL-UNSUPPORTED"
    assert word in report.why
    assert all(architecture in report.fix for architecture in FAMILIES)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Mistral-7B-v0.1", {"sliding_window": 0}),
        ("Mistral-7B-v0.1", {"sliding_window": "wide"}),
        ("Qwen2.5-7B", {"use_sliding_window": 1}),
        ("Qwen2.5-7B", {"use_sliding_window": True, "max_window_layers": -1}),
        ("Qwen2.5-7B", {"layer_types": ["sliding_attention"] * 28}),
        ("Qwen2.5-7B", {"layer_types": ["full_attention"] * 27}),
        ("Qwen2.5-7B", {"layer_types": "full_attention"}),
        ("gemma-2-2b", {"final_logit_softcapping": -30.0}),
        ("gemma-2-2b", {"attn_logit_softcapping": "x"}),
        ("gemma-2-2b", {"query_pre_attn_scalar": 0}),
        ("gemma-2-2b", {"sliding_window": None, "layer_types": ["sliding_attention"] * 26}),
        ("gemma-3-1b-it", {"sliding_window_pattern": 0}),
        ("gemma-3-1b-it", {"rope_local_base_freq": "x"}),
        ("gemma-3-1b-it", {"rope_parameters": {"full_attention": 3}}),
        ("gemma-3-1b-it", {"rope_scaling": {"rope_type": "linear"}}),
    ],
    ids=str,
)
def test_garbled_fields_are_no_model(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(SlidepackError) as caught:
        _published(name, **changes)
    assert caught.value.report.code == "MODEL-NOT-A-MODEL"


def test_a_gemma_2_without_caps_has_none() -> None:
    shape = _published("gemma-2-2b", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (shape.attention_soft_cap, shape.final_soft_cap) == (None, None)
    assert family_config("gemma2").sliding_window == WINDOW
