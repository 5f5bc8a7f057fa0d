"""The shape of a decoder: sizes, parameter counts and tensor names, from a `config.json`.

Torch-free, so that the daemon can say what a model needs without loading it.
"""

import math
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


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a decoder, and which of the families' parts it has.

    All layers have the same tensors; window and rotation alone differ from layer to layer.
    """

    architecture: str
    num_layers: int
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    rms_eps: float
    rope: RopeShape
    sliding_rope: RopeShape | None = None
    """Of the layers with a window (Gemma 3); None: they rotate as the others do."""
    tied_head: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normed, head by head, before the rotation."""
    norm_plus_one: bool = False
    """Norms scale by 1 + weight."""
    sandwich_norms: bool = False
    """Attention's and feed-forward's outputs are normed before they are added (four norms)."""
    activation: Activation = "silu"
    embed_scale: float = 1.0
    """The embedding is multiplied by this, rounded to its dtype."""
    attention_scale: float | None = None
    """Of the scores; None is 1 / sqrt(head size)."""
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    """Bound of the logits."""
    layer_windows: tuple[int | None, ...] = ()
    """For each layer, tokens that a token sees, itself among them; None is all before it. Empty
    where no layer has a window."""

    @property
    def q_width(self) -> int:
        """Output width of q_proj."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Output width of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim

    def window_of(self, layer: int) -> int | None:
        """Return how many tokens a token sees at a layer, itself among them; None is all."""
        return self.layer_windows[layer] if self.layer_windows else None

    def layer_tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors of one decoder layer in flat-buffer order, in Hugging Face's names.

        q, k, v (weights, and biases) and gate, up are neighbours, so that one matrix product can
        serve each group. What weight decay spares, biases and norms, comes last.
        """
        hidden, ffn = self.hidden, self.ffn
        projections = {"q": self.q_width, "k": self.kv_width, "v": self.kv_width}
        shapes: dict[str, tuple[int, ...]] = {
            f"self_attn.{letter}_proj.weight": (width, hidden)
            for letter, width in projections.items()
        }
        shapes["self_attn.o_proj.weight"] = (hidden, self.q_width)
        shapes["mlp.gate_proj.weight"] = (ffn, hidden)
        shapes["mlp.up_proj.weight"] = (ffn, hidden)
        shapes["mlp.down_proj.weight"] = (hidden, ffn)
        if self.qkv_bias:
            for letter, width in projections.items():
                shapes[f"self_attn.{letter}_proj.bias"] = (width,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (self.head_dim,)
            shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if self.sandwich_norms:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        return shapes | {f"{norm}.weight": (hidden,) for norm in norms}

    @property
    def layer_decayed_params(self) -> int:
        """Parameters of a layer that weight decay acts on: its matrices, which come first."""
        shapes = self.layer_tensor_shapes().values()
        return sum(math.prod(shape) for shape in shapes if len(shape) == 2)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor of the checkpoint, in Hugging Face's names."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden)
        }
        for layer in range(self.num_layers):
            for name, shape in self.layer_tensor_shapes().items():
                shapes[f"model.layers.{layer}.{name}"] = shape
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied_head:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        return shapes

    @property
    def layer_params(self) -> int:
        """Parameters of one decoder layer."""
        return sum(math.prod(shape) for shape in self.layer_tensor_shapes().values())

    @property
    def total_params(self) -> int:
        """Parameters of the whole model; a tied head counts once."""
        ends = self.vocab * self.hidden * (1 if self.tied_head else 2) + self.hidden
        return ends + self.num_layers * self.layer_params

    def linear_shape(self, target: str) -> tuple[int, int]:
        """Return (out, in) of a decoder linear by PEFT's name, e.g. `q_proj`."""
        for name, shape in self.layer_tensor_shapes().items():
            if name.endswith(f".{target}.weight"):
                return (shape[0], shape[1])
        raise KeyError(target)

    def lora_params(self, rank: int, targets: tuple[str, ...]) -> int:
        """Trainable parameters of a LoRA adapter of this rank on these linears."""
        return self.num_layers * sum(rank * sum(self.linear_shape(target)) for target in targets)


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
