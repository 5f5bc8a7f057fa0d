"""Writes a whole model as one GGUF file, tensor by tensor."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quantize
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.contract import Quant
from slidepack.engine.export.gguf_family import gguf_family
from slidepack.engine.export.gguf_metadata import add_metadata
from slidepack.engine.export.gguf_rows import permuted
from slidepack.engine.export.gguf_stream import announce, append, begin, stored_bytes
from slidepack.engine.export.gguf_vocab import add_tokenizer
from slidepack.engine.export.merge import MergedWeights
from slidepack.engine.export.speech import Speech
from slidepack.engine.families.gguf_rope import rope_factors
from slidepack.engine.families.gguf_table import (
    ROPE_FREQS,
    GgufFamily,
    stores_permuted,
    stores_plus_one,
    tensor_name,
)
from slidepack.engine.shape import ModelShape

__all__ = ["gguf_bytes", "write_gguf"]

_MATRICES: Final = {"f16": GGMLQuantizationType.F16, "q8_0": GGMLQuantizationType.Q8_0}
_ALIGNMENT: Final = 32
_HEADER_BYTES_A_TENSOR: Final = 128


def write_gguf(
    path: Path,
    folder: Path,
    weights: MergedWeights,
    shape: ModelShape,
    speech: Speech,
    *,
    name: str,
    quant: Quant,
    license_name: str = "",
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> None:
    """Write the file.

    Args:
        path: of the file; its folder exists.
        folder: of the model, with config and tokenizer.
        weights: the model's tensors.
        shape: its sizes.
        speech: its special tokens and template.
        name: how the model is called.
        quant: how matrices are stored; vectors are fp32 always. A matrix whose rows do not divide
            into blocks of Q8_0 is stored as F16.
        license_name: as the base states it.
        on_bytes: called with the size of each tensor written; may raise.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED, MODEL-BROKEN.
        OSError: the disk refused.
    """
    family = gguf_family(shape)
    kinds = _kinds(shape, quant)
    writer = GGUFWriter(path, family.name)
    with closing(writer):
        add_metadata(writer, shape, family, name, quant, license_name)
        add_tokenizer(writer, folder, speech, shape)
        if shape.rope.kind == "llama3":
            announce(writer, ROPE_FREQS, (shape.head_dim // 2,), GGMLQuantizationType.F32)
        for hf_name, size in shape.tensor_shapes().items():
            announce(writer, tensor_name(hf_name, shape), size, kinds[hf_name])
        begin(writer)
        if shape.rope.kind == "llama3":
            append(writer, rope_factors(shape.rope, shape.head_dim))
        for hf_name in shape.tensor_shapes():
            data = _stored(weights, hf_name, shape, family, kinds)
            append(writer, data)
            on_bytes(data.nbytes)


def gguf_bytes(shape: ModelShape, quant: Quant) -> int:
    """Return the size of the weights in a file, with what is said of each."""
    kinds = _kinds(shape, quant)
    return sum(
        -(-stored_bytes(size, kinds[name]) // _ALIGNMENT) * _ALIGNMENT + _HEADER_BYTES_A_TENSOR
        for name, size in shape.tensor_shapes().items()
    )


def _kinds(shape: ModelShape, quant: Quant) -> dict[str, GGMLQuantizationType]:
    wanted = _MATRICES[quant]
    block, _ = GGML_QUANT_SIZES[wanted]
    kinds: dict[str, GGMLQuantizationType] = {}
    for name, size in shape.tensor_shapes().items():
        if len(size) == 1:
            kinds[name] = GGMLQuantizationType.F32
        else:
            kinds[name] = wanted if size[-1] % block == 0 else GGMLQuantizationType.F16
    return kinds


def _stored(
    weights: MergedWeights,
    name: str,
    shape: ModelShape,
    family: GgufFamily,
    kinds: Mapping[str, GGMLQuantizationType],
) -> npt.NDArray[Any]:
    kind = kinds[name]
    if stores_permuted(name, family):
        # The order of rows changes inside a head only, and a piece may end anywhere.
        whole = permuted(torch.cat(list(weights.rows(name))), shape.head_dim)
        return _encoded(name, whole, kind)
    size = shape.tensor_shapes()[name]
    if len(size) == 1:
        (vector,) = weights.rows(name)
        return _encoded(name, vector + 1.0 if stores_plus_one(name, shape) else vector, kind)
    return _joined((_encoded(name, piece, kind) for piece in weights.rows(name)), size, kind)


def _joined(
    pieces: Iterator[npt.NDArray[Any]], size: tuple[int, ...], kind: GGMLQuantizationType
) -> npt.NDArray[Any]:
    whole: npt.NDArray[Any] | None = None
    start = 0
    for piece in pieces:
        if whole is None:
            whole = np.empty((size[0], piece.shape[-1]), dtype=piece.dtype)
        whole[start : start + len(piece)] = piece
        start += len(piece)
    assert whole is not None, "a matrix has a row"
    assert whole.nbytes == stored_bytes(size, kind)
    return whole


def _encoded(name: str, rows: Tensor, kind: GGMLQuantizationType) -> npt.NDArray[Any]:
    values = rows.numpy()
    if kind == GGMLQuantizationType.F32:
        return values
    # Blocks of Q8_0 keep their scale, a 127th of their largest value, as fp16.
    most = 65504.0 * (127.0 if kind == GGMLQuantizationType.Q8_0 else 1.0)
    largest = float(np.abs(values).max())
    if not largest <= most:
        raise SlidepackError(
            "MODEL-UNSUPPORTED",
            "A weight is beyond what the file can hold.",
            why=f"{name} reaches {largest:g}, {kind.name} ends at {most:g}",
            fix="Export the model as merged.",
        )
    stored: npt.NDArray[Any] = quantize(values, kind)
    return stored
