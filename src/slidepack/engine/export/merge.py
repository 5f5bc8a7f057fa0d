"""A model's weights with an adapter folded in: W + scale · B · A, tensor by tensor."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from torch import Tensor

from slidepack.engine.export.adapter import Adapter
from slidepack.engine.model.loading import Shards
from slidepack.engine.shape import ModelShape

__all__ = ["MergedWeights", "stored_dtype"]

_PIECE_ELEMENTS: Final = 1 << 24
"""Elements that are merged at once: 64 MiB in fp32."""
_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class MergedWeights:
    """The tensors of a folder by name; each is read, merged and let go of by itself."""

    def __init__(self, folder: Path, shape: ModelShape, adapter: Adapter | None) -> None:
        """Open the folder's files.

        Args:
            folder: of the base model, or of a model that was trained as a whole.
            shape: its sizes.
            adapter: what is added; None for the weights as they are.

        Raises:
            SlidepackError: MODEL-PICKLE or MODEL-BROKEN.
        """
        self._shards = Shards(folder)
        self._sizes = shape.tensor_shapes()
        self._adapter = adapter

    def rows(self, name: str) -> Iterator[Tensor]:
        """Yield a tensor in fp32, some rows at a time, in their order; a vector as a whole.

        Raises:
            SlidepackError: MODEL-BROKEN.
        """
        source = self._shards.read(name, self._sizes[name])
        pair = None if self._adapter is None else self._adapter.pairs.get(name)
        step = max(1, _PIECE_ELEMENTS // source.shape[-1]) if source.dim() > 1 else len(source)
        for start in range(0, len(source), step):
            # The copy keeps the file's own memory, which may be mapped, from being written to.
            piece = source[start : start + step].to(torch.float32, copy=True)
            if pair is not None and self._adapter is not None:
                piece.addmm_(pair.b[start : start + step], pair.a, alpha=self._adapter.method.scale)
            yield piece

    def tensors(
        self, dtype: torch.dtype, on_bytes: Callable[[int], None] = lambda _count: None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor in the model's order, merged in fp32 and rounded once to `dtype`.

        Args:
            dtype: of the result.
            on_bytes: called with the size of each tensor when it has been taken; may raise.

        Raises:
            SlidepackError: MODEL-BROKEN.
        """
        for name, size in self._sizes.items():
            whole = torch.empty(size, dtype=dtype)
            start = 0
            for piece in self.rows(name):
                whole[start : start + len(piece)] = piece
                start += len(piece)
            yield name, whole
            on_bytes(whole.nbytes)


def stored_dtype(folder: Path, shape: ModelShape) -> torch.dtype:
    """Return the narrowest dtype that holds every weight of a folder exactly: fp32, fp16 or bf16.

    Raises:
        OSError: a file cannot be read.
    """
    wanted = shape.tensor_shapes()
    found: set[torch.dtype] = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name in wanted]  # noqa: SIM118 - no mapping
            found.update(_DTYPES[file.get_slice(name).get_dtype()] for name in names)
    return found.pop() if len(found) == 1 else torch.float32
