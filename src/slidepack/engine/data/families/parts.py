"""The content of a message that is a list of parts: text, thought and calls of tools."""

from typing import Any, Final

import msgspec

from slidepack.engine.data.families.cells import Cells, RejectedError
from slidepack.engine.data.families.json_text import call_of, to_json
from slidepack.engine.data.json_values import parse_json
from slidepack.engine.data.rows import clip

_TEXT: Final = ("text", "input_text", "output_text")
_THOUGHT: Final = ("reasoning", "thinking")
_MEDIA: Final = ("image", "audio", "video", "file")


class Parts(msgspec.Struct, frozen=True):
    """What the parts of a message come to."""

    text: str
    thought: str = ""
    calls: str = ""
    """As JSON."""


def join_parts(index: int, parts: list[Any], cells: Cells) -> Parts:
    """Join the parts of turn `index`, each kind by itself; null parts say nothing."""
    said: dict[str, list[str]] = {"text": [], "thought": []}
    calls: list[dict[str, Any]] = []
    for part in parts:
        if part is None:
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        # LLaMA-Factory says `value` whatever the kind.
        content = part.get(kind, part.get("value")) if isinstance(kind, str) else None
        if kind in _TEXT and isinstance(content := part.get("text", content), str):
            said["text"].append(content)
        elif kind in _THOUGHT and isinstance(content, str):
            said["thought"].append(content)
        elif kind == "tool_call":
            calls.append(_call(index, content))
        elif isinstance(kind, str) and kind.removeprefix("input_").startswith(_MEDIA):
            raise RejectedError("media", f"turn {index} shows {clip(kind)}, only text is learned")
        else:
            raise RejectedError("bad-content", f"turn {index} has content part {clip(part)}")
    return Parts(
        cells.mend("".join(said["text"])),
        cells.mend("".join(said["thought"])),
        to_json(calls, cells) if calls else "",
    )


def _call(index: int, content: Any) -> dict[str, Any]:
    if isinstance(content, str):
        try:
            content = parse_json(content)
        except ValueError as error:
            raise RejectedError("bad-tool-calls", f"turn {index} calls {clip(content)}") from error
    return call_of(index, content)
