"""Turns the weights of a Llama-type GGUF file into a Hugging Face folder's."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import ReaderTensor, dequantize

from slidepack.engine.importer.gguf_config import read_config
from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported
from slidepack.engine.importer.safetensors_stream import Chunk, tensor_bytes, write_float32
from slidepack.engine.shape import ModelShape, shape_from_config

SHARD_BYTES: Final = 1_000_000_000

PIECE_ELEMENTS: Final = 1 << 22

_TOP_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

_LAYER_NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def read_model_shape(gguf: GgufFile) -> ModelShape:
    """Return the model's shape after checking that the file holds every tensor it needs.

    Raises:
        SlidepackError: as `read_config`; MODEL-BROKEN too where a tensor is missing or has another
            shape, MODEL-UNSUPPORTED where there is one too many or its type cannot be read.
    """
    shape = shape_from_config(read_config(gguf), gguf.path)
    expected = {_gguf_name(name): sizes for name, sizes in shape.tensor_shapes().items()}
    missing = [name for name in expected if name not in gguf.tensors]
    if missing:
        raise broken(gguf.path, f"{len(missing)} tensors are missing, first {missing[0]}")
    extra = sorted(set(gguf.tensors) - set(expected))
    if extra:
        raise unsupported(gguf.path, f"it has tensors with no place here, such as {extra[0]}")
    for name, sizes in expected.items():
        found = tuple(int(size) for size in reversed(gguf.tensors[name].shape))
        if found != sizes:
            raise broken(gguf.path, f"{name} is {found} where its sizes say {sizes}")
    _refuse_unreadable_types(gguf)
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
        pieces = _pieces(gguf, shape, list(shard), piece_elements)
        write_float32(target / name, shard, _counted(pieces, on_bytes))
        places |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        total = sum(tensor_bytes(sizes) for shard in shards for sizes in shard.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        _write_json(target / "model.safetensors.index.json", index)


def _refuse_unreadable_types(gguf: GgufFile) -> None:
    samples = {tensor.tensor_type: tensor for tensor in gguf.tensors.values()}
    for kind, tensor in samples.items():
        try:
            _dequantised(tensor, slice(0, 1))
        except NotImplementedError as error:
            raise unsupported(gguf.path, f"{tensor.name} is stored as {kind.name}") from error


def _gguf_name(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, layer, *middle, leaf = name.split(".")
    return f"blk.{layer}.{_LAYER_NAMES['.'.join(middle)]}.{leaf}"


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


def _counted(pieces: Iterator[Chunk], on_bytes: Callable[[int], None]) -> Iterator[Chunk]:
    for piece in pieces:
        yield piece
        on_bytes(piece.nbytes)


def _pieces(
    gguf: GgufFile, shape: ModelShape, names: list[str], piece_elements: int
) -> Iterator[Chunk]:
    for name in names:
        tensor = gguf.tensors[_gguf_name(name)]
        permuted = name.endswith((".q_proj.weight", ".k_proj.weight"))
        rows, columns = len(tensor.data), int(tensor.shape[0])
        step = max(1, piece_elements // columns)
        if permuted:
            # The permutation stays inside a head, so pieces of whole heads can be undone alone.
            step = max(1, step // shape.head_dim) * shape.head_dim
        for start in range(0, rows, step):
            piece = _dequantised(tensor, slice(start, start + step))
            if not np.isfinite(piece).all():
                raise broken(gguf.path, f"{tensor.name} holds values that are not finite")
            yield _unpermuted(piece, shape.head_dim) if permuted else piece


def _dequantised(tensor: ReaderTensor, rows: slice) -> Chunk:
    # Garbage in a damaged file overflows; the caller looks for what is not finite.
    with np.errstate(all="ignore"):
        return dequantize(tensor.data[rows], tensor.tensor_type)


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
