"""How large an export is going to be, before anything is read but headers; torch-free."""

import json
import math
from pathlib import Path
from typing import Any, Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.contract import ExportFormat, Quant
from slidepack.engine.export.gguf_family import gguf_family
from slidepack.engine.shape import ModelShape, read_shape

__all__ = ["export_bytes", "gguf_bytes"]

_ALIGNMENT: Final = 32
_HEADER_BYTES_A_TENSOR: Final = 128
_BLOCK: Final = 32
"""Elements that Q8_0 stores together."""
_BLOCK_BYTES: Final = 34
_ITEM_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_SMALL: Final = ("*.json", "*.jinja", "*.txt", "*.model")
_MOST_HEADER: Final = 100 << 20
"""What safetensors itself accepts."""


def export_bytes(
    result: Path,
    base: Path | None,
    kind: ExportFormat,
    quant: Quant = "f16",
    *,
    adapter_only: bool = False,
) -> int:
    """Return how many bytes an export takes on the disk, at most.

    Args:
        result: a result folder, which holds `adapter/` or `model/`.
        base: the base model's folder; None for a model that was trained as a whole.
        kind: the format.
        quant: how a GGUF file stores matrices.
        adapter_only: with gguf, the adapter alone.

    Raises:
        SlidepackError: RUN-NO-RESULT: there is no adapter, or no result. MODEL-UNSUPPORTED: no
            GGUF file of this model would compute the same. The errors of `read_shape`, and
            MODEL-BROKEN where weights do not say what they are.
        OSError: a file cannot be read.
    """
    adapter, model = result / "adapter", result / "model"
    if not adapter.is_dir() and not model.is_dir():
        raise _no_result("There is no result in this folder.", str(result))
    if kind == "peft" or adapter_only:
        if model.is_dir():
            raise _no_result("This result has no adapter: it trained the whole model.", str(model))
        files = _folder_bytes(adapter)
        # A GGUF LoRA is in fp32, whatever the adapter's own file is in.
        return 2 * files if adapter_only else files
    whole = model.is_dir() or base is None
    folder = model if whole else base
    assert folder is not None, "a result without a model has an adapter, and that has a base"
    shape = read_shape(folder)
    if kind == "merged":
        if whole:
            return _folder_bytes(folder)
        headers = _HEADER_BYTES_A_TENSOR * len(shape.tensor_shapes())
        return shape.total_params * _item_bytes(folder, shape) + headers + _small_bytes(folder)
    gguf_family(shape)
    return gguf_bytes(shape, quant) + _small_bytes(folder)


def gguf_bytes(shape: ModelShape, quant: Quant) -> int:
    """Return the size of the weights in a GGUF file, with what is said of each."""
    return sum(
        -(-_stored(size, quant) // _ALIGNMENT) * _ALIGNMENT + _HEADER_BYTES_A_TENSOR
        for size in shape.tensor_shapes().values()
    )


def _stored(size: tuple[int, ...], quant: Quant) -> int:
    count = math.prod(size)
    if len(size) == 1:
        return 4 * count
    if quant == "q8_0" and size[-1] % _BLOCK == 0:
        return count // _BLOCK * _BLOCK_BYTES
    return 2 * count


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _small_bytes(folder: Path) -> int:
    """Return the size of what lies beside the weights: configuration and tokenizer."""
    return sum(path.stat().st_size for kind in _SMALL for path in folder.glob(kind))


def _item_bytes(folder: Path, shape: ModelShape) -> int:
    """Return the bytes of a weight in the dtype that holds all of them exactly."""
    wanted = shape.tensor_shapes()
    found: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        found |= {dtype for name, dtype in _dtypes(path).items() if name in wanted}
    return _ITEM_BYTES.get(next(iter(found)), 4) if len(found) == 1 else 4


def _dtypes(path: Path) -> dict[str, str]:
    """Return the dtypes in a safetensors file by tensor, from its header alone."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _MOST_HEADER else b""
    try:
        header: dict[str, Any] = json.loads(text)
        return {name: str(about["dtype"]) for name, about in header.items() if "dtype" in about}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SlidepackError(
            "MODEL-BROKEN",
            "The model's weights cannot be read.",
            why=f"{path}: its header is damaged ({error})",
            fix="Copy or download the model again.",
        ) from error


def _no_result(what: str, why: str) -> SlidepackError:
    return SlidepackError(
        "RUN-NO-RESULT", what, why=f"it is {why}", fix="Export it as merged, gguf or ollama."
    )
