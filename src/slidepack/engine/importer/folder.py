"""Decides whether a local folder is a model that the engine can train, without reading weights."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.shape import ModelShape, read_shape, refuse_pickles

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"

_DTYPES: Final = ("F32", "F16", "BF16")


class FolderReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a sound model folder holds."""

    shape: ModelShape
    weights: tuple[Path, ...]
    """The safetensors files, in name order."""
    weight_bytes: int
    license: str
    """As the model card's header states it; empty where nothing does."""


def check_folder(folder: Path) -> FolderReport:
    """Check a Hugging Face folder: config, tokenizer, and every weight by name and shape.

    Raises:
        SlidepackError: MODEL-NOT-FOUND, MODEL-NOT-A-MODEL, MODEL-UNSUPPORTED, MODEL-PICKLE or
            MODEL-BROKEN, with the file and the value that show it.
    """
    shape = check_config(folder)
    refuse_pickles(folder)
    _check_tokenizer(folder, shape)
    weights = weight_files(folder)
    _check_weights(folder, shape, weights)
    return FolderReport(
        shape=shape,
        weights=tuple(weights),
        weight_bytes=sum(path.stat().st_size for path in weights),
        license=_card_license(folder / "README.md"),
    )


def check_config(folder: Path) -> ModelShape:
    """Check what the small files say, so that a download can be refused before its weights.

    Raises:
        SlidepackError: MODEL-NOT-FOUND, MODEL-NOT-A-MODEL, MODEL-PICKLE or MODEL-UNSUPPORTED.
    """
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "This folder is an adapter, not a whole model.",
            why=f"{folder} has adapter_config.json and no config.json",
            fix="Name the folder of the base model.",
        )
    shape = read_shape(folder)
    if _read_object(folder / "config.json").get("quantization_config"):
        raise _unsupported(folder, "its weights are quantised (quantization_config)")
    tokenizer_config = folder / "tokenizer_config.json"
    if tokenizer_config.exists() and _read_object(tokenizer_config).get("auto_map"):
        raise _unsupported(folder, "its tokenizer wants to run its own code (auto_map)")
    return shape


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that make up the weights, in name order.

    That is `model.safetensors`, or the files that `model.safetensors.index.json` names.

    Raises:
        SlidepackError: MODEL-NOT-A-MODEL where there are none, MODEL-BROKEN where the index is
            garbled or names a file that is missing.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if not (folder / INDEX).exists():
        others = sorted(path.name for path in folder.glob("*.safetensors"))
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "The folder has no weights.",
            why=f"{folder} has neither {WEIGHTS} nor {INDEX}"
            + (f", only {', '.join(others[:3])}" if others else ""),
            fix="Name a folder with the model's safetensors files.",
        )
    places = _read_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise _broken(folder, f"{INDEX} has no weight_map")
    names = {str(name) for name in places.values()}
    for name in sorted(names):
        if Path(name).name != name or not (folder / name).is_file():
            raise _broken(folder, f"{INDEX} names {name}, which is not in the folder")
    return [folder / name for name in sorted(names)]


def _check_weights(folder: Path, shape: ModelShape, weights: list[Path]) -> None:
    found: dict[str, tuple[int, ...]] = {}
    for path in weights:
        for name, (dtype, sizes) in _read_header(path).items():
            if dtype not in _DTYPES:
                raise _unsupported(folder, f"{name} is stored as {dtype}")
            found[name] = sizes
    # First, so that an absurd number of layers is not spelled out.
    if shape.num_layers > len(found):
        raise _broken(folder, f"{shape.num_layers} layers in {len(found)} tensors")
    expected = shape.tensor_shapes()
    missing = [name for name in expected if name not in found]
    if missing:
        raise _broken(folder, f"{len(missing)} tensors are missing, first {missing[0]}")
    if shape.tied_head and "lm_head.weight" in found:
        expected["lm_head.weight"] = (shape.vocab, shape.hidden)
    for name, sizes in expected.items():
        if found[name] != sizes:
            raise _broken(folder, f"{name} is {found[name]} where config.json says {sizes}")
    # Old checkpoints carry the rotary frequencies as buffers; they follow from the config.
    extra = [name for name in found if name not in expected and "rotary_emb" not in name]
    if extra:
        raise _unsupported(folder, f"it has tensors with no place here, such as {extra[0]}")


def _read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    header: dict[str, tuple[str, tuple[int, ...]]] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping, it only has keys()
                view = file.get_slice(name)
                header[name] = (str(view.get_dtype()), tuple(view.get_shape()))
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise _broken(path.parent, f"{path.name} ({size} bytes): {error}") from error
    return header


def _check_tokenizer(folder: Path, shape: ModelShape) -> None:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "The folder has no tokenizer.json.",
            why=f"{path} does not exist",
            fix="Save the model's tokenizer in the fast format, beside its weights.",
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # The library raises a bare Exception for every fault of the file.
    except Exception as error:
        raise _broken(folder, f"tokenizer.json cannot be read: {error}") from error
    # Gemma 3 1B has a special token for images behind its last row; text never needs it.
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    highest = max(set(tokenizer.get_vocab().values()) - special, default=-1)
    if not 0 <= highest < shape.vocab:
        raise _broken(
            folder, f"tokenizer.json goes to id {highest} of {shape.vocab} embedding rows"
        )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _broken(path.parent, f"{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise _broken(path.parent, f"{path.name} is not an object")
    return value


def _card_license(card: Path) -> str:
    try:
        lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    if not lines or lines[0].strip() != "---":
        return ""
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        if key == "license":
            return value.strip().strip("'\"")
    return ""


def _broken(folder: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-BROKEN",
        "The model's files are damaged or incomplete.",
        why=f"{folder}: {why}",
        fix="Copy or download the model again.",
    )


def _unsupported(folder: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-UNSUPPORTED",
        "This model is not supported yet.",
        why=f"{folder}: {why}",
        fix="Choose a model with plain fp32, fp16 or bf16 weights and no code of its own.",
    )
