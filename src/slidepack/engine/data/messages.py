"""Turns as chat templates take them: dicts in OpenAI's form."""

import json
from typing import Any

from slidepack.engine.data.rows import Turn


def message_of(turn: Turn) -> dict[str, Any]:
    """Return a turn as templates take it: calls as objects, and no field that says nothing."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.tool_calls:
        message["tool_calls"] = tool_calls_of(turn)
    if turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    if turn.name:
        message["name"] = turn.name
    return message


def tool_calls_of(turn: Turn) -> list[Any]:
    """Return the calls of a turn, with arguments, which OpenAI writes as a string, as objects."""
    calls = json.loads(turn.tool_calls)
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = json.loads(function["arguments"])
            except ValueError:
                continue
    return list(calls)
