"""Turns the sizes in a Llama-type GGUF file into a `config.json`, and refuses its variants."""

from typing import Any, Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported

SUPPORTED_GGUF_ARCHITECTURES: Final = ("llama",)

_NEUTRAL: Final[dict[str, tuple[float, ...]]] = {
    "llama.expert_count": (0,),
    "llama.attention.sliding_window": (0,),
    "llama.attention.scale": (),
    "llama.embedding_scale": (1,),
    "llama.residual_scale": (1,),
    "llama.logit_scale": (1,),
    "llama.rope.scale_linear": (1,),
    "llama.rope.scaling.factor": (1,),
    "llama.rope.scaling.attn_factor": (1,),
    "split.count": (0, 1),
}
"""Keys that change the computation, with the values that leave it plain."""


def read_config(gguf: GgufFile) -> dict[str, Any]:
    """Return the `config.json` of the model in the file.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED for another architecture or a variant that the engine
            does not compute, MODEL-NOT-A-MODEL for an adapter, MODEL-BROKEN for missing sizes.
    """
    _refuse_variants(gguf)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise broken(gguf.path, "it has no token_embd.weight")
    heads = _size(gguf, "llama.attention.head_count")
    hidden = _size(gguf, "llama.embedding_length")
    head_dim = gguf.integer("llama.attention.key_length") or hidden // heads
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if (gguf.integer(key) or head_dim) != head_dim:
            raise unsupported(gguf.path, f"{key} is {gguf.integer(key)}, its heads are {head_dim}")
    layers = _size(gguf, "llama.block_count")
    if layers > len(gguf.tensors):
        raise broken(gguf.path, f"{layers} layers in {len(gguf.tensors)} tensors")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": _size(gguf, "llama.feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.integer("llama.attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "rms_norm_eps": gguf.number("llama.attention.layer_norm_rms_epsilon") or 1e-5,
        "rope_theta": gguf.number("llama.rope.freq_base") or 10000.0,
        "max_position_embeddings": _size(gguf, "llama.context_length"),
        "vocab_size": int(embedding.shape[-1]),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token = gguf.integer(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            config[f"{name}_token_id"] = token
    return config


def _refuse_variants(gguf: GgufFile) -> None:
    kind = gguf.text("general.type") or "model"
    if kind != "model":
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "This GGUF file is not a whole model.",
            why=f"{gguf.path.name}: general.type is {kind}",
            fix="Name the GGUF file of the base model.",
        )
    architecture = gguf.text("general.architecture")
    if architecture not in SUPPORTED_GGUF_ARCHITECTURES:
        raise unsupported(
            gguf.path,
            f"its architecture is {architecture or 'not named'}",
            fix="Choose a GGUF file of one of these architectures: "
            f"{', '.join(SUPPORTED_GGUF_ARCHITECTURES)}.",
        )
    scaling = gguf.text("llama.rope.scaling.type") or "none"
    # Linear scaling by 1, which some converters write, scales nothing; the factor is checked below.
    if scaling not in ("none", "linear"):
        raise unsupported(gguf.path, f"its rotary scaling is {scaling}")
    if "rope_freqs.weight" in gguf.tensors:
        raise unsupported(gguf.path, "it scales its rotary frequencies (rope_freqs.weight)")
    for key, plain in _NEUTRAL.items():
        value = gguf.number(key)
        if value is not None and value not in plain:
            raise unsupported(gguf.path, f"{key} is {value:g}")


def _size(gguf: GgufFile, key: str) -> int:
    value = gguf.integer(key)
    if value is None or value < 1:
        raise broken(gguf.path, f"{key} is {'missing' if value is None else value}")
    return value
