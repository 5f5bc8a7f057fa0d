"""Writes a safetensors file piece by piece, so that a tensor larger than RAM is no problem.

The `safetensors` package writes only what is whole in memory. The format is small: eight bytes of
header length, a JSON header with each tensor's type, shape and byte range, then the data.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Chunk = npt.NDArray[np.float32]

_ALIGNMENT: Final = 8
_ITEM_BYTES: Final = 4


def tensor_bytes(shape: tuple[int, ...]) -> int:
    """Return the size of a float32 tensor in bytes."""
    size = _ITEM_BYTES
    for length in shape:
        size *= length
    return size


def write_float32(
    path: Path, shapes: Mapping[str, tuple[int, ...]], chunks: Iterable[Chunk]
) -> None:
    """Write float32 tensors of these shapes to `path`.

    Args:
        path: the file to create.
        shapes: tensor names and shapes, in the order in which `chunks` brings them.
        chunks: float32 arrays of any shape whose elements, one after the other in C order, fill
            the tensors in turn.

    Raises:
        OSError: the disk refused.
        ValueError: the chunks hold more or fewer elements than the shapes.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + tensor_bytes(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    written = 0
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for chunk in chunks:
            flat = np.ascontiguousarray(chunk, dtype="<f4")
            file.write(flat.data)
            written += flat.nbytes
    if written != end:
        raise ValueError(f"{path.name} got {written} bytes of data where its header says {end}")
