"""An answer's text, piece by piece: whole characters, no space lost, no part of a stop string."""

from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["AnswerText", "TextPieces"]

_BROKEN: Final = "\ufffd"


class TextPieces:
    """Turns ids into text as they come; the pieces together are the text of all of them."""

    def __init__(self, decode: Callable[[list[int]], str], before: Sequence[int] = ()) -> None:
        """Begin.

        Args:
            decode: of the tokenizer.
            before: ids that the text goes on from, where it does not begin by itself: decoders
                drop the space before a text's first word.
        """
        self._decode = decode
        self._ids = list(before)
        self._start = 0
        """From here on the ids are decoded again, as context of the next piece."""
        self._told = len(self._ids)

    def push(self, token: int) -> str:
        """Take an id; return the text that is whole now, often one word, sometimes nothing."""
        self._ids.append(token)
        return self._advance(final=False)

    def flush(self) -> str:
        """Return what was held back, without what is no whole character."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        whole = self._decode(self._ids[self._start :])
        if final:
            whole = whole.rstrip(_BROKEN)
        elif whole.endswith(_BROKEN):
            # The rest of a character may come.
            return ""
        piece = whole[len(self._decode(self._ids[self._start : self._told])) :]
        if piece:
            # Ids without text are no context: behind them a decoder would drop a space.
            self._start, self._told = self._told, len(self._ids)
        return piece


class AnswerText:
    """The same, up to a stop string."""

    def __init__(self, pieces: TextPieces, stops: Sequence[str]) -> None:
        """Begin."""
        self._pieces = pieces
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        """Whether a stop string came; nothing is told behind it."""

    def push(self, token: int) -> str:
        """Take an id; return what may be told."""
        return self._tell(self._pieces.push(token), final=False)

    def flush(self) -> str:
        """Return what was held back."""
        return "" if self.stopped else self._tell(self._pieces.flush(), final=True)

    def _tell(self, text: str, *, final: bool) -> str:
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = 0 if final else self._beginning(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _beginning(self, text: str) -> int:
        """Return how many characters at the end may be the beginning of a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next(
            (size for size in range(longest, 0, -1) if self._begins(text[-size:])),
            0,
        )

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)
