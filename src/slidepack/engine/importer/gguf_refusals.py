"""Refuses GGUF files that hold no language model of ours, and says what they hold instead."""

from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.families.gguf_table import GGUF_FAMILIES
from slidepack.engine.importer.gguf_file import GgufFile, unsupported

__all__ = ["GGUF_ARCHITECTURES", "refuse_others", "refuse_variants"]

GGUF_ARCHITECTURES: Final = tuple(dict.fromkeys(family.name for family in GGUF_FAMILIES.values()))
"""llama.cpp's names of the architectures that are read."""

_OTHER_TYPES: Final = {
    "adapter": ("a LoRA adapter, not a whole model", "Name the GGUF file of its base model."),
    "mmproj": (
        "the part of a model that sees images, not the one that speaks",
        "Name the GGUF file of the language model, which lies beside it.",
    ),
    "imatrix": ("the statistics of a quantisation, not a model", "Name the model's own GGUF file."),
    "vocab": ("a vocabulary without a model", "Name the GGUF file of a whole model."),
}
_NEUTRAL: Final[dict[str, tuple[float, ...]]] = {
    "expert_count": (0,),
    "attention.scale": (),
    "attention.max_alibi_bias": (0,),
    "attention.clamp_kqv": (0,),
    "embedding_scale": (1,),
    "residual_scale": (1,),
    "logit_scale": (1,),
    "pooling_type": (0,),
    "rope.scaling.attn_factor": (1,),
}
"""Keys that change the computation, with the values that leave it plain."""
_PLAIN_FLAGS: Final = {"attention.causal": True, "use_parallel_residual": False}
_VISION: Final = ("v.", "mm.", "vision.")


def refuse_others(gguf: GgufFile) -> None:
    """Refuse a file that is not a whole language model of an architecture that is read.

    Raises:
        SlidepackError: MODEL-NOT-A-MODEL for adapters and other parts of models, MODEL-UNSUPPORTED
            for another architecture or a model with eyes.
    """
    kind = gguf.text("general.type") or "model"
    if kind == "model" and gguf.text("adapter.type"):
        kind = "adapter"
    if gguf.architecture == "clip":
        kind = "mmproj"
    if kind != "model":
        what, fix = _OTHER_TYPES.get(kind, (f"of the type {kind}", "Name a model's GGUF file."))
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "This GGUF file is not a whole model.",
            why=f"{gguf.path.name} is {what}",
            fix=fix,
        )
    if gguf.architecture not in GGUF_ARCHITECTURES:
        raise unsupported(
            gguf.path,
            f"its architecture is {gguf.architecture or 'not named'}",
            fix="Choose a GGUF file of one of these architectures: "
            f"{', '.join(GGUF_ARCHITECTURES)}.",
        )
    seeing = sum(name.startswith(_VISION) for name in gguf.tensors)
    if seeing:
        raise unsupported(
            gguf.path,
            f"{seeing} of its tensors see images, and text alone is trained here",
            fix="Choose a file of a model for text only, or one whose part for images is apart.",
        )


def refuse_variants(gguf: GgufFile) -> None:
    """Refuse what the engine would compute otherwise.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED, MODEL-BROKEN for a value of another type.
    """
    for name, plain in _NEUTRAL.items():
        key = f"{gguf.architecture}.{name}"
        value = gguf.number(key)
        if value is not None and value not in plain:
            raise unsupported(gguf.path, f"{key} is {value:g}")
    for name, plain_flag in _PLAIN_FLAGS.items():
        key = f"{gguf.architecture}.{name}"
        if gguf.flag(key) not in (None, plain_flag):
            raise unsupported(gguf.path, f"{key} is {str(not plain_flag).lower()}")
