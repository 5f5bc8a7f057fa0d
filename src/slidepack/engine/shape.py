"""The shape of a decoder: sizes, parameter counts and tensor names, from a `config.json`.

Torch-free, so that the daemon can say what a model needs without loading it.
"""

from pathlib import Path
from typing import Any, Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.families.fields import (
    GarbledError,
    UnsupportedError,
    flag,
    optional_positive,
    positive,
    size,
)
from slidepack.engine.families.model_shape import ModelShape
from slidepack.engine.families.rope import RopeShape, read_ropes
from slidepack.engine.families.table import FAMILIES, Activation, Family
from slidepack.engine.families.windows import layer_windows

__all__ = [
    "PICKLE_SUFFIXES",
    "SUPPORTED_ARCHITECTURES",
    "ModelShape",
    "RopeShape",
    "read_shape",
    "refuse_pickles",
    "shape_from_config",
]

SUPPORTED_ARCHITECTURES: Final = tuple(FAMILIES)

_MOST_LAYERS: Final = 10_000
PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Names under which weights are kept as pickles."""
_ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def read_shape(folder: Path) -> ModelShape:
    """Read the shape of the model in a Hugging Face folder.

    Raises:
        SlidepackError: MODEL-NOT-FOUND, MODEL-NOT-A-MODEL, MODEL-PICKLE or MODEL-UNSUPPORTED.
    """
    if not folder.is_dir():
        raise SlidepackError(
            "MODEL-NOT-FOUND",
            "There is no such model folder.",
            why=f"{folder} is not a folder",
            fix="Name a Hugging Face folder or a GGUF file.",
        )
    path = folder / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise _not_a_model(folder, "it has no config.json") from error
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise _not_a_model(folder, f"config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise _not_a_model(folder, "config.json is not an object")
    return shape_from_config(config, folder)


def refuse_pickles(folder: Path) -> None:
    """Refuse a folder whose weights are only there as pickles, which can run code when read.

    Raises:
        SlidepackError: MODEL-PICKLE.
    """
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise SlidepackError(
            "MODEL-PICKLE",
            "The weights are pickle files, which can run code when they are read.",
            why=f"{folder} holds {', '.join(pickles[:3])} and no .safetensors file",
            fix="Get the model's safetensors files, or convert it where you trust it.",
        )


def shape_from_config(config: dict[str, Any], folder: Path) -> ModelShape:
    """Build the shape from a parsed `config.json`; `folder` is named in errors.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED or MODEL-NOT-A-MODEL.
    """
    architecture = _architecture(config, folder)
    family = FAMILIES[architecture]
    try:
        _refuse_variants(config, family)
        shape = _shape(config, architecture, family)
    except UnsupportedError as error:
        raise _unsupported(folder, str(error)) from error
    except GarbledError as error:
        raise _not_a_model(folder, f"config.json: {error}") from error
    _check_sizes(shape, folder)
    return shape


def _architecture(config: dict[str, Any], folder: Path) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise _not_a_model(folder, "config.json names no architecture")
    supported = [name for name in names if name in SUPPORTED_ARCHITECTURES]
    if not supported:
        raise _unsupported(folder, f"its architecture is {', '.join(map(str, names))}")
    return str(supported[0])


def _refuse_variants(config: dict[str, Any], family: Family) -> None:
    if config.get("auto_map"):
        raise UnsupportedError("it wants to run its own code (auto_map in config.json)")
    if config.get("quantization_config"):
        raise UnsupportedError("its weights are quantised (quantization_config)")
    flags = ["attention_bias", "mlp_bias", "use_bidirectional_attention"]
    if family.attention_soft_cap is None:
        flags.append("attn_logit_softcapping")
    for name in flags:
        if config.get(name):
            raise UnsupportedError(f"{name} is set")
    named = config.get(family.activation_field)
    if named is not None and _ACTIVATIONS.get(str(named)) != family.activation:
        raise UnsupportedError(f"its activation is {named}, not {family.activation}")


def _shape(config: dict[str, Any], architecture: str, family: Family) -> ModelShape:
    heads = size(config, "num_attention_heads")
    hidden = size(config, "hidden_size")
    layers = size(config, "num_hidden_layers", most=_MOST_LAYERS)
    rope, sliding_rope = read_ropes(config, family)
    scale = attention_cap = final_cap = None
    if family.query_scalar is not None:
        scale = positive(config, "query_pre_attn_scalar", default=family.query_scalar) ** -0.5
        attention_cap, final_cap = (
            optional_positive(config, f"{part}_logit_softcapping", default=default)
            for part, default in (
                ("attn", family.attention_soft_cap),
                ("final", family.final_soft_cap),
            )
        )
    return ModelShape(
        architecture=architecture,
        num_layers=layers,
        hidden=hidden,
        ffn=size(config, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=_kv_heads(config, family, heads),
        head_dim=size(config, "head_dim", default=family.head_dim or hidden // heads),
        vocab=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings", default=family.max_positions),
        rms_eps=positive(config, "rms_norm_eps", default=1e-6),
        rope=rope,
        sliding_rope=sliding_rope,
        tied_head=flag(config, "tie_word_embeddings", default=family.tied_head),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        norm_plus_one=family.norm_plus_one,
        sandwich_norms=family.sandwich_norms,
        activation=family.activation,
        embed_scale=hidden**0.5 if family.scaled_embedding else 1.0,
        attention_scale=scale,
        attention_soft_cap=attention_cap,
        final_soft_cap=final_cap,
        layer_windows=layer_windows(config, family, layers),
    )


def _kv_heads(config: dict[str, Any], family: Family, heads: int) -> int:
    # null says as many as heads; a config without the field, the family's default.
    missing = heads if "num_key_value_heads" in config else family.kv_heads or heads
    return size(config, "num_key_value_heads", default=missing)


def _check_sizes(shape: ModelShape, folder: Path) -> None:
    if shape.num_heads % shape.num_kv_heads:
        raise _not_a_model(
            folder, f"{shape.num_heads} heads do not divide among {shape.num_kv_heads} KV heads"
        )
    if shape.head_dim % 2:
        raise _unsupported(folder, f"its head size is odd ({shape.head_dim})")


def _not_a_model(folder: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-NOT-A-MODEL",
        "This folder is not a model.",
        why=f"{folder}: {why}",
        fix="Name a Hugging Face folder with config.json, tokenizer.json and safetensors files.",
    )


def _unsupported(folder: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-UNSUPPORTED",
        "This model is not supported yet.",
        why=f"{folder.name}: {why}",
        fix=f"Choose a model of one of these architectures: {', '.join(SUPPORTED_ARCHITECTURES)}.",
    )
