"""Recognises the family of a file's rows, counted over all of them.

Structure first: a list of messages is a conversation whatever its column is called. Then names of
columns, where their cells are filled. Two families on more than a hundredth of the rows are a
question to the user, never a guess.
"""

from collections import Counter
from typing import Any, Final, NamedTuple

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.columns import REQUIRED, columns_of, is_conversation, speaks_sharegpt
from slidepack.engine.data.families.preference import is_preference
from slidepack.engine.data.report import Choice
from slidepack.engine.data.rows import FORMATS, Format, clip
from slidepack.engine.data.transcripts import is_transcript, messages_error, transcripts_error

_AMBIGUOUS_SHARE: Final = 0.01
"""Above this share of rows that fit a second family, the user is asked."""
_MAX_SHAPES: Final = 10_000
"""A file whose rows have keys of their own (ids, say) must not fill the memory with them."""
_BY_NAME: Final[tuple[Format, ...]] = ("alpaca", "completion", "qa")
_TALKS: Final[tuple[Format, Format]] = ("chat", "sharegpt")
_RANK: Final[dict[Format, int]] = {
    "tokens": 0,
    "preference": 1,
    "chat": 2,
    "sharegpt": 3,
    "alpaca": 4,
    "completion": 5,
    "qa": 6,
    "text": 7,
}
_MESSAGE: Final = ({"role", "content"}, {"from", "value"})
"""Columns of a row that is one message."""
_HALF_ALPACA: Final = {"input", "output", "response"}

_Kind = type | Format
"""The type of a cell, or how the conversation in it is written."""

_Needed = tuple[tuple[str, ...], ...]
"""For each role that a family requires, the columns that may play it."""


class Clash(NamedTuple):
    """Columns that would play the same role in the same row."""

    role: str
    columns: tuple[str, ...]


class Decision(NamedTuple):
    """What all rows together say."""

    family: Format | None
    """What fits best; None where nothing does."""
    choices: tuple[Choice, ...]
    error: SlidepackError | None
    """Why the file cannot be read as `family` without a word of the user."""


class Recogniser:
    """Sees every row once, and then decides."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._shapes: dict[tuple[tuple[str, ...], tuple[_Kind, ...]], _Shape] = {}
        self._rows = 0
        self._sure: Counter[Format] = Counter()
        self._unsure: Counter[Format] = Counter()
        self._clashes: dict[Format, Counter[Clash]] = {}
        self._halves = 0
        """Rows that are a question and an answer, or what is left of Alpaca's."""
        self._messages = 0
        self._first_message = 0
        """The line of the first row that is one message."""
        self._transcripts = 0
        self._example = ""

    def see(self, line: int, value: Any) -> None:
        """Count one row."""
        self._rows += 1
        if type(value) is not dict:
            self._note(line, value)
            return
        kinds: tuple[_Kind, ...] = tuple(map(type, value.values()))
        if list in kinds:
            kinds = tuple(map(_kind_of, value.values()))
        key = (tuple(value), kinds)
        shape = self._shapes.get(key)
        if shape is None:
            shape = _Shape(*key)
            if len(self._shapes) < _MAX_SHAPES:
                self._shapes[key] = shape
        for family in shape.fits:
            self._sure[family] += 1
        self._halves += shape.is_half_alpaca
        if shape.is_message:
            self._messages += 1
            self._first_message = self._first_message or line
        for family, clash in shape.clashes:
            self._clashes.setdefault(family, Counter())[clash] += 1
        if not shape.fits:
            self._unsure.update(shape.possible)
            self._transcripts += is_transcript(value)
            if not shape.possible:
                self._note(line, value)

    def see_reject(self) -> None:
        """Count a row that could not be parsed."""
        self._rows += 1

    def leader(self) -> Format | None:
        """Return the family that fits best so far."""
        ranked = self._ranked()
        return ranked[0].family if ranked else None

    def decide(self) -> Decision:
        """Return what the rows are."""
        ranked = self._ranked()
        limit = _AMBIGUOUS_SHARE * self._rows
        if self._messages > limit or (
            self._messages and (not ranked or ranked[0].family == "text")
        ):
            return Decision(None, (), messages_error(self._messages, self._first_message))
        if not self._sure and 2 * self._transcripts > self._rows:
            return Decision(None, (), transcripts_error(self._transcripts, self._example))
        if not ranked:
            return Decision(None, (), self._unknown())
        family = ranked[0].family
        choices = tuple(choice for choice in ranked if choice.rows > limit) or ranked[:1]
        if len(choices) > 1:
            return Decision(family, choices, self._ambiguous(choices))
        clashes = self._clashes.get(family, Counter())
        for clash, rows in clashes.most_common(1):
            if rows > limit:
                return Decision(family, choices, self._clashing(clash, rows))
        return Decision(family, choices, None)

    def _ranked(self) -> tuple[Choice, ...]:
        counts = Counter(self._sure or self._unsure)
        # Both ways of writing a conversation are read by the same code.
        if counts["chat"] and counts["sharegpt"]:
            kept, other = _TALKS if counts["chat"] >= counts["sharegpt"] else _TALKS[::-1]
            counts[kept] += counts.pop(other)
        # Beside rows of Alpaca, those with `input` and `output` alone lack an instruction.
        if counts["alpaca"]:
            counts["alpaca"] += self._halves
            counts["qa"] -= self._halves
        found = [name for name in FORMATS if counts[name]]
        found.sort(key=lambda name: (-counts[name], _RANK[name]))
        return tuple(Choice(family=name, rows=counts[name]) for name in found)

    def _note(self, line: int, value: Any) -> None:
        self._example = self._example or f"line {line} is {clip(value)}"

    def _unknown(self) -> SlidepackError:
        return SlidepackError(
            "DATA-FORMAT-UNKNOWN",
            "No row has a form that can be learned from.",
            why=self._example or f"rows: {self._rows}, none of them a JSON object",
            fix="Use rows with `messages`, with `instruction` and `output`, with `prompt` and "
            "`completion`, or with `text`; or name the columns: --map question=… --map answer=….",
        )

    def _ambiguous(self, choices: tuple[Choice, ...]) -> SlidepackError:
        seen = ", ".join(f"{choice.family} {choice.rows}" for choice in choices)
        return SlidepackError(
            "DATA-AMBIGUOUS",
            "The rows fit more than one format.",
            why=f"rows: {self._rows}, of which fit {seen}",
            fix=f"Say which one: --format {' or '.join(choice.family for choice in choices)}.",
        )

    def _clashing(self, clash: Clash, rows: int) -> SlidepackError:
        maps = " or ".join(f"--map {clash.role}={clip(name)}" for name in clash.columns)
        return SlidepackError(
            "DATA-AMBIGUOUS",
            f"More than one column may be the {clash.role}.",
            why=f"rows that fill {clip(', '.join(clash.columns))}: {rows} of {self._rows}",
            fix=f"Say which one: {maps}.",
        )


