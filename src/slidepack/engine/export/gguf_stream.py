"""Writes the tensors of a GGUF file one after the other, behind the package's header."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

__all__ = ["announce", "append", "begin", "stored_bytes"]


def stored_bytes(size: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    """Return the bytes of a tensor of `size` elements."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return math.prod(size) // block * block_bytes


def announce(
    writer: GGUFWriter, name: str, size: tuple[int, ...], kind: GGMLQuantizationType
) -> None:
    """Say what a tensor is going to be; all are announced, in their order, before one is written.

    Args:
        writer: of the file.
        name: of the tensor.
        size: in elements.
        kind: how it is stored.
    """
    # The type is told beside the size: the writer takes sizes in bytes for uint8 alone.
    nbytes = stored_bytes(size, kind)
    writer.add_tensor_info(name, size, np.dtype(np.float32), nbytes, raw_dtype=kind)


def begin(writer: GGUFWriter) -> None:
    """Write what comes before the data.

    Raises:
        OSError: the disk refused.
    """
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def append(writer: GGUFWriter, data: npt.NDArray[Any]) -> None:
    """Write the data of the next tensor.

    Not by the writer's own method: that one goes through numpy, which hides why a disk refused.

    Raises:
        OSError: the disk refused.
    """
    assert writer.fout is not None, "what comes before the data is written"
    (file,) = writer.fout
    writer.write_padding(file, file.tell())
    file.write(np.ascontiguousarray(data).view(np.uint8).data)
    writer.write_padding(file, data.nbytes)
