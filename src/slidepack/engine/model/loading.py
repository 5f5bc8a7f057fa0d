"""Reads a Hugging Face folder's safetensors into flat layer buffers, tensor by tensor."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.model.layers import Decoder, LayerWeights, layer_over
from slidepack.engine.model.nf4_layers import Nf4Layers
from slidepack.engine.shape import ModelShape, read_shape, refuse_pickles


class Shards:
    """The tensors of a folder, by name, over any number of safetensors files."""

    def __init__(self, folder: Path) -> None:
        """Open the folder's files.

        Raises:
            SlidepackError: MODEL-PICKLE or MODEL-BROKEN.
        """
        refuse_pickles(folder)
        self._folder = folder
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with _open(path) as file:
                self._files.update(dict.fromkeys(file.keys(), path))
        if not self._files:
            raise _broken(folder, "it holds no .safetensors file")

    def copy_into(self, name: str, target: Tensor) -> None:
        """Copy a tensor into `target`, converting its dtype.

        Raises:
            SlidepackError: MODEL-BROKEN.
        """
        target.copy_(self.read(name, tuple(target.shape)))

    def read(self, name: str, size: tuple[int, ...]) -> Tensor:
        """Return a tensor in the dtype of its file.

        Raises:
            SlidepackError: MODEL-BROKEN.
        """
        path = self._files.get(name)
        if path is None:
            raise _broken(self._folder, f"the tensor {name} is missing")
        with _open(path) as file:
            source: Tensor = file.get_tensor(name)
        if tuple(source.shape) != size:
            raise _broken(self._folder, f"{name} is {tuple(source.shape)}, not {size}")
        return source


def load_decoder(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    on_layer: Callable[[int, int], None] = lambda _done, _total: None,
    layer_room: Callable[[int], Tensor] | None = None,
    *,
    nf4: bool = False,
) -> Decoder:
    """Load a model, at most one tensor of it twice in memory.

    Args:
        folder: a Hugging Face folder.
        device: where the weights go.
        dtype: what they are converted to.
        on_layer: called with (layers done, layers in all); may raise to stop the load.
        layer_room: returns memory for so many elements of a layer, where layers do not go to the
            device.
        nf4: hold the layers' linears in 4 bits; `dtype` is what they are widened to.

    Raises:
        SlidepackError: the errors of `read_shape`, MODEL-PICKLE, MODEL-BROKEN.
    """
    shape = read_shape(folder)
    shards = Shards(folder)

    def empty(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    embedding = empty(shape.vocab, shape.hidden)
    shards.copy_into("model.embed_tokens.weight", embedding)
    layers: list[LayerWeights] = []
    narrow = Nf4Layers(shape, device, dtype) if nf4 else None
    room = layer_room or (empty if narrow is None else narrow.room)
    keep = layers.append if narrow is None else narrow.keep
    for index in range(shape.num_layers):
        layer = layer_over(room(shape.layer_params), shape)
        for name, view in layer.named.items():
            shards.copy_into(f"model.layers.{index}.{name}", view)
        keep(layer)
        on_layer(index + 1, shape.num_layers)
    final_norm = empty(shape.hidden)
    shards.copy_into("model.norm.weight", final_norm)
    head = embedding
    if not shape.tied_head:
        head = empty(shape.vocab, shape.hidden)
        shards.copy_into("lm_head.weight", head)
    if narrow is not None:
        return Decoder(shape, embedding, narrow, final_norm, head, narrow.refetch)
    return Decoder(shape, embedding, tuple(layers), final_norm, head)


def random_decoder(
    shape: ModelShape, device: torch.device, dtype: torch.dtype, seed: int
) -> Decoder:
    """Make a model with random weights (normal, sigma 0.02; norms by 1), for tests and timing."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        values = torch.empty(size, dtype=torch.float32, device=device)
        return values.normal_(0.0, 0.02, generator=generator).to(dtype)

    unit = 0.0 if shape.norm_plus_one else 1.0
    embedding = normal(shape.vocab, shape.hidden)
    layers = []
    for _ in range(shape.num_layers):
        layer = layer_over(normal(shape.layer_params), shape)
        for name, view in layer.named.items():
            if "norm" in name:
                view.fill_(unit)
        layers.append(layer)
    final_norm = torch.full((shape.hidden,), unit, dtype=dtype, device=device)
    head = embedding if shape.tied_head else normal(shape.vocab, shape.hidden)
    return Decoder(shape, embedding, tuple(layers), final_norm, head)


def eos_ids(folder: Path, fallback: int) -> frozenset[int]:
    """Return the ids at which generation stops, from generation_config.json or the tokenizer."""
    path = folder / "generation_config.json"
    if not path.exists():
        return frozenset({fallback})
    try:
        value = msgspec.json.decode(path.read_bytes()).get("eos_token_id")
    except (msgspec.DecodeError, AttributeError) as error:
        raise _broken(folder, f"generation_config.json: {error}") from error
    found = value if isinstance(value, list) else [value]
    return frozenset(int(token) for token in found if token is not None) | {fallback}


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise _broken(path.parent, f"{path.name}: {error}") from error


def _broken(folder: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-BROKEN",
        "The model's weights cannot be read.",
        why=f"{folder.name}: {why}",
        fix="Get the model's files again.",
    )
