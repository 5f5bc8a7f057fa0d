"""A model's chat template in Ollama's language, Go's text/template, found from how it renders.

Instead of translating Jinja, conversations of our own are rendered, and what stands between their
messages is taken as it is. What a template says between two messages depends, for every family that
is known, on who spoke and who speaks next; that is what the Go template says.
"""

from typing import Final

import msgspec

from slidepack.engine.export.speech import Speech

__all__ = ["Between", "find_between", "go_template"]

_SYSTEM: Final = "Sentinel-s7"
_ASK: Final = "Sentinel-u7"
_ANSWER: Final = "Sentinel-a7"
_AGAIN: Final = "Sentinel-v7"


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """What a template writes between messages."""

    before_user: str
    """Before a first question without a system message."""
    before_system: str
    system_user: str
    """Between the system message and the first question."""
    user_assistant: str
    """Between a question and an answer that was given."""
    assistant_user: str
    """Between an answer and the next question."""
    after_user: str
    """After the last question: what the answer follows."""
    has_system: bool
    """Whether the template has a place for a system message; else it goes before the question."""


def find_between(speech: Speech) -> Between | None:
    """Return what the template writes between messages, or None where it does not show it.

    The start token is left out where the tokenizer adds it by itself, as Ollama's does too.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    if not speech.template:
        return None
    talk = speech.render(("user", _ASK), ("assistant", _ANSWER), ("user", _AGAIN))
    asked = speech.render(("user", _ASK))
    parts = None if talk is None else _split(talk, _ASK, _ANSWER, _AGAIN)
    opening = None if asked is None else _split(asked, _ASK)
    if parts is None or opening is None:
        return None
    told = speech.render(("system", _SYSTEM), ("user", _ASK))
    system = None if told is None else _split(told, _SYSTEM, _ASK)
    before = _without_start(opening[0], speech)
    return Between(
        before_user=before,
        before_system=before if system is None else _without_start(system[0], speech),
        system_user="\n\n" if system is None else system[1],
        user_assistant=parts[1],
        assistant_user=parts[2],
        after_user=opening[1],
        has_system=system is not None,
    )


def go_template(between: Between) -> str:
    """Return the template for a Modelfile; it holds no line breaks but those between its steps."""
    say = {name: _say(getattr(between, name)) for name in between.__struct_fields__[:-1]}
    return "\n".join(
        (
            "{{- $asked := false }}",
            "{{- if .System }}"
            f"{say['before_system']}{{{{ .System }}}}{say['system_user']}"
            f"{{{{- else }}}}{say['before_user']}"
            "{{- end }}",
            "{{- range $index, $message := .Messages }}",
            '{{- if eq .Role "user" }}'
            f"{{{{- if $asked }}}}{say['assistant_user']}{{{{- end }}}}"
            "{{- $asked = true }}{{ .Content }}",
            "{{- if eq (len (slice $.Messages $index)) 1 }}" + say["after_user"] + "{{- end }}",
            '{{- else if eq .Role "assistant" }}' + say["user_assistant"] + "{{ .Content }}",
            "{{- end }}",
            "{{- end }}",
        )
    )


def _split(text: str, *words: str) -> list[str] | None:
    """Return what stands before, between and after words that come once each, in their order."""
    parts: list[str] = []
    for word in words:
        before, found, text = text.partition(word)
        if not found or word in text:
            return None
        parts.append(before)
    return [*parts, text]


def _without_start(text: str, speech: Speech) -> str:
    start = speech.special.get("bos_token")
    if start is None or not speech.adds_start:
        return text
    return text.removeprefix(start)


def _say(text: str) -> str:
    """Return an action that writes a text, whatever is in it; nothing for an empty one."""
    if not text:
        return ""
    written = "".join(_letter(letter) for letter in text)
    return f'{{{{- "{written}" }}}}'


def _letter(letter: str) -> str:
    """Return a letter inside a Go string; quotes would end it, and braces look like actions."""
    if letter in '"\\{}' or not letter.isprintable():
        code = ord(letter)
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return letter
