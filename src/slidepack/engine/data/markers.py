"""How a template opens and closes the assistant's turns, found from a conversation of our own."""

from typing import Final, Protocol

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import Turn
from slidepack.engine.data.template import TemplateRejectedError

_USER: Final = "Sentinel-u7"
_ANSWER: Final = "Sentinel-a7"
_TOOL: Final = "Sentinel-t7"
_CALL: Final = (
    '[{"type": "function", "id": "abcdefghi", "function": {"name": "look", "arguments": {"x": 1}}}]'
)
_ASKED: Final = Turn("user", _USER, False)
_ANSWERED: Final = Turn("assistant", _ANSWER)


class _Renderer(Protocol):
    def render(self, messages: tuple[Turn, ...], *, prompt: bool, tools: str = "") -> str:
        """See `ChatTokenizer`."""

    def first_special(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """See `ChatTokenizer`."""


class Markers(msgspec.Struct, frozen=True):
    """The text around an answer."""

    headers: tuple[str, ...]
    """Any of which an answer follows."""
    end: str
    """The token that ends it."""


def find_markers(tokenizer: _Renderer) -> Markers | None:
    """Return what stands around answers, or None where the template refuses to show it."""
    try:
        asked = tokenizer.render((_ASKED,), prompt=False)
        opened = tokenizer.render((_ASKED,), prompt=True)
        text = tokenizer.render((_ASKED, _ANSWERED, _ASKED, _ANSWERED), prompt=False)
    except (TemplateRejectedError, SlidepackError):
        return None
    answer = text.find(_ANSWER)
    question = text.find(_USER)
    if not 0 <= question < answer:
        return None
    end = tokenizer.first_special(text, answer + len(_ANSWER))
    if end is None:
        return None
    between = text[question + len(_USER) : answer]
    tail = opened[opened.rfind(_USER) + len(_USER) :]
    if opened.startswith(asked) and opened != asked:
        headers = [opened[len(asked) :]]
    elif opened != asked and between.startswith(tail):
        # Without a prompt the template closes the conversation; the header starts at a token.
        headers = [tail[_last_special(tokenizer, tail) :]]
    else:
        # Nothing is written for a prompt: the answer follows what closes the question, or a tool's.
        headers = sorted({between.rstrip(), _after_tool(tokenizer)} - {""})
    return Markers(tuple(headers), text[slice(*end)]) if headers else None


def _last_special(tokenizer: _Renderer, text: str) -> int:
    start, found = 0, tokenizer.first_special(text)
    while found is not None:
        start = found[0]
        found = tokenizer.first_special(text, found[1])
    return start


def _after_tool(tokenizer: _Renderer) -> str:
    called = Turn("assistant", "", tool_calls=_CALL)
    told = Turn("tool", _TOOL, False, tool_call_id="abcdefghi", name="look")
    try:
        text = tokenizer.render((_ASKED, called, told, _ANSWERED), prompt=False)
    except TemplateRejectedError:
        return ""
    tool, answer = text.rfind(_TOOL), text.rfind(_ANSWER)
    return text[tool + len(_TOOL) : answer].rstrip() if 0 <= tool < answer else ""
