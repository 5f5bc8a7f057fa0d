"""Many answers of many voices, token by token in shared passes; they come and go between these."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.chat.answer import Answer
from slidepack.engine.chat.contract import BASE_VOICE, Ask, Voice
from slidepack.engine.chat.events import AnyEvent, Done, Token, VoiceLoaded, VoiceUnloaded, Warned
from slidepack.engine.chat.failures import is_out_of_memory, no_room
from slidepack.engine.chat.graphs import TokenGraphs
from slidepack.engine.chat.prompts import prompt_ids
from slidepack.engine.chat.sampling import choose_tokens
from slidepack.engine.chat.seats import Seats
from slidepack.engine.chat.voices import Voices
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.model.cached_pass import CachedPasses
from slidepack.engine.model.kv_cache import Piece

__all__ = ["PROMPT_CHUNK", "ChatEngine"]

PROMPT_CHUNK: Final = 256
"""Tokens of a prompt that are read at a time: answers that run wait no longer than for these."""
_MOST_PROMPT_TOKENS: Final = 512
"""Of all prompts in one pass."""

_Work = Sequence[tuple[Answer, Piece]]


class ChatEngine:
    """Answers asks. Its caller drives it: `step` until nothing is left."""

    def __init__(
        self,
        passes: CachedPasses,
        voices: Voices,
        seats: int,
        emit: Callable[[AnyEvent], None],
        graphs: TokenGraphs | None = None,
    ) -> None:
        """Begin without an ask.

        Args:
            passes: of the base, over a cache.
            voices: who can answer.
            seats: answers that advance together, as many as the cache has or fewer.
            emit: is told everything, in order.
            graphs: replays token passes, where the device can.
        """
        self.voices = voices
        self._passes = passes
        self._seats = Seats(passes.cache, seats)
        self._emit = emit
        self._graphs = graphs
        self._waiting: list[Answer] = []
        self._running: list[Answer] = []

    @property
    def is_busy(self) -> bool:
        """Whether any answer is left."""
        return bool(self._waiting or self._running)

    def ask(self, ask: Ask) -> None:
        """Take on an ask; a voice that cannot answer is done with an error, the others answer.

        Raises:
            SlidepackError: CHAT-NAME-TAKEN: an ask of this id is not over; it goes on.
        """
        if any(answer.ask.id == ask.id for answer in self._answers()):
            raise SlidepackError(
                "CHAT-NAME-TAKEN",
                f"An ask {ask.id!r} is not over yet.",
                fix="Give each ask an id of its own.",
            )
        asked = time.monotonic()
        decoder, context = self._passes.decoder, self._passes.cache.context
        for name in ask.voices:
            try:
                voice = self.voices.require(name)
                ids = prompt_ids(ask, voice.tokenizer, decoder.shape.vocab, context)
            except SlidepackError as error:
                self._emit(_refused(ask, name, error))
                continue
            self._waiting.append(Answer(ask, voice, ids, context, asked))

    def stop(self, ask_id: str) -> None:
        """End an ask's answers; no matter if it is over."""
        self._end(answer for answer in self._answers() if answer.ask.id == ask_id)

    def stop_all(self) -> None:
        """End every answer."""
        self._end(self._answers())

    def load(self, voice: Voice) -> None:
        """Load a voice, and prove that it changes something.

        Raises:
            SlidepackError: as `Voices.load`, or CHAT-NO-ROOM; the others go on.
        """
        begun = time.monotonic()
        self._forget_graphs()
        try:
            num_bytes = self.voices.load(voice)
            difference = self.voices.difference(voice.name)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if voice.name in self.voices.loaded:
                self.voices.unload(voice.name)
            raise no_room(f"the voice {voice.name!r}", error) from error
        if not difference.max < float("inf"):
            self.voices.unload(voice.name)
            raise _not_a_number(voice.name)
        self._emit(
            VoiceLoaded(
                voice=voice.name,
                mean_difference=difference.mean,
                max_difference=difference.max,
                seconds=time.monotonic() - begun,
                num_bytes=num_bytes,
            )
        )
        if difference.max == 0.0:
            message = "Its logits are the base's to the last bit: the adapter changes nothing."
            self._emit(Warned(code="RUN-NOTHING-LEARNED", message=message, voice=voice.name))

    def unload(self, name: str) -> None:
        """Forget a voice; its answers are stopped.

        Raises:
            SlidepackError: CHAT-VOICE-UNKNOWN, or CHAT-COMMAND-INVALID for the base.
        """
        if name == BASE_VOICE:
            raise SlidepackError(
                "CHAT-COMMAND-INVALID",
                "The base cannot be unloaded.",
                why=f"the voice {BASE_VOICE!r} is the model itself",
                fix="End the process, or name an adapter.",
            )
        self.voices.require(name)
        self._end(answer for answer in self._answers() if answer.voice.name == name)
        self._seats.forget(name)
        self._forget_graphs()
        self.voices.unload(name)
        self._emit(VoiceUnloaded(voice=name))

    @torch.inference_mode()
    def step(self) -> None:
        """Give seats away, read one chunk of prompts, and choose one token of each answer.

        Raises:
            StopRequestedError: the process is to end; answers are as they were.
        """
        self._admit()
        reading = [answer for answer in self._running if answer.is_reading]
        if reading:
            self._advance(_chunks(reading))
        telling = [answer for answer in self._running if answer.count]
        if telling:
            self._advance([(answer, answer.next_piece(PROMPT_CHUNK)) for answer in telling])

    def _answers(self) -> list[Answer]:
        return [*self._running, *self._waiting]

    def _admit(self) -> None:
        decoder = self._passes.decoder
        while self._waiting:
            answer = self._waiting[0]
            seat = self._seats.take(answer.voice.name, answer.prompt)
            if seat is None:
                return
            answer.sit(seat, decoder.shape.vocab, decoder.device)
            self._running.append(self._waiting.pop(0))

    def _advance(self, work: _Work) -> None:
        """Read each answer's piece; where that was all it knew, choose its next token."""
        # A row has one range a voice, and the base's is the last.
        work = sorted(work, key=lambda one: _voice_order(one[0].voice.name))
        try:
            logits = self._read(work)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._make_room(work, error)
            return
        for answer, piece in work:
            answer.was_read(piece)
        rows = [row for row, (answer, _) in enumerate(work) if not answer.is_reading]
        if rows:
            self._choose([work[row][0] for row in rows], logits[rows])

    def _read(self, work: _Work) -> Tensor:
        tokens: dict[str, int] = {}
        for answer, piece in work:
            name = answer.voice.name
            tokens[name] = tokens.get(name, 0) + len(piece.ids)
        pieces = [piece for _, piece in work]
        if self._graphs is not None and all(len(piece.ids) == 1 for piece in pieces):
            return self._graphs.advance(pieces, tokens)
        return self._passes.advance(pieces, self.voices.lane_pass(tokens))

    def _choose(self, answers: Sequence[Answer], logits: Tensor) -> None:
        chosen = choose_tokens(
            logits,
            [answer.ask.sampling for answer in answers],
            [answer.seen for answer in answers],
            [answer.count for answer in answers],
        )
        for answer, token in zip(answers, chosen, strict=True):
            if token is None:
                assert answer.seat is not None
                self._seats.discard(answer.seat)
                error = _not_a_number(answer.voice.name)
                self._finish(answer, answer.done("error", error.report))
                continue
            text, reason = answer.accept(token)
            if text:
                self._emit(Token(id=answer.ask.id, voice=answer.voice.name, text=text))
            if reason is not None:
                self._finish(answer, answer.done(reason))

    def _make_room(self, work: _Work, error: RuntimeError) -> None:
        """End the answer that came last; the others try again in the next step."""
        among = {id(answer) for answer, _ in work}
        last = [answer for answer in self._running if id(answer) in among][-1]
        self._finish(last, last.done("error", no_room("the answer", error).report))
        self._forget_graphs()
        if self._passes.decoder.device.type == "cuda":
            torch.cuda.empty_cache()

    def _end(self, answers: Iterable[Answer]) -> None:
        for answer in list(answers):
            self._finish(answer, answer.done("stopped"))

    def _finish(self, answer: Answer, done: Done) -> None:
        if answer.seat is None:
            self._waiting.remove(answer)
        else:
            self._running.remove(answer)
            self._seats.release(answer.seat)
        self._emit(done)

    def _forget_graphs(self) -> None:
        if self._graphs is not None:
            self._graphs.clear()


def _chunks(reading: Sequence[Answer]) -> _Work:
    """Return the next piece of as many prompts as one pass takes, the first ones first."""
    work: list[tuple[Answer, Piece]] = []
    room = _MOST_PROMPT_TOKENS
    for answer in reading:
        piece = answer.next_piece(PROMPT_CHUNK)
        room -= len(piece.ids)
        if work and room < 0:
            break
        work.append((answer, piece))
    return work


def _voice_order(name: str) -> tuple[bool, str]:
    return name == BASE_VOICE, name


def _not_a_number(name: str) -> SlidepackError:
    return SlidepackError(
        "CHAT-NOT-A-NUMBER",
        f"The voice {name!r} gives no numbers.",
        why="its logits are not finite",
        fix="Ask another voice; a run that diverged gives such weights, so train it again.",
    )


def _refused(ask: Ask, voice: str, error: SlidepackError) -> Done:
    return Done(
        id=ask.id,
        voice=voice,
        finish_reason="error",
        prompt_tokens=0,
        cached_tokens=0,
        new_tokens=0,
        tokens_per_second=0.0,
        first_token_seconds=None,
        error=error.report,
    )
