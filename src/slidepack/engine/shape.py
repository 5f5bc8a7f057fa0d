"""The shape of a decoder: sizes, parameter counts and tensor names, from a `config.json`.

Torch-free, so that the daemon can say what a model needs without loading it.
"""

import math
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from slidepack.engine.contract.errors import SlidepackError

SUPPORTED_ARCHITECTURES: Final = ("LlamaForCausalLM",)

_MOST_LAYERS: Final = 10_000
_LARGEST_SIZE: Final = (1 << 31) - 1
PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Names under which weights are kept as pickles."""


class RopeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding (Su et al., arXiv 2104.09864) and its long-context variant."""

    kind: Literal["default", "llama3"]
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a Llama-type decoder."""

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
    tied_head: bool

    @property
    def q_width(self) -> int:
        """Output width of q_proj."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Output width of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim

    def layer_tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors of one decoder layer in flat-buffer order, in Hugging Face's names.

        q, k, v and gate, up are neighbours, so that one matrix product can serve each group.
        """
        hidden, ffn = self.hidden, self.ffn
        return {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (self.q_width, hidden),
            "self_attn.k_proj.weight": (self.kv_width, hidden),
            "self_attn.v_proj.weight": (self.kv_width, hidden),
            "self_attn.o_proj.weight": (hidden, self.q_width),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (ffn, hidden),
            "mlp.up_proj.weight": (ffn, hidden),
            "mlp.down_proj.weight": (hidden, ffn),
        }

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
        return sum(_product(shape) for shape in self.layer_tensor_shapes().values())

    @property
    def total_params(self) -> int:
        """Parameters of the whole model; a tied head counts once."""
        ends = self.vocab * self.hidden * (1 if self.tied_head else 2) + self.hidden
        return ends + self.num_layers * self.layer_params

    def linear_shape(self, target: str) -> tuple[int, int]:
        """Return (out, in) of a decoder linear by PEFT's name, e.g. `q_proj`."""
        for name, shape in self.layer_tensor_shapes().items():
            if name.split(".")[-2] == target:
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
    if config.get("auto_map"):
        raise _unsupported(folder, "it wants to run its own code (auto_map in config.json)")
    for flag in ("attention_bias", "mlp_bias"):
        if config.get(flag):
            raise _unsupported(folder, f"{flag} is set")
    if config.get("quantization_config"):
        raise _unsupported(folder, "its weights are quantised (quantization_config)")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise _unsupported(folder, f"its activation is {config['hidden_act']}, not silu")
    try:
        heads = _size(config, "num_attention_heads")
        hidden = _size(config, "hidden_size")
        shape = ModelShape(
            architecture=architecture,
            num_layers=_size(config, "num_hidden_layers", most=_MOST_LAYERS),
            hidden=hidden,
            ffn=_size(config, "intermediate_size"),
            num_heads=heads,
            num_kv_heads=_size(config, "num_key_value_heads", default=heads),
            head_dim=_size(config, "head_dim", default=hidden // heads),
            vocab=_size(config, "vocab_size"),
            max_positions=_size(config, "max_position_embeddings", default=2048),
            rms_eps=_positive(config, "rms_norm_eps", default=1e-6),
            rope=_rope(config, folder),
            tied_head=_flag(config, "tie_word_embeddings"),
        )
    except _GarbledError as error:
        raise _not_a_model(folder, f"config.json: {error}") from error
    _check_sizes(shape, folder)
    return shape


class _GarbledError(Exception):
    """A field of the config is missing or holds what it cannot."""


def _size(
    config: dict[str, Any], name: str, *, default: int | None = None, most: int = _LARGEST_SIZE
) -> int:
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise _GarbledError(f"{name} is missing")
    # bool is an int to Python.
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise _GarbledError(f"{name} is {value!r}, not a whole number from 1 to {most}")
    return value


def _positive(config: dict[str, Any], name: str, *, default: float | None = None) -> float:
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise _GarbledError(f"{name} is missing")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise _GarbledError(f"{name} is {value!r}, not a number above 0")
    return float(value)


def _flag(config: dict[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise _GarbledError(f"{name} is {value!r}, not true or false")
    return bool(value)


def _architecture(config: dict[str, Any], folder: Path) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise _not_a_model(folder, "config.json names no architecture")
    supported = [name for name in names if name in SUPPORTED_ARCHITECTURES]
    if not supported:
        raise _unsupported(folder, f"its architecture is {', '.join(map(str, names))}")
    return str(supported[0])


def _rope(config: dict[str, Any], folder: Path) -> RopeShape:
    # transformers 5 writes `rope_parameters`; 4 wrote `rope_theta` beside `rope_scaling`.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise _GarbledError(f"the rotary scaling is {scaling!r}, not an object")
    theta = _positive(config, "rope_theta", default=10000.0)
    theta = _positive(scaling, "rope_theta", default=theta)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeShape(kind="default", theta=theta)
    if kind == "llama3":
        return RopeShape(
            kind="llama3",
            theta=theta,
            factor=_positive(scaling, "factor"),
            low_freq_factor=_positive(scaling, "low_freq_factor"),
            high_freq_factor=_positive(scaling, "high_freq_factor"),
            original_max_position=_size(scaling, "original_max_position_embeddings"),
        )
    raise _unsupported(folder, f"its rotary scaling is {kind}; default and llama3 are known")


def _check_sizes(shape: ModelShape, folder: Path) -> None:
    if shape.num_heads % shape.num_kv_heads:
        raise _not_a_model(
            folder, f"{shape.num_heads} heads do not divide among {shape.num_kv_heads} KV heads"
        )
    if shape.head_dim % 2:
        raise _unsupported(folder, f"its head size is odd ({shape.head_dim})")


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


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
