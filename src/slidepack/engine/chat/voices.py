"""The adapters that are loaded, and what each does to the base's logits."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.chat.contract import BASE_VOICE, Voice
from slidepack.engine.chat.prompts import end_ids, voice_tokenizer
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.export.adapter import Adapter, file_hashes, read_adapter
from slidepack.engine.export.peft import module_path
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.lanes import LaneAdapters, LanePass
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.model.cached_pass import walk
from slidepack.engine.model.ends import final_hidden, head_logits
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.shape import refuse_pickles
from slidepack.kernels import attention, split_master

__all__ = ["Difference", "LoadedVoice", "VoicePool", "Voices"]

_PROBE: Final = "What is the capital of France? Write one sentence about it, then count to five."
_PROBE_TOKENS: Final = 64
_MOST_PASSES: Final = 64
_WEIGHTS: Final = "adapter_model.safetensors"


class VoicePool(LanePool):
    """Weights alone: nobody trains here."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """Begin empty."""
        super().__init__(device, dtype)
        self._wide = self._dtypes["grads"]
        self._dtypes = {"weights": dtype}
        self._tensors = {"weights": self._tensors["weights"]}

    @property
    def grads(self) -> Tensor:
        """Something of the size of gradients, which takes no memory and nobody writes."""
        one = torch.zeros((), dtype=self._wide, device=self.device)
        return one.expand(self.weights.numel())

    def write(self, start: int, flat: Tensor) -> None:
        """Write fp32 values, rounded as the passes of training rounded them.

        Args:
            start: of a range that was taken.
            flat: [n] fp32, in host memory.
        """
        plane = split_master(flat)[0] if self.dtype == torch.bfloat16 else flat
        self.weights.detach()[start : start + flat.numel()].copy_(plane)


@dataclass(frozen=True, slots=True)
class LoadedVoice:
    """A voice that can answer."""

    name: str
    tokenizer: ChatTokenizer
    ends: frozenset[int]
    """Tokens that end its answers."""
    arena: LoraArena | None
    """None for the base."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What an adapter does to the base's logits."""

    mean: float
    max: float


