"""Who answers in a chat of the command line: one chat of the daemon, or one after the other."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slidepack.cli.client import DaemonClient
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["Settings", "Speaker", "speakers_of"]

_BASE: Final = "base"

Messages = list[dict[str, str]]


@dataclass(slots=True)
class Settings:
    """How answers are made."""

    system: str
    seed: int
    temperature: float
    top_p: float
    max_tokens: int


@dataclass(slots=True)
class Speaker:
    """Voices of one chat, each with its own conversation."""

    client: DaemonClient
    request: dict[str, Any]
    """That begins the chat, or finds it again."""
    voices: tuple[str, ...]
    titles: dict[str, str] = field(default_factory=dict)
    talks: dict[str, Messages] = field(default_factory=dict)

    def open(self) -> dict[str, Any]:
        """Return the chat, which may still load."""
        session: dict[str, Any] = self.client.post("/chat/sessions", self.request)
        self.titles = {voice["name"]: voice["title"] for voice in session["voices"]}
        return session

    def ask(
        self, session: dict[str, Any], question: str, settings: Settings
    ) -> Generator[tuple[str, Any], None, None]:
        """Yield the events of all voices' answers to a question (`/chat/sessions/ID/asks`)."""
        body = {
            "voices": self.voices,
            "own": {voice: self._messages(voice, question, settings) for voice in self.voices},
            "sampling": {
                "seed": settings.seed,
                "temperature": settings.temperature,
                "top_p": settings.top_p,
            },
            "max_tokens": settings.max_tokens,
        }
        yield from self.client.stream(f"/chat/sessions/{session['id']}/asks", body)

    def keep(self, voice: str, question: str, answer: str) -> None:
        """Remember what a voice was asked and said."""
        self.talks.setdefault(voice, []).extend(
            [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        )

    def _messages(self, voice: str, question: str, settings: Settings) -> Messages:
        system = [{"role": "system", "content": settings.system}] if settings.system else []
        return [*system, *self.talks.get(voice, []), {"role": "user", "content": question}]


def speakers_of(
    client: DaemonClient, jobs: Sequence[int], model: str, *, with_base: bool | None, device: str
) -> list[Speaker]:
    """Return who answers.

    Args:
        client: the daemon.
        jobs: ids of completed jobs.
        model: id of a base, where there are no jobs, or to name theirs.
        with_base: whether the base answers too; None where that costs next to nothing.
        device: for the chat.

    Raises:
        SlidepackError: CHAT-REQUEST-INVALID where nobody is named; RUN-NOT-FOUND.
    """
    if not jobs and not model:
        raise SlidepackError(
            "CHAT-REQUEST-INVALID",
            "Nobody is named who could answer.",
            why="there is neither a job nor --model",
            fix="Name a completed job, as in `slidepack chat 12`; see `slidepack jobs list`.",
        )
    if not jobs:
        return [Speaker(client, {"model": model, "device": device}, (_BASE,))]
    names = tuple(f"job-{job}" for job in jobs)
    specs = [client.get(f"/jobs/{job}")["spec"] for job in jobs]
    request: dict[str, Any] = {"jobs": list(jobs), "device": device}
    if specs[0]["method"]["kind"] != "full":
        if model:
            request["model"] = model
        voices = names if with_base is False else (*names, _BASE)
        return [Speaker(client, request, voices)]
    found = [Speaker(client, request, names)]
    if with_base:
        # A model of its own: on one device the two take turns, and each is loaded anew.
        base = {"model": specs[0]["base"]["model_id"], "device": device}
        found.append(Speaker(client, base, (_BASE,)))
    return found
