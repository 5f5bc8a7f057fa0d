"""Turns the weights of a GGUF file into a Hugging Face folder's."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from slidepack.engine.families.gguf_table import (
    GGUF_FAMILIES,
    ROPE_FREQS,
    stores_permuted,
    stores_plus_one,
    tensor_name,
)
from slidepack.engine.importer.gguf_config import read_config
from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported
from slidepack.engine.importer.gguf_weights import pieces, refuse_unreadable_types
from slidepack.engine.importer.safetensors_stream import Chunk, tensor_bytes, write_float32
from slidepack.engine.shape import ModelShape, shape_from_config

SHARD_BYTES: Final = 1_000_000_000

PIECE_ELEMENTS: Final = 1 << 22


def read_model_shape(gguf: GgufFile) -> ModelShape:
    """Return the model's shape after checking that the file holds every tensor it needs.

    Raises:
        SlidepackError: as `read_config`; MODEL-BROKEN too where a tensor is missing or has another
            shape, MODEL-UNSUPPORTED where there is one too many or its type cannot be read.
    """
    shape = shape_from_config(read_config(gguf), gguf.path)
    expected = {tensor_name(name, shape): sizes for name, sizes in shape.tensor_shapes().items()}
    missing = [name for name in expected if name not in gguf.tensors]
    if missing:
        raise broken(gguf.path, f"{len(missing)} tensors are missing, first {missing[0]}")
    extra = sorted(set(gguf.tensors) - set(expected) - {ROPE_FREQS})
    if extra:
        raise unsupported(gguf.path, f"it has tensors with no place here, such as {extra[0]}")
    for name, sizes in expected.items():
        found = tuple(int(size) for size in reversed(gguf.tensors[name].shape))
        if found != sizes:
            raise broken(gguf.path, f"{name} is {found} where its sizes say {sizes}")
    refuse_unreadable_types(gguf)
    return shape


def write_model(
    gguf: GgufFile,
    shape: ModelShape,
    target: Path,
    on_bytes: Callable[[int], None],
    *,
    shard_bytes: int = SHARD_BYTES,
    piece_elements: int = PIECE_ELEMENTS,
) -> None:
    """Write config.json and the weights, in float32, into the folder `target`.

    Weights are dequantised and written about `piece_elements` at a time; `on_bytes` gets the size
    of every piece. More than `shard_bytes` in all gives numbered files and an index.

    Raises:
        SlidepackError: MODEL-BROKEN where a weight is not finite.
        OSError: the disk refused.
    """
    _write_json(target / "config.json", read_config(gguf))
    shards = _shards(shape, shard_bytes)
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    if len(shards) == 1:
        names = ["model.safetensors"]
    places: dict[str, str] = {}
    for name, shard in zip(names, shards, strict=True):
        chunks = _chunks(gguf, shape, list(shard), piece_elements)
        write_float32(target / name, shard, _counted(chunks, on_bytes))
        places |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        total = sum(tensor_bytes(sizes) for shard in shards for sizes in shard.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        _write_json(target / "model.safetensors.index.json", index)


def _shards(shape: ModelShape, shard_bytes: int) -> list[dict[str, tuple[int, ...]]]:
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, sizes in shape.tensor_shapes().items():
        size = tensor_bytes(sizes)
        if filled and filled + size > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = sizes
        filled += size
    return shards


def _counted(chunks: Iterator[Chunk], on_bytes: Callable[[int], None]) -> Iterator[Chunk]:
    for chunk in chunks:
        yield chunk
        on_bytes(chunk.nbytes)


def _chunks(
    gguf: GgufFile, shape: ModelShape, names: list[str], piece_elements: int
) -> Iterator[Chunk]:
    family = GGUF_FAMILIES[shape.architecture]
    for name in names:
        tensor = gguf.tensors[tensor_name(name, shape)]
        permuted, plus_one = stores_permuted(name, family), stores_plus_one(name, shape)
        rows = max(1, piece_elements // int(tensor.shape[0]))
        if permuted:
            # The permutation stays inside a head, so pieces of whole heads can be undone alone.
            rows = max(1, rows // shape.head_dim) * shape.head_dim
        for piece in pieces(gguf, tensor, rows):
            if permuted:
                yield _unpermuted(piece, shape.head_dim)
            else:
                yield piece - np.float32(1.0) if plus_one else piece


def _unpermuted(rows: Chunk, head_dim: int) -> Chunk:
    """Undo llama.cpp's order of a head's rows: rotary pairs side by side, not half by half.

    Args:
        rows: (heads * head_dim, in) float32, a whole number of heads.
        head_dim: rows in a head.
    """
    columns = rows.shape[1]
    return rows.reshape(-1, head_dim // 2, 2, columns).swapaxes(1, 2).reshape(-1, columns)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