class Voices:
    """The base and its adapters."""

    def __init__(
        self, folder: Path, decoder: Decoder, choices: LayerAttention, tokenizer: ChatTokenizer
    ) -> None:
        """Begin with the base alone.

        Raises:
            SlidepackError: MODEL-BROKEN.
        """
        self._folder = folder
        self._decoder = decoder
        self.choices = choices
        """What each layer's attention computes."""
        self._tokenizer = tokenizer
        self._pool = VoicePool(decoder.device, decoder.dtype)
        base = LoadedVoice(BASE_VOICE, tokenizer, end_ids(folder, tokenizer), None)
        self._voices = {BASE_VOICE: base}
        self._adapters: OrderedDict[tuple[str, ...], LaneAdapters] = OrderedDict()
        self._passes: OrderedDict[tuple[object, ...], LanePass] = OrderedDict()

    @property
    def loaded(self) -> Mapping[str, LoadedVoice]:
        """The voices by name, the base among them."""
        return self._voices

    @property
    def num_bytes(self) -> int:
        """Memory of all adapters."""
        return self._pool.num_bytes

    def require(self, name: str) -> LoadedVoice:
        """Return a voice.

        Raises:
            SlidepackError: CHAT-VOICE-UNKNOWN.
        """
        found = self._voices.get(name)
        if found is None:
            raise SlidepackError(
                "CHAT-VOICE-UNKNOWN",
                f"There is no voice {name!r}.",
                why=f"loaded are: {', '.join(self._voices)}",
                fix="Load it first, or ask one of these.",
            )
        return found

    def load(self, voice: Voice) -> int:
        """Read an adapter; return its size in bytes.

        Raises:
            SlidepackError: CHAT-NAME-TAKEN, MODEL-CHANGED, MODEL-PICKLE, MODEL-BROKEN, or
                RUN-FOLDER-BROKEN as `read_adapter`; nothing has changed.
            torch.OutOfMemoryError: there is no room; nothing has changed.
        """
        if voice.name in self._voices:
            raise SlidepackError(
                "CHAT-NAME-TAKEN",
                f"There is a voice {voice.name!r} already.",
                fix="Unload it first, or choose another name.",
            )
        folder = Path(voice.folder)
        adapter = self._read(folder, voice.content_hash)
        tokenizer = voice_tokenizer(self._folder, folder, self._tokenizer)
        ends = end_ids(self._folder, tokenizer)
        self._forget_passes()
        arena = LoraArena(self._decoder.shape, adapter.method, self._pool)
        self._pool.write(arena.start, _flat(arena, adapter))
        self._voices[voice.name] = LoadedVoice(voice.name, tokenizer, ends, arena)
        return arena.size * self._decoder.dtype.itemsize

    def unload(self, name: str) -> None:
        """Forget an adapter.

        Raises:
            SlidepackError: CHAT-VOICE-UNKNOWN.
        """
        arena = self.require(name).arena
        assert arena is not None, "the caller keeps the base"
        self._forget_passes()
        del self._voices[name]
        arena.close()

    def lane_pass(self, tokens: Mapping[str, int], *, padding: int = 0) -> LanePass | None:
        """Return the adapters of a row; None where all of it is the base's.

        Args:
            tokens: of each voice in the row, in the row's order; the base is the last.
            padding: tokens behind them.
        """
        names = tuple(name for name in tokens if name != BASE_VOICE)
        if not names:
            return None
        ends = list(accumulate(tokens[name] for name in names))
        bounds = (0, *ends, ends[-1] + tokens.get(BASE_VOICE, 0) + padding)
        key = (names, bounds)
        found = self._passes.pop(key, None)
        if found is None:
            found = self._lanes(names).lane_pass(bounds)
        self._passes[key] = found
        if len(self._passes) > _MOST_PASSES:
            self._passes.popitem(last=False)
        return found

    @torch.inference_mode()
    def difference(self, name: str) -> Difference:
        """Return how far a voice's logits are from the base's, over a fixed text."""
        decoder, shape = self._decoder, self._decoder.shape
        ids = self._tokenizer.encode(_PROBE)[:_PROBE_TOKENS]
        ids = [token for token in ids if token < shape.vocab] or [0]
        row = EncodedRow(0, tuple(ids), (False,) * len(ids))
        batch = pack_rows([row, row], shape, decoder.device, decoder.dtype)
        lanes = self.lane_pass({name: len(ids), BASE_VOICE: len(ids)})
        x = walk(
            decoder,
            lanes,
            batch.ids,
            batch.rope,
            lambda layer: (
                lambda q, k, v: attention(q, k, v, batch.segments, self.choices.at(layer))
            ),
        )
        hidden = final_hidden(x, decoder.final_norm, shape)
        tuned, base = head_logits(hidden, decoder.head, shape).float().chunk(2)
        apart = (tuned - base).abs()
        return Difference(float(apart.mean()), float(apart.max()))

    def _read(self, folder: Path, content_hash: str) -> Adapter:
        if not folder.is_dir():
            raise SlidepackError(
                "RUN-FOLDER-BROKEN",
                "The adapter cannot be read.",
                why=f"{folder} is not a folder",
                fix="Name the folder of a finished LoRA job's adapter.",
            )
        refuse_pickles(folder)
        adapter = read_adapter(folder, self._decoder.shape)
        if content_hash and file_hashes(folder).get(_WEIGHTS) != content_hash:
            raise SlidepackError(
                "MODEL-CHANGED",
                "The adapter's files have changed.",
                why=f"{folder / _WEIGHTS} has another sha256 than the result that was asked for",
                fix="Train again, or ask for the adapter as it is now.",
            )
        return adapter

    def _lanes(self, names: Sequence[str]) -> LaneAdapters:
        key = tuple(names)
        found = self._adapters.get(key)
        if found is None:
            arenas = [self.require(name).arena for name in names]
            held = [arena for arena in arenas if arena is not None]
            found = LaneAdapters(self._decoder.shape, held, self._decoder.device)
            self._adapters[key] = found
            if len(self._adapters) > _MOST_PASSES:
                self._adapters.popitem(last=False)
        return found

    def _forget_passes(self) -> None:
        """Let go of whatever says where adapters are: they may move."""
        self._adapters.clear()
        self._passes.clear()


def _flat(arena: LoraArena, adapter: Adapter) -> Tensor:
    """Return an adapter's values, [n] fp32, as the arena lays them out."""
    flat = torch.zeros(arena.size, dtype=torch.float32)
    for layer, target, pair in arena.pairs(flat):
        given = adapter.pairs[f"{module_path(layer, target)}.weight"]
        pair.a.copy_(given.a)
        pair.b.copy_(given.b)
    return flat
