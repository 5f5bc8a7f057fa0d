"""What is no fault of a row and still worth a look: twins, odd turns, secrets, foreign tongues.

Rows pass once; of each only hashes are kept.
"""

from collections import Counter
from typing import Final

import msgspec

from slidepack.engine.data.personal import SECRETS, kinds_in
from slidepack.engine.data.report import Issue
from slidepack.engine.data.rows import ChatRow, Row, TextRow, TokensRow, is_blank, says_none
from slidepack.engine.data.scripts import script_of
from slidepack.engine.data.twins import Twins

_SHOWN_LINES: Final = 3
_BARE: Final = frozenset(
    {
        "continue", "go on", "keep going", "carry on", "please continue", "more", "next",
        "and then", "why", "try again", "again", "same again", "продолжай", "дальше", "继续",
        "続けて", "weiter", "continúa", "continuez",
    }
)  # fmt: skip
"""Whole first questions that mean nothing without an earlier one."""
_STARTS: Final = (
    "as above", "see above", "same as above", "like above", "as before", "as i said",
    "and what about", "what about it", "and how about", "based on your previous",
    "in your previous", "in your last", "the previous answer", "from the above", "now do the same",
)  # fmt: skip
_FOLLOW_UP_CHARS: Final = 80
_TRANSCRIPT_CHARS: Final = 4000
_SPEAKERS: Final = (
    "assistant:", "<|im_start|>", "[inst]", "<start_of_turn>", "<|start_header_id|>",
    "<|assistant|>",
)  # fmt: skip
"""What chat templates and their imitations put before a turn, in lower case."""
_END: Final = " .!?…。！？,"  # noqa: RUF001 -- full-width marks end sentences too
_MEDIA: Final = (b"<image>", b"<video>", b"<audio>")

_MESSAGES: Final = {
    "duplicate-row": "rows that say the same as an earlier one",
    "question-twice": "rows that ask what an earlier one asks, and answer differently",
    "placeholder-answer": "rows that are answered with a word for nothing, such as Noinput",
    "empty-system": "rows with a system turn that says nothing",
    "turns-not-alternating": "conversations in which one side speaks twice in a row, or the "
    "assistant first",
    "mixed-scripts": "rows that are answered in another script than they ask in",
    "follow-up": "rows that begin with a question that needs an earlier one",
    "transcript": "texts that look like conversations, all of which is learned, the questions too",
    "media-tag": "rows that hold the tag of a picture or a sound that the model will not get",
    "secret": "rows that hold what looks like a secret",
    "personal-data": "rows that hold what looks like personal data",
}


class LintReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the lint found."""

    issues: tuple[Issue, ...]
    """One for each kind of finding."""
    notes: tuple[str, ...]
    """What could not be looked at."""


class Lint:
    """Sees every accepted row once."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._twins = Twins()
        self._counts: Counter[str] = Counter()
        self._lines: dict[str, list[int]] = {}
        self._kinds: Counter[str] = Counter()

    def see(self, row: Row, encoded: bytes) -> None:
        """Look at a row; `encoded` is its line of JSON."""
        twin = self._twins.add(row)
        if twin:
            self._count(twin, row.line)
        if isinstance(row, TokensRow):
            return
        if isinstance(row, ChatRow):
            self._look_at_chat(row)
        elif isinstance(row, TextRow):
            head = row.text[:_TRANSCRIPT_CHARS].lower()
            if any(mark in head for mark in _SPEAKERS):
                self._count("transcript", row.line)
        else:
            if _is_follow_up(row.prompt):
                self._count("follow-up", row.line)
            if says_none(row.completion):
                self._count("placeholder-answer", row.line)
        if b"<" in encoded and any(tag in encoded for tag in _MEDIA):
            self._count("media-tag", row.line)
        self._look_for_personal(row.line, encoded)

    def report(self) -> LintReport:
        """Return what was found in all rows."""
        return LintReport(issues=tuple(self._issues()), notes=tuple(self._twins.notes()))

    def _issues(self) -> list[Issue]:
        found = []
        for code, message in _MESSAGES.items():
            if count := self._counts[code]:
                first = self._lines[code]
                kinds = self._named_kinds(code)
                lines = f"first line{'s' if len(first) > 1 else ''}: {', '.join(map(str, first))}"
                text = f"{message}: {count} ({lines}{kinds})"
                found.append(Issue(line=first[0], code=code, message=text, count=count))
        return found

    def _count(self, code: str, line: int) -> None:
        self._counts[code] += 1
        lines = self._lines.setdefault(code, [])
        if len(lines) < _SHOWN_LINES:
            lines.append(line)

    def _look_at_chat(self, row: ChatRow) -> None:
        if not _alternates(row):
            self._count("turns-not-alternating", row.line)
        asked = answered = ""
        placeholder = False
        for turn in row.messages:
            if turn.role == "user":
                asked = asked or turn.content
            elif turn.role == "assistant":
                answered = answered or turn.content
                placeholder = placeholder or (turn.train and says_none(turn.content))
            elif turn.role == "system" and is_blank(turn.content):
                self._count("empty-system", row.line)
        if placeholder:
            self._count("placeholder-answer", row.line)
        if row.messages[0].role != "assistant" and _is_follow_up(asked):
            self._count("follow-up", row.line)
        if asked.isascii() and answered.isascii():
            return
        one, other = script_of(asked), script_of(answered)
        if one and other and one != other:
            self._count("mixed-scripts", row.line)

    def _look_for_personal(self, line: int, encoded: bytes) -> None:
        kinds = kinds_in(encoded)
        if not kinds:
            return
        self._kinds.update(kinds)
        if kinds & SECRETS:
            self._count("secret", line)
        if kinds - SECRETS:
            self._count("personal-data", line)

    def _named_kinds(self, code: str) -> str:
        if code not in ("secret", "personal-data"):
            return ""
        kinds = [kind for kind in self._kinds if (kind in SECRETS) == (code == "secret")]
        return "; " + ", ".join(f"{kind} {self._kinds[kind]}" for kind in sorted(kinds))


def _alternates(row: ChatRow) -> bool:
    """Return whether the sides take turns; what a tool says stands between two turns of one."""
    last = "assistant"
    for turn in row.messages:
        if turn.role == "system":
            continue
        if turn.role == last != "tool":
            return False
        last = turn.role
    return True


def _is_follow_up(question: str) -> bool:
    head = question[:_FOLLOW_UP_CHARS].strip().casefold()
    return head.startswith(_STARTS) or (
        len(question) < _FOLLOW_UP_CHARS and head.rstrip(_END) in _BARE
    )
