"""The Modelfile, read as Ollama reads one."""

import json
from pathlib import Path

import pytest
from support.chat_templates import PUBLISHED, save_chat_tokenizer, save_published

from slidepack.engine.export.go_template import find_between, go_template
from slidepack.engine.export.ollama import write_modelfile
from slidepack.engine.export.speech import Speech, read_speech


def _parsed(text: str) -> list[tuple[str, str]]:
    """Return commands and values as `ParseFile` of Ollama's parser/parser.go finds them."""
    commands = []
    while text := text.lstrip(" \t\n"):
        name, _, text = text.partition(" ")
        if name == "PARAMETER":
            name, _, text = text.partition(" ")
        value, closed = "", None
        while closed is None:
            line, newline, text = text.partition("\n")
            value += "".join(letter for letter in line if letter == "\t" or letter.isprintable())
            closed = _unquoted(value.strip())
            assert newline or closed is not None, "the last value is not closed"
            value += newline
        commands.append((name, closed))
    return commands


def _unquoted(value: str) -> str | None:
    """Return what `unquote` does; None where the quotes are not closed yet."""
    for marks in ('"""', '"'):
        if value.startswith(marks):
            closed = len(value) >= 2 * len(marks) and value.endswith(marks)
            return value[len(marks) : -len(marks)] if closed else None
    return value


def _speech(folder: Path, end: str, between: str = ": ") -> Speech:
    """Return words in which answers end with `end`, and a role with `between`."""
    after_role, after_text = json.dumps(between), json.dumps(end)
    template = (
        f"{{% for message in messages %}}{{{{ message['role'] + {after_role} }}}}"
        f"{{{{ message['content'] + {after_text} }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ 'assistant' + {after_role} }}}}{{% endif %}}"
    )
    return read_speech(save_chat_tokenizer(folder, (end,), template, end), None)


@pytest.mark.parametrize("name", PUBLISHED)
def test_answers_stop_at_the_templates_end(tmp_path: Path, name: str) -> None:
    save_published(tmp_path / "model", name, marks=False)
    model = PUBLISHED[name]
    ids = {token: index for index, token in enumerate(model.special)}
    config = tmp_path / "model" / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": ids[model.eos]}))
    speech = read_speech(tmp_path / "model", None)
    notes = write_modelfile(tmp_path, "some.gguf", speech)
    (first, *_), *_ = commands = _parsed((tmp_path / "Modelfile").read_text())
    assert (first, commands[0][1]) == ("FROM", "./some.gguf")
    markers = speech.tokenizer.markers
    assert markers is not None
    stops = {value for command, value in commands if command == "stop"}
    assert {markers.end, model.eos} == stops
    assert bool(notes) == (name == "Gemma")


@pytest.mark.parametrize(
    "end",
    [
        *("<|end|>", "</s>", "<\uff5cend▁of▁sentence\uff5c>", "###", "a b", " a ", "a\tb"),
        *('"', 'say "stop"', '"stop"', '""', '"""', 'a"""b', '"""a"""'),
        *("\\", "\\n", "<\\s>", 'a\\"b', "a\nb", "\na", 'a"\nb', "a\n\nb"),
    ],
)
def test_ollama_reads_the_stop_as_it_is(tmp_path: Path, end: str) -> None:
    notes = write_modelfile(tmp_path, "some.gguf", _speech(tmp_path / "model", end))
    commands = _parsed((tmp_path / "Modelfile").read_text())
    assert [name for name, _ in commands[:2]] == ["FROM", "TEMPLATE"]
    assert end in {value for name, value in commands[2:] if name == "stop"}
    assert notes == []


@pytest.mark.parametrize("end", ['a"""\nb', 'a""" \nb', '"""\n', "a\u00a0b", "a\rb", "\x1b[0m"])
def test_a_stop_that_no_modelfile_holds_is_left_out(tmp_path: Path, end: str) -> None:
    (note,) = write_modelfile(tmp_path, "some.gguf", _speech(tmp_path / "model", end))
    assert "left out" in note
    commands = _parsed((tmp_path / "Modelfile").read_text())
    assert {name for name, _ in commands} <= {"FROM", "TEMPLATE", "stop"}
    assert end not in {value for _, value in commands}


@pytest.mark.parametrize("text", ['"""', '"', '""" \n"""\n', "\\", "{{ .Content }}", '\n"""\n'])
def test_a_template_with_any_text_is_read_as_it_is(tmp_path: Path, text: str) -> None:
    speech = _speech(tmp_path / "model", "<end>", text)
    between = find_between(speech)
    assert between is not None and text in between.before_user
    write_modelfile(tmp_path, "some.gguf", speech)
    commands = _parsed((tmp_path / "Modelfile").read_text())
    assert ("TEMPLATE", go_template(between)) in commands
