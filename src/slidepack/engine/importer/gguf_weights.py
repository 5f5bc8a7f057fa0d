"""Dequantises the tensors of a GGUF file, whole or in pieces of whole rows."""

from collections.abc import Iterator

import numpy as np
from gguf import ReaderTensor, dequantize

from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported
from slidepack.engine.importer.safetensors_stream import Chunk

__all__ = ["dequantised", "pieces", "refuse_unreadable_types"]


def refuse_unreadable_types(gguf: GgufFile) -> None:
    """Refuse a file with a type of tensor that the `gguf` package does not widen.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED.
    """
    samples = {tensor.tensor_type: tensor for tensor in gguf.tensors.values()}
    for tensor in samples.values():
        _widened(gguf, tensor, slice(0, 1) if tensor.data.ndim > 1 else slice(None))


def dequantised(gguf: GgufFile, tensor: ReaderTensor) -> Chunk:
    """Return a whole tensor in fp32.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED where its type cannot be read.
    """
    return _widened(gguf, tensor, slice(None))


def pieces(gguf: GgufFile, tensor: ReaderTensor, rows: int) -> Iterator[Chunk]:
    """Yield a tensor in fp32, so many rows at a time; a vector comes whole.

    Raises:
        SlidepackError: MODEL-BROKEN where a value is not finite.
    """
    whole = tensor.data.ndim == 1
    for start in range(0, 1 if whole else len(tensor.data), rows):
        piece = _widened(gguf, tensor, slice(None) if whole else slice(start, start + rows))
        if not np.isfinite(piece).all():
            raise broken(gguf.path, f"{tensor.name} holds values that are not finite")
        yield piece


def _widened(gguf: GgufFile, tensor: ReaderTensor, rows: slice) -> Chunk:
    # Garbage in a damaged file overflows; the caller looks for what is not finite.
    try:
        with np.errstate(all="ignore"):
            return dequantize(tensor.data[rows], tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise unsupported(gguf.path, f"{tensor.name} is stored as {kind}") from error
