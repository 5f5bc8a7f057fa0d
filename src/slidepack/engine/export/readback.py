"""Reads exports back by other people's loaders, and by our own where those are not to be had."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch import Tensor

from slidepack.engine.export.adapter import Adapter, read_adapter
from slidepack.engine.export.gguf_read import GgufTensors, read_gguf_lora
from slidepack.engine.export.reference import trainer_logits
from slidepack.engine.model.loading import Shards
from slidepack.engine.shape import ModelShape

__all__ = ["Logits", "read_adapter_back", "read_folder_back", "read_gguf_back", "read_lora_back"]

_FOLDER_BYTES: Final = 5
"""RAM for each parameter of a model that `transformers` loads in fp32."""
_GGUF_BYTES: Final = 10
"""The same from a GGUF file, which it widens as a whole before the model takes it."""

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Logits:
    """What an export answers."""

    values: Tensor
    """[T, V] fp32: every position of every prompt, one after the other."""
    loader: str
    """What read it, and why where it was not the first choice."""


def read_folder_back(folder: Path, shape: ModelShape, prompts: Prompts) -> Logits:
    """Return the logits of a Hugging Face folder.

    Raises:
        SlidepackError: our own loader cannot read it.
    """
    why = _why_not("transformers", shape, _FOLDER_BYTES)
    if why:
        return Logits(trainer_logits(Shards(folder), shape, None, prompts), _own(why))
    return Logits(_answers(_load(folder), prompts), "transformers")


def read_adapter_back(base: Path, folder: Path, shape: ModelShape, prompts: Prompts) -> Logits:
    """Return the logits of a base with a PEFT adapter.

    Raises:
        SlidepackError: our own loader cannot read it.
    """
    why = _why_not("transformers", shape, _FOLDER_BYTES) or _why_not("peft", shape, 0)
    if why:
        adapter = read_adapter(folder, shape)
        return Logits(trainer_logits(Shards(base), shape, adapter, prompts), _own(why))
    peft = importlib.import_module("peft")
    model = peft.PeftModel.from_pretrained(_load(base), str(folder), local_files_only=True)
    return Logits(_answers(model.eval(), prompts), "peft")


def read_gguf_back(path: Path, base: Path, shape: ModelShape, prompts: Prompts) -> Logits:
    """Return the logits of a GGUF file.

    Args:
        path: of the file.
        base: whose config.json says what llama.cpp knows by the file's architecture alone.
        shape: that the file should have.
        prompts: token ids.

    Raises:
        SlidepackError: our own loader cannot read it.
    """
    why = _why_not("transformers", shape, _GGUF_BYTES)
    if why:
        return Logits(trainer_logits(GgufTensors(path, shape), shape, None, prompts), _own(why))
    return Logits(_answers(_load(base, path), prompts), "gguf and transformers")


def read_lora_back(
    path: Path, base: Path, shape: ModelShape, trained: Adapter, prompts: Prompts
) -> Logits:
    """Return the logits of a base with a GGUF LoRA.

    Raises:
        SlidepackError: the file cannot be read.
    """
    adapter = read_gguf_lora(path, shape, trained.method)
    why = _why_not("transformers", shape, _FOLDER_BYTES)
    if why:
        return Logits(trainer_logits(Shards(base), shape, adapter, prompts), _own(why))
    model = _load(base)
    with torch.no_grad():
        for name, pair in adapter.pairs.items():
            model.get_parameter(name).add_(adapter.method.scale * (pair.b @ pair.a))
    return Logits(_answers(model, prompts), "gguf and transformers")


def _why_not(package: str, shape: ModelShape, bytes_each: int) -> str:
    """Return why a package cannot read a model of this size here; "" where it can."""
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    needed, free = shape.total_params * bytes_each, psutil.virtual_memory().available
    if needed > free:
        return f"{package} needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
    return ""


def _own(why: str) -> str:
    return f"Slidepack's own loader ({why})"


def _load(folder: Path, gguf: Path | None = None) -> Any:
    """Load a model in fp32, with attention in its plainest form."""
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options = {
        "dtype": torch.float32,
        "attn_implementation": "eager",
        "local_files_only": True,
    }
    where = folder
    if gguf is not None:
        where = gguf.parent
        options |= {"gguf_file": gguf.name, "config": _gguf_config(transformers, folder)}
    return transformers.AutoModelForCausalLM.from_pretrained(where, **options).eval()


def _gguf_config(transformers: Any, folder: Path) -> Any:
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.model_type != "mistral":
        return config
    # In a GGUF file it is a Llama, within a context in which its window makes no difference.
    fields = config.to_dict()
    for name in ("model_type", "architectures", "sliding_window", "layer_types"):
        fields.pop(name, None)
    return transformers.LlamaConfig(**fields)


@torch.no_grad()
def _answers(model: Any, prompts: Prompts) -> Tensor:
    rows = [model(torch.tensor([list(ids)])).logits[0].float() for ids in prompts]
    return torch.cat(rows)