class _Shape:
    """What rows may be that have the same columns with the same kinds of cells."""

    def __init__(self, names: tuple[str, ...], kinds: tuple[_Kind, ...]) -> None:
        self._cells = dict(zip(names, kinds, strict=True))
        self._needed = {family: _needed(family, names) for family in FORMATS}
        self.clashes: list[tuple[Format, Clash]] = []
        """Roles for which there are two columns."""
        lower = {name.strip().casefold() for name in names}
        self._like_message = any(marks <= lower for marks in _MESSAGE)
        self.fits: tuple[Format, ...] = tuple(self._read())
        """Every family that such rows fit."""
        self.is_message = self._like_message and not self.fits
        self.is_half_alpaca = self.fits == ("qa",) and self._is_half_alpaca()
        self.possible = self._possible()
        """What a row may have been meant as that does not fill its columns."""

    def _read(self) -> list[Format]:
        tokens = self._needed["tokens"]
        if tokens and self._cells[tokens[0][0]] is list:
            return ["tokens"]
        if is_preference(self._cells):
            return ["preference"]
        fits, used = self._read_names()
        talks = tuple(name for name, kind in self._cells.items() if kind in _TALKS)
        # TRL's conversations in two parts are one.
        if talks and not (used.issuperset(talks) and fits == ["completion"]):
            family: Format = "chat" if self._cells[talks[0]] == "chat" else "sharegpt"
            fits.insert(0, family)
            if len(talks) > 1:
                self.clashes.append((family, Clash("messages", talks)))
        # Many files hold the rendered row again as `text`.
        if not fits and not self._like_message and self._filled("text"):
            fits.append("text")
        return fits

    def _read_names(self) -> tuple[list[Format], set[str]]:
        """Return the families that fit by name, and the columns that they use."""
        fits: list[Format] = []
        used: set[str] = set()
        for family in _BY_NAME:
            picks = self._filled(family)
            if picks is not None and family == "qa" and used:
                # `instruction` and `output` are also names of a question and an answer.
                picks = tuple(tuple(name for name in pick if name not in used) for pick in picks)
            if picks is None or not all(picks):
                continue
            used.update(name for pick in picks for name in pick)
            fits.append(family)
            self.clashes += [
                (family, Clash(role, pick))
                for role, pick in zip(REQUIRED[family], picks, strict=True)
                if len(pick) > 1
            ]
        return fits, used

    def _filled(self, family: Format) -> _Needed | None:
        """Return the columns that play each required role, if all are filled."""
        picks = tuple(
            tuple(name for name in columns if self._cells[name] is not type(None))
            for columns in self._needed[family]
        )
        return picks if picks and all(picks) else None

    def _is_half_alpaca(self) -> bool:
        picks = self._filled("qa") or ()
        names = {name.strip().casefold() for pick in picks for name in pick}
        return names <= _HALF_ALPACA

    def _possible(self) -> tuple[Format, ...]:
        if self.is_message:
            return ()
        named: tuple[Format, ...] = (*_BY_NAME, "text", "tokens")
        possible = [family for family in named if self._needed[family]]
        if talk := self._needed["chat"]:
            plural = talk[0][0].casefold().startswith("conversation")
            possible.append("sharegpt" if plural else "chat")
        return tuple(sorted(possible, key=_RANK.__getitem__))[:1]


def _kind_of(cell: Any) -> _Kind:
    if type(cell) is not list or not is_conversation(cell):
        return type(cell)
    return "sharegpt" if speaks_sharegpt(cell) else "chat"


def _needed(family: Format, names: tuple[str, ...]) -> _Needed:
    """Return the columns that may play each required role; nothing where one has none."""
    options = columns_of(family, names, {})
    if not all(role in options for role in REQUIRED[family]):
        return ()
    return tuple(options[role] for role in REQUIRED[family])
