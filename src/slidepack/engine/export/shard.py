"""Writes one safetensors file of a model, tensor by tensor."""

import os
from pathlib import Path
from typing import BinaryIO, Final

import torch
from torch import Tensor

from slidepack.engine.importer.safetensors_stream import encode_header

__all__ = ["DTYPES", "Shard"]

DTYPES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""What can be written, with the format's names."""
_PIECE_ELEMENTS: Final = 1 << 24
"""Elements that are converted and copied from a GPU at once: at most 64 MiB."""


class Shard:
    """One safetensors file, written aside and given its name when every tensor is there."""

    def __init__(self, path: Path, sizes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        """Open the file.

        Args:
            path: the name it gets in the end.
            sizes: its tensors and their shapes.
            dtype: a key of `DTYPES`.

        Raises:
            OSError: the disk refused.
        """
        self._path = path
        self._sizes = sizes
        self._dtype = dtype
        self._left = set(sizes)
        header, self._starts = encode_header(sizes, DTYPES[dtype], dtype.itemsize)
        self._aside = path.with_name(f".{path.name}.tmp")
        self._file: BinaryIO = self._aside.open("wb")
        self._file.write(header)

    @property
    def is_whole(self) -> bool:
        """Whether every tensor is written."""
        return not self._left

    def write(self, name: str, tensor: Tensor) -> None:
        """Write a tensor, in any order of tensors, piece by piece.

        Raises:
            ValueError: it has another shape.
            OSError: the disk refused.
        """
        if tuple(tensor.shape) != self._sizes[name]:
            raise ValueError(f"{name} is {tuple(tensor.shape)}, not {self._sizes[name]}")
        self._file.seek(self._starts[name])
        flat = tensor.detach().reshape(-1)
        for start in range(0, flat.numel(), _PIECE_ELEMENTS):
            piece = flat[start : start + _PIECE_ELEMENTS].to(device="cpu", dtype=self._dtype)
            self._file.write(piece.contiguous().view(torch.uint8).numpy().data)
        self._left.remove(name)

    def finish(self) -> None:
        """Make the file durable and give it its name.

        Raises:
            OSError: the disk refused.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._aside.rename(self._path)

    def close(self) -> None:
        """Close a file that is not to be finished."""
        self._file.close()
