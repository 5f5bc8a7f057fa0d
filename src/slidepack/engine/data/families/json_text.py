"""Calls of tools and lists of tools, kept as JSON text: no schema fits all of them."""

from typing import Any

import msgspec

from slidepack.engine.data.families.cells import Cells, RejectedError
from slidepack.engine.data.json_values import parse_json
from slidepack.engine.data.rows import Number, clip


def to_json(value: Any, cells: Cells) -> str:
    """Return a parsed value as JSON text again; numbers stay as they are written."""
    try:
        return msgspec.json.encode(_plain(value, cells)).decode()
    except RecursionError as error:
        raise RejectedError("bad-tool-calls", "nested too deeply") from error


def _plain(value: Any, cells: Cells) -> Any:
    if isinstance(value, str):
        return cells.mend(value)
    if isinstance(value, Number):
        if value.text[-1].isdigit():
            return msgspec.Raw(value.text.encode())
        cells.repairs.add("nan")
        return None
    if isinstance(value, list):
        return [_plain(item, cells) for item in value]
    if isinstance(value, dict):
        return {cells.mend(name): _plain(item, cells) for name, item in value.items()}
    return value


def calls_of_message(index: int, message: dict[str, Any], cells: Cells) -> str:
    """Return an assistant's calls as OpenAI writes them; "" where it makes none."""
    calls = message.get("tool_calls")
    if not calls:
        legacy = message.get("function_call")
        if not legacy:
            return ""
        calls = [legacy]
    return _calls(index, calls, cells)


def calls_of_text(index: int, text: str, cells: Cells) -> str:
    """Return the calls that a ShareGPT turn `function_call` holds as JSON text."""
    try:
        calls = parse_json(text)
    except ValueError as error:
        raise RejectedError(
            "bad-tool-calls", f"turn {index} calls a tool with {clip(text)}"
        ) from error
    return _calls(index, calls if isinstance(calls, list) else [calls], cells)


def tools_of(cells: Cells) -> str:
    """Return the row's list of tools; ShareGPT keeps it as text. "" where there is none."""
    tools = cells.cell("tools")
    if isinstance(tools, str):
        if not tools.strip():
            return ""
        try:
            tools = parse_json(tools)
        except ValueError as error:
            raise RejectedError("bad-tools", f"{cells.name('tools')} is {clip(tools)}") from error
    if tools is None or tools == []:
        return ""
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RejectedError("bad-tools", f"{cells.name('tools')} is {clip(tools)}")
    return to_json(tools, cells)


def _calls(index: int, calls: Any, cells: Cells) -> str:
    if isinstance(calls, str):
        return calls_of_text(index, calls, cells)
    if not isinstance(calls, list):
        raise RejectedError("bad-tool-calls", f"turn {index} has tool_calls {clip(calls)}")
    return to_json([call_of(index, call) for call in calls], cells)


def call_of(index: int, call: Any) -> dict[str, Any]:
    """Return one call, of turn `index`, in OpenAI's form."""
    if isinstance(call, dict):
        function = call.get("function", call)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            wrapped = {"name": function["name"], "arguments": function.get("arguments")}
            made = {"type": "function", "function": wrapped}
            return {"id": call["id"], **made} if isinstance(call.get("id"), str) else made
    raise RejectedError("bad-tool-calls", f"turn {index} calls {clip(call)}")
