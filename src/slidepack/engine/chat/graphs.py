"""Token passes recorded as CUDA graphs: a token takes as long as its launches, unless they are one.

A pass is known by its size, its voices and how far back it looks, each rounded up, so that few
graphs serve many passes. The first pass of a kind runs launch by launch, which also compiles what
it needs; from the second on it is recorded and replayed.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.chat.voices import Voices
from slidepack.engine.lora.lanes import LanePass
from slidepack.engine.model.cached_pass import CachedPasses, TokenRow
from slidepack.engine.model.kv_cache import Piece

logger = logging.getLogger("slidepack.chat")

__all__ = ["TokenGraphs"]

_MOST_GRAPHS: Final = 16
_LEAST_REACH: Final = 256


@dataclass(slots=True)
class _Entry:
    """What is kept for the passes of a kind."""

    row: TokenRow
    """The tensors of the pass that runs; the graph reads them."""
    lanes: LanePass | None
    """Its tables are read by the graph too."""
    graph: torch.cuda.CUDAGraph | None = None
    logits: Tensor | None = None
    """The graph's output."""


class TokenGraphs:
    """Replays passes of one token a sequence."""

    def __init__(self, passes: CachedPasses, voices: Voices, spare_seat: int) -> None:
        """Begin without a graph.

        Args:
            passes: over a cache, on a GPU.
            voices: who may be in a pass.
            spare_seat: of the cache, where rows that fill a pass up write what nobody reads.
        """
        self._passes = passes
        self._voices = voices
        self._spare = spare_seat
        self._entries: OrderedDict[tuple[object, ...], _Entry] = OrderedDict()
        self._records = True

    @property
    def recorded(self) -> int:
        """How many kinds have a graph."""
        return sum(entry.graph is not None for entry in self._entries.values())

    def advance(self, pieces: Sequence[Piece], tokens: Mapping[str, int]) -> Tensor:
        """Read one token a sequence; return the logits, [B, V], valid until the next pass.

        Args:
            pieces: of one token each, in the order of the voices.
            tokens: of each voice, the base last.

        Raises:
            torch.OutOfMemoryError: it does not fit.
        """
        size = _power_of_two(len(pieces))
        reach = max(_LEAST_REACH, _power_of_two(max(piece.end for piece in pieces)))
        reach = min(reach, self._passes.cache.context)
        filled = [*pieces, *[Piece(self._spare, 0, (0,))] * (size - len(pieces))]
        key = (size, reach, tuple(tokens.items()))
        entry = self._entries.pop(key, None)
        row = self._passes.token_row(filled)
        if entry is None:
            lanes = self._voices.lane_pass(tokens, padding=size - len(pieces))
            entry = _Entry(TokenRow(row.ids, row.seats, row.starts, reach), lanes)
            if len(self._entries) >= _MOST_GRAPHS:
                self._entries.popitem(last=False)
        else:
            entry.row.ids.copy_(row.ids)
            entry.row.seats.copy_(row.seats)
            entry.row.starts.copy_(row.starts)
            if entry.graph is None and self._records:
                self._record(entry)
        self._entries[key] = entry
        return self._run(entry)[: len(pieces)]

    def stop_recording(self) -> None:
        """Go on launch by launch, in passes of the same sizes."""
        self._records = False

    def clear(self) -> None:
        """Forget everything: adapters are about to move, or need the memory."""
        self._entries.clear()

    def _run(self, entry: _Entry) -> Tensor:
        if entry.graph is None or entry.logits is None:
            return self._passes.token_pass(entry.row, entry.lanes)
        entry.graph.replay()
        return entry.logits

    def _record(self, entry: _Entry) -> None:
        """Record a kind of pass. Where that does not work, passes go on launch by launch."""
        graph = torch.cuda.CUDAGraph()
        device = self._passes.decoder.device
        try:
            # A recording that fails leaves its stream current; the outer block brings ours back.
            with (
                torch.cuda.stream(torch.cuda.current_stream(device)),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                logits = self._passes.token_pass(entry.row, entry.lanes)
        except RuntimeError as error:
            logger.warning("Token passes are not recorded, which is slower: %s", error)
            self.stop_recording()
            return
        entry.graph, entry.logits = graph, logits


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
