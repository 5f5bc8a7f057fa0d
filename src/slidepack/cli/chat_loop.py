"""The loop of a chat: questions in, answers out, one voice after the other."""

import io
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from slidepack.cli.chat_speakers import Settings, Speaker
from slidepack.cli.client import DaemonClient
from slidepack.cli.output import print_json, say
from slidepack.cli.terminal_text import one_line, printable
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["ChatLoop"]

_POLL_SECONDS: Final = 0.2
_MOST_SEED: Final = (1 << 64) - 1
_HELP: Final = "Commands: /reset, /seed N, /quit. Ctrl-C ends an answer."


@dataclass(slots=True)
class _Answer:
    """What a voice has said so far."""

    text: str = ""
    done: dict[str, Any] | None = None
    error: ErrorReport | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.done is not None or self.error is not None


@dataclass(slots=True)
class _Screen:
    """Shows answers in their order: one as it comes, those behind it when it is their turn."""

    titles: dict[str, str]
    answers: dict[str, _Answer]
    shown: dict[str, int] = field(default_factory=dict)

    def show(self) -> None:
        """Write what is new."""
        for voice, answer in self.answers.items():
            if voice not in self.shown:
                _write("\n")
                Console().print(Text(one_line(self.titles.get(voice, voice)), style="bold"))
                self.shown[voice] = 0
            at = self.shown[voice]
            if at >= 0:
                _write(printable(answer.text[at:]))
                self.shown[voice] = len(answer.text)
            if not answer.over:
                return
            if at >= 0:
                self._close(answer)
                self.shown[voice] = -1

    def _close(self, answer: _Answer) -> None:
        _write("\n")
        if answer.error is not None:
            say(answer.error.line())
        if answer.done is not None:
            done = answer.done
            cut = ", cut at its longest" if done["finish_reason"] == "length" else ""
            say(f"({done['new_tokens']} tokens, {done['tokens_per_second']:.1f} a second{cut})")


class ChatLoop:
    """Asks speakers one after the other, and keeps their conversations."""

    def __init__(
        self,
        client: DaemonClient,
        speakers: Sequence[Speaker],
        settings: Settings,
        *,
        json_output: bool,
    ) -> None:
        """Bind who answers; nothing is loaded yet."""
        self._client = client
        self._speakers = speakers
        self._settings = settings
        self._json = json_output
        self._told: set[str] = set()

    def run(self) -> None:
        """Read questions until there are no more."""
        _replace_wrong_bytes()
        if not self._json:
            say(_HELP)
            for speaker in self._speakers:
                self._open(speaker)
        while True:
            try:
                line = self._read()
            except (EOFError, KeyboardInterrupt):
                return
            if line is None or line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                failed = self.ask(line)
                if failed is not None:
                    self._report(failed)

    def ask(self, question: str) -> SlidepackError | None:
        """Ask everybody; return what went wrong, or None. Ctrl-C ends the answers."""
        failed: SlidepackError | None = None
        for speaker in self._speakers:
            try:
                failed = self._ask(speaker, question) or failed
            except SlidepackError as error:
                failed = error
        return failed

    def _ask(self, speaker: Speaker, question: str) -> SlidepackError | None:
        session = self._open(speaker)
        answers = {voice: _Answer() for voice in speaker.voices}
        screen = _Screen(speaker.titles, answers)
        events = speaker.ask(session, question, self._settings)
        try:
            for name, data in events:
                _take(answers, name, data)
                if not self._json:
                    screen.show()
        except KeyboardInterrupt:
            # Closing the stream ends the answers; what was said stays.
            if not self._json:
                say("\n(stopped)")
        finally:
            events.close()
        for voice, answer in answers.items():
            if answer.text or answer.done:
                speaker.keep(voice, question, answer.text)
            if self._json:
                print_json(self._shown(voice, question, answer))
        return next(
            (SlidepackError.from_report(one.error) for one in answers.values() if one.error), None
        )

    def _shown(self, voice: str, question: str, answer: _Answer) -> dict[str, Any]:
        done = answer.done or {}
        return {
            "voice": voice,
            "question": question,
            "answer": answer.text,
            "seed": self._settings.seed,
            "finish_reason": done.get("finish_reason", "error" if answer.error else "stopped"),
            "prompt_tokens": done.get("prompt_tokens"),
            "new_tokens": done.get("new_tokens"),
            "tokens_per_second": done.get("tokens_per_second"),
            "error": answer.error,
        }

    def _open(self, speaker: Speaker) -> dict[str, Any]:
        """Return a speaker's chat once it is ready."""
        session = speaker.open()
        while session["state"] == "loading":
            if not self._json and sys.stderr.isatty():
                sys.stderr.write(f"\rLoading: {session['done']} of {session['total']} layers ")
            time.sleep(_POLL_SECONDS)
            session = self._client.get(f"/chat/sessions/{session['id']}")
        if session["error"] is not None:
            raise SlidepackError.from_report(msgspec.convert(session["error"], ErrorReport))
        if not self._json:
            self._tell_changes(speaker, session)
        return session

    def _tell_changes(self, speaker: Speaker, session: dict[str, Any]) -> None:
        """Say, once a chat, what the adapters do to the base."""
        if session["id"] in self._told:
            return
        self._told.add(session["id"])
        for voice in session["voices"]:
            if voice["name"] not in speaker.voices:
                continue
            if voice["warning"]:
                say(f"{voice['title']}: {voice['warning']}")
            elif voice["mean_difference"] is not None:
                say(
                    f"{voice['title']} changes the answers: "
                    f"mean logit difference {voice['mean_difference']:.2g}."
                )

    def _read(self) -> str | None:
        if self._json:
            line = sys.stdin.readline()
            return line.strip() if line else None
        return input("\n> ").strip()

    def _command(self, line: str) -> None:
        name, _, value = line.partition(" ")
        if name == "/reset":
            for speaker in self._speakers:
                speaker.talks.clear()
            self._say("The conversation is forgotten.")
        elif name == "/seed" and (seed := _seed_of(value.strip())) is not None:
            self._settings.seed = seed
            self._say(f"The seed is {self._settings.seed}.")
        else:
            self._say(_HELP)

    def _say(self, text: str) -> None:
        if not self._json:
            say(text)

    def _report(self, error: SlidepackError) -> None:
        sys.stderr.write(f"{error}\n")


def _take(answers: dict[str, _Answer], name: str, data: dict[str, Any]) -> None:
    """Note an event of the stream."""
    match name:
        case "token":
            answers[data["voice"]].text += data["text"]
        case "done":
            answer = answers[data["voice"]]
            answer.done = data
            if data["error"] is not None:
                answer.error = msgspec.convert(data["error"], ErrorReport)
        case "failed":
            error = msgspec.convert(data["error"], ErrorReport)
            for voice in data["voices"]:
                answers[voice].error = error


def _seed_of(text: str) -> int | None:
    """Return a seed as typed, or None where it is none."""
    # Python reads no number of thousands of digits.
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_SEED))):
        return None
    seed = int(text)
    return seed if seed <= _MOST_SEED else None


def _replace_wrong_bytes() -> None:
    """Take bytes of standard input that are no text for U+FFFD."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
