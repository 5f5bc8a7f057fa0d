"""Which column of a row plays which role in a family: by name here, by structure for talks."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from slidepack.engine.data.rows import Format

_CONVERSATIONS: Final = (
    "messages", "conversations", "conversation", "dialogue", "dialog", "turns", "chat",
)  # fmt: skip

ROLES: Final[dict[Format, dict[str, tuple[str, ...]]]] = {
    "chat": {
        "messages": _CONVERSATIONS,
        "system": ("system",),
        "tools": ("tools", "functions"),
    },
    "sharegpt": {
        "messages": _CONVERSATIONS,
        "system": ("system",),
        "tools": ("tools", "functions"),
    },
    "alpaca": {
        "instruction": ("instruction", "query"),
        "input": ("input", "context"),
        "output": ("output", "response"),
        "system": ("system", "system_prompt"),
        "history": ("history",),
    },
    "completion": {"prompt": ("prompt",), "completion": ("completion", "response")},
    "qa": {
        "question": ("question", "problem", "query", "instruction", "prompt", "input", "q"),
        "answer": ("answer", "response", "solution", "generated_solution", "output", "a"),
        "context": ("context",),
        "system": ("system", "system_prompt"),
    },
    "text": {"text": ("text", "content", "document", "body")},
    "tokens": {
        "input_ids": ("input_ids",),
        "labels": ("labels",),
        "attention_mask": ("attention_mask",),
    },
    "preference": {"chosen": ("chosen", "preferred_output"), "rejected": ("rejected",)},
}
"""For each family the roles, and for each role the names that its column goes by."""

REQUIRED: Final[dict[Format, tuple[str, ...]]] = {
    "chat": ("messages",),
    "sharegpt": ("messages",),
    "alpaca": ("instruction", "output"),
    "completion": ("prompt", "completion"),
    "qa": ("question", "answer"),
    "text": ("text",),
    "tokens": ("input_ids",),
    "preference": ("chosen", "rejected"),
}

_CONTENTS: Final = frozenset({"content", "value", "text", "tool_calls", "function_call"})

Options = Mapping[str, tuple[str, ...]]


def columns_of(family: Format, names: Iterable[str], given: Mapping[str, str]) -> Options:
    """Return, for each role, the columns among `names` that may play it, the best first.

    A role that the user gave has that column only, and the column plays no other role.
    """
    present = list(names)
    known = {name.strip().casefold(): name for name in reversed(present)}
    taken = set(given.values())
    options: dict[str, tuple[str, ...]] = {}
    for role, synonyms in ROLES[family].items():
        if role in given:
            if given[role] in present:
                options[role] = (given[role],)
            continue
        found = tuple(known[word] for word in synonyms if word in known)
        if free := tuple(name for name in found if name not in taken):
            options[role] = free
    return options


def is_conversation(value: Any) -> bool:
    """Return whether a cell holds a list of messages, whatever its column is called."""
    if type(value) is not list:
        return False
    for item in value:
        if type(item) is dict:
            return ("role" in item or "from" in item) and not _CONTENTS.isdisjoint(item)
    return False


def speaks_sharegpt(conversation: list[Any]) -> bool:
    """Return whether the messages say `from` and `value`, not `role` and `content`."""
    return not any("role" in item for item in conversation if type(item) is dict)
