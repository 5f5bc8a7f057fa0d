"""The chat engine, as its process runs it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from slidepack.engine.bench_chat.options import ChatOptions, Rate
from slidepack.engine.chat.contract import Ask, Voice
from slidepack.engine.chat.engine import ChatEngine
from slidepack.engine.chat.events import AnyEvent, Done
from slidepack.engine.chat.graphs import TokenGraphs
from slidepack.engine.chat.voices import Voices
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.export.peft import write_peft_folder
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.model.cached_pass import CachedPasses
from slidepack.engine.model.kv_cache import KvCache
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.shape import ModelShape

__all__ = ["Ours", "prompt_tokens", "write_adapters"]

_TEXT: Final = "The river goes past the mill, under two bridges and out to the sea, and "


class Ours:
    """A loaded engine."""

    def __init__(self, options: ChatOptions, adapters: Sequence[Path]) -> None:
        """Load the model and the adapters.

        Raises:
            SlidepackError: the model cannot be read.
        """
        device = torch.device(options.device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        folder = Path(options.model)
        self._options = options
        self._tokenizer = load_tokenizer(folder)
        decoder = load_decoder(folder, device, dtype)
        choices = layer_attention(decoder.shape, device, dtype)
        seats = max(1, len(adapters))
        spare = 1 if device.type == "cuda" else 0
        context = options.prompt + options.tokens
        cache = KvCache(decoder.shape, seats + spare, context, device, dtype)
        passes = CachedPasses(decoder, choices, cache)
        voices = Voices(folder, decoder, choices, self._tokenizer)
        graphs = TokenGraphs(passes, voices, seats) if spare else None
        self._events: list[AnyEvent] = []
        self._engine = ChatEngine(passes, voices, seats, self._events.append, graphs)
        self._asked = 0
        for path in adapters:
            self._engine.load(Voice(name=path.name, folder=str(path)))

    def measure(self, voices: Sequence[str]) -> Rate:
        """Time one answer of each voice.

        Raises:
            SlidepackError: an answer failed.
        """
        options = self._options
        self._events.clear()
        self._asked += 1
        # Another first token each time, or the prompt would be in the cache.
        ids = prompt_tokens(self._tokenizer, options.prompt, self._asked)
        begun = time.perf_counter()
        self._engine.ask(
            Ask(
                id="bench",
                voices=tuple(voices),
                prompt=self._tokenizer.decode(ids, special=True),
                max_tokens=options.tokens,
                ignore_ends=True,
            )
        )
        while self._engine.is_busy:
            self._engine.step()
        seconds = time.perf_counter() - begun
        ends = [event for event in self._events if isinstance(event, Done)]
        for end in ends:
            if end.error is not None:
                raise SlidepackError.from_report(end.error)
        first = max(end.first_token_seconds or 0.0 for end in ends)
        counted = sum(end.new_tokens - 1 for end in ends)
        return Rate(tokens_per_second=counted / (seconds - first), first_token_seconds=first)


def prompt_tokens(tokenizer: ChatTokenizer, tokens: int, number: int) -> list[int]:
    """Return a prompt of some tokens, that begins as no other does."""
    text = f"{number} {_TEXT * (1 + tokens // max(1, len(tokenizer.encode(_TEXT))))}"
    return tokenizer.encode(text)[:tokens]


def write_adapters(options: ChatOptions, shape: ModelShape, folder: Path) -> list[Path]:
    """Write adapters with random A and B, on all linears."""
    paths = []
    generator = torch.Generator().manual_seed(0)
    for number in range(options.voices):
        pool = LanePool(torch.device("cpu"), torch.float32)
        arena = LoraArena(shape, LoraMethod(rank=options.rank, alpha=options.rank), pool)
        arena.set_master(0.01 * torch.randn(arena.size, generator=generator))
        paths.append(folder / f"voice-{number + 1}")
        write_peft_folder(arena, options.model, paths[-1])
    return paths
