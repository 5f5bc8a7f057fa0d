"""Files of flat tensors in the safetensors layout, streamed: memory to disk without a copy.

The library's own writer copies each tensor first, which for a model's whole state is what the
machine has no room for.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from slidepack.engine.sliding.steady_sync import SteadySync

__all__ = ["file_digest", "read_tensors", "write_tensors"]

_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
}
_PIECE: Final = 16 << 20
"""Bytes handed to the system at once."""


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], on_progress: Callable[[], None] = lambda: None
) -> str:
    """Write contiguous CPU tensors durably; return the digest of the file.

    Args:
        path: of the file; what is there is overwritten.
        tensors: by name.
        on_progress: called with each piece that was written.

    Raises:
        OSError: the disk refused.
    """
    header = _header(tensors)
    digest = hashlib.sha256(header)
    with path.open("wb") as file:
        sync = SteadySync(file, on_progress)
        file.write(header)
        for tensor in tensors.values():
            for piece in _pieces(tensor):
                file.write(piece)
                digest.update(piece)
                sync.wrote(len(piece))
        sync.finish()
    return digest.hexdigest()


def read_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Fill contiguous CPU tensors from a file of exactly these; return the digest of the file.

    Where the file is damaged but has the right layout, the tensors are filled with what it holds:
    compare the digest.

    Raises:
        ValueError: the file is not one of exactly these tensors.
        OSError: the file cannot be read.
    """
    header = _header(tensors)
    digest = hashlib.sha256(header)
    with path.open("rb") as file:
        if file.read(len(header)) != header:
            raise ValueError(f"{path.name} does not hold the tensors {', '.join(tensors)}")
        for name, tensor in tensors.items():
            for piece in _pieces(tensor):
                _fill(file, piece, f"{path.name}: {name}")
                digest.update(piece)
        if file.read(1):
            raise ValueError(f"{path.name} is longer than its tensors")
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return the digest of a file, as `write_tensors` and `read_tensors` do.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, Any] = {}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _pieces(tensor: Tensor) -> list[memoryview]:
    """Return the tensor's memory, in pieces."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    whole = flat.numpy().data
    return [whole[start : start + _PIECE] for start in range(0, len(whole), _PIECE)]


def _fill(file: BinaryIO, piece: memoryview, what: str) -> None:
    done = 0
    while done < len(piece):
        count = file.readinto(piece[done:])  # type: ignore[attr-defined]  # BinaryIO lacks it
        if not count:
            raise ValueError(f"{what} ends early")
        done += count
