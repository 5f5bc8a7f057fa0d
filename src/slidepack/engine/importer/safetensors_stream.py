"""Writes a safetensors file piece by piece, so that a tensor larger than RAM is no problem.

The `safetensors` package writes only what is whole in memory. The format is small: eight bytes of
header length, a JSON header with each tensor's type, shape and byte range, then the data.
"""

import json
import math
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
    return _ITEM_BYTES * math.prod(shape)


def encode_header(
    shapes: Mapping[str, tuple[int, ...]], kind: str, item_bytes: int
) -> tuple[bytes, dict[str, int]]:
    """Return what comes before the data, and where in the file each tensor starts.

    Args:
        shapes: tensor names and shapes, in the order of their data.
        kind: the format's name of their type, e.g. `BF16`.
        item_bytes: size of an element.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts: dict[str, int] = {}
    end = 0
    for name, shape in shapes.items():
        starts[name] = end
        end += item_bytes * math.prod(shape)
        offsets = [starts[name], end]
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": offsets}
    encoded = json.dumps(entries, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    header = len(encoded).to_bytes(8, "little") + encoded
    return header, {name: start + len(header) for name, start in starts.items()}


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
    header, _ = encode_header(shapes, "F32", _ITEM_BYTES)
    end = sum(tensor_bytes(shape) for shape in shapes.values())
    written = 0
    with path.open("wb") as file:
        file.write(header)
        for chunk in chunks:
            flat = np.ascontiguousarray(chunk, dtype="<f4")
            file.write(flat.data)
            written += flat.nbytes
    if written != end:
        raise ValueError(f"{path.name} got {written} bytes of data where its header says {end}")
