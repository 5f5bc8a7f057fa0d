"""Writes a whole model as a Hugging Face folder, one tensor at a time.

Every tensor goes straight to its place in its shard, so that beside the model itself no more than
a piece of one tensor is held.
"""

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from slidepack.engine.contract.runfolder import write_atomic
from slidepack.engine.export.shard import DTYPES, Shard
from slidepack.engine.importer.staging import Staging
from slidepack.engine.model.layers import Decoder
from slidepack.engine.shape import ModelShape, read_shape

__all__ = ["MAX_SHARD_BYTES", "decoder_tensors", "write_model_folder"]

MAX_SHARD_BYTES: Final = 4_000_000_000
_COPIED: Final = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "LICENSE*",
    "NOTICE*",
)
"""Small files of the base that belong to the result as they are."""


def decoder_tensors(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's tensors under their Hugging Face names; a tied head is none of its own."""
    yield "model.embed_tokens.weight", decoder.embedding
    for index, layer in enumerate(decoder.layers):
        for name, view in layer.named.items():
            yield f"model.layers.{index}.{name}", view
    yield "model.norm.weight", decoder.final_norm
    if not decoder.shape.tied_head:
        yield "lm_head.weight", decoder.head


def write_model_folder(
    base: Path,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    target: Path,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the model to `target`, which appears whole or not at all.

    Args:
        base: the folder that the model was loaded from; config and tokenizer are copied from it.
        tensors: every tensor of `base`'s shape, once, in any order, on any device.
        dtype: what they are converted to: fp32, fp16 or bf16.
        target: must not exist.
        max_shard_bytes: bound of a shard, unless a single tensor is larger.

    Raises:
        SlidepackError: the errors of `read_shape`; DISK-UNWRITABLE where `target` exists.
        OSError: the disk refused.
        ValueError: a tensor is missing, not the model's, of another shape or there twice; or the
            dtype is another.
    """
    if dtype not in DTYPES:
        raise ValueError(f"{dtype} is not one of {', '.join(map(str, DTYPES))}")
    shape = read_shape(base)
    staging = Staging(target)
    with staging as folder:
        _write_weights(shape, tensors, dtype, folder, max_shard_bytes)
        _write_config(base, folder, dtype)
        for pattern in _COPIED:
            for path in base.glob(pattern):
                shutil.copyfile(path, folder / path.name)
        staging.commit()


def _write_config(base: Path, folder: Path, dtype: torch.dtype) -> None:
    config: dict[str, Any] = json.loads((base / "config.json").read_bytes())
    # transformers 5 writes `dtype`, 4 wrote `torch_dtype`, and each reads the other's.
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
    config |= dict.fromkeys(keys, str(dtype).removeprefix("torch."))
    _write_json(folder / "config.json", config)


def _write_weights(
    shape: ModelShape,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    folder: Path,
    max_shard_bytes: int,
) -> None:
    plan = _plan_shards(shape.tensor_shapes(), dtype.itemsize, max_shard_bytes)
    names = [f"model-{i + 1:05d}-of-{len(plan):05d}.safetensors" for i in range(len(plan))]
    if len(plan) == 1:
        names = ["model.safetensors"]
    places = {name: index for index, sizes in enumerate(plan) for name in sizes}
    open_shards: dict[int, Shard] = {}
    written: set[str] = set()
    try:
        for name, tensor in tensors:
            if name not in places or name in written:
                why = "there twice" if name in written else "none of this model's"
                raise ValueError(f"the tensor {name} is {why}")
            index = places[name]
            if index not in open_shards:
                open_shards[index] = Shard(folder / names[index], plan[index], dtype)
            open_shards[index].write(name, tensor)
            written.add(name)
            if open_shards[index].is_whole:
                open_shards.pop(index).finish()
    finally:
        for shard in open_shards.values():
            shard.close()
    missing = [name for name in places if name not in written]
    if missing:
        raise ValueError(f"{len(missing)} tensors are missing, first {missing[0]}")
    if len(plan) > 1:
        total = dtype.itemsize * sum(math.prod(size) for sizes in plan for size in sizes.values())
        weight_map = {name: names[index] for name, index in sorted(places.items())}
        index_of = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / "model.safetensors.index.json", index_of)


def _plan_shards(
    shapes: dict[str, tuple[int, ...]], item_bytes: int, max_bytes: int
) -> list[dict[str, tuple[int, ...]]]:
    """Return the tensors of each shard, in the model's order."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, size in shapes.items():
        count = item_bytes * math.prod(size)
        if filled and filled + count > max_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = size
        filled += count
    return shards


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomic(path, (json.dumps(value, indent=2) + "\n").encode())
