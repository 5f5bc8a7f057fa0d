"""One voice's answer to one ask, from its prompt to its last token."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from slidepack.engine.chat.contract import Ask
from slidepack.engine.chat.events import Done, FinishReason
from slidepack.engine.chat.seats import Seat
from slidepack.engine.chat.text import AnswerText, TextPieces
from slidepack.engine.chat.voices import LoadedVoice
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.model.kv_cache import Piece

__all__ = ["Answer"]


class Answer:
    """What is known of an answer so far."""

    def __init__(
        self, ask: Ask, voice: LoadedVoice, prompt: Sequence[int], context: int, asked: float
    ) -> None:
        """Begin, without a seat.

        Args:
            ask: what is asked.
            voice: who answers.
            prompt: ids, fewer than `context`.
            context: most tokens of a conversation.
            asked: `time.monotonic` of when the ask was read.
        """
        self.ask = ask
        self.voice = voice
        self.seat: Seat | None = None
        self.seen: Tensor | None = None
        self.count = 0
        """Tokens that were chosen, the one that ends the turn among them."""
        self._ids = list(prompt)
        self._prompt_tokens = len(prompt)
        self._cached = 0
        room = context - len(prompt)
        self._most = room if ask.max_tokens is None else min(room, ask.max_tokens)
        # A text goes on where its prompt ends; an answer to messages begins by itself.
        before = prompt if ask.prompt is not None else ()
        self._text = AnswerText(TextPieces(voice.tokenizer.decode, before), ask.stop)
        self._asked = asked
        self._first: float | None = None
        self._last = asked

    @property
    def key(self) -> tuple[str, str]:
        """What it is known by."""
        return self.ask.id, self.voice.name

    @property
    def prompt(self) -> Sequence[int]:
        """Ids that were read or are to be read before the answer."""
        return self._ids[: self._prompt_tokens]

    @property
    def is_reading(self) -> bool:
        """Whether some of the prompt is still to be read."""
        assert self.seat is not None
        return len(self.seat.held) < self._prompt_tokens

    def sit(self, seat: Seat, vocab: int, device: torch.device) -> None:
        """Take a seat that holds a beginning of the prompt."""
        self.seat = seat
        self._cached = len(seat.held)
        if self.ask.sampling.repetition_penalty != 1.0:
            self.seen = torch.zeros(vocab, dtype=torch.bool, device=device)
            self.seen[torch.tensor(self._ids, device=device)] = True

    def next_piece(self, most: int) -> Piece:
        """Return the next tokens to read: the last one chosen, or up to `most` of the prompt.

        A prompt is cut at multiples of `most` from its beginning, whatever was in the cache, so
        that what a token meets does not depend on who else is there.
        """
        assert self.seat is not None
        start = len(self.seat.held)
        end = min(len(self._ids), start - start % most + most)
        return Piece(self.seat.index, start, tuple(self._ids[start:end]))

    def was_read(self, piece: Piece) -> None:
        """Note that a piece is in the cache."""
        assert self.seat is not None
        self.seat.held.extend(piece.ids)

    def accept(self, token: int) -> tuple[str, FinishReason | None]:
        """Take the next token; return the text to tell, and why the answer is over, if it is."""
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last
        self.count += 1
        if token in self.voice.ends and not self.ask.ignore_ends:
            return self._text.flush(), "stop"
        self._ids.append(token)
        if self.seen is not None:
            self.seen[token] = True
        text = self._text.push(token)
        if self._text.stopped:
            return text, "stop"
        if self.count >= self._most:
            return text + self._text.flush(), "length"
        return text, None

    def done(self, reason: FinishReason, error: ErrorReport | None = None) -> Done:
        """Return the event of its end."""
        behind = self._last - (self._first or self._last)
        return Done(
            id=self.ask.id,
            voice=self.voice.name,
            finish_reason=reason,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached,
            new_tokens=self.count,
            tokens_per_second=(self.count - 1) / behind if behind > 0.0 else 0.0,
            first_token_seconds=None if self._first is None else self._first - self._asked,
            error=error,
        )
