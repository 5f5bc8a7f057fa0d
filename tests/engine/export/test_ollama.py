"""Ollama: its template says what the model's own says, and it is handed what was made."""

import json
import os
import shlex
import stat
from pathlib import Path

import pytest
from support.chat_templates import PUBLISHED, save_published
from support.exports import export, random_adapter, save_exportable
from support.go_templates import render_go

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import Role
from slidepack.engine.export.go_template import find_between, go_template
from slidepack.engine.export.naming import model_name
from slidepack.engine.export.ollama import create_in_ollama, write_modelfile
from slidepack.engine.export.speech import Speech, read_speech

QUOTES = 'Say "hi" to {{ .System }}\n\\n """ and {% raw %} 🙂'
TALKS: tuple[tuple[tuple[Role, str], ...], ...] = (
    (("user", "Hello"),),
    (("user", QUOTES),),
    (("user", "Hello"), ("assistant", "Hi."), ("user", "And now?")),
    (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")),
    (("system", "Be brief."), ("user", "Hello")),
    (("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c")),
)


def _speech(folder: Path, name: str) -> Speech:
    save_published(folder, name, marks=False)
    model = PUBLISHED[name]
    ids = {token: index for index, token in enumerate(model.special)}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids[model.eos]}))
    return read_speech(folder, None)


def _in_ollama(speech: Speech, talk: tuple[tuple[Role, str], ...]) -> str:
    between = find_between(speech)
    assert between is not None
    system = "\n\n".join(content for role, content in talk if role == "system")
    messages = [{"Role": role, "Content": content} for role, content in talk]
    return render_go(go_template(between), {"System": system, "Messages": messages})


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: "-".join(role for role, _ in talk))
@pytest.mark.parametrize("name", PUBLISHED)
def test_ollama_says_what_the_template_says(
    tmp_path: Path, name: str, talk: tuple[tuple[Role, str], ...]
) -> None:
    speech = _speech(tmp_path / "model", name)
    expected = speech.render(*talk)
    if expected is None:
        assert name == "Gemma" and talk[0][0] == "system"
        expected = speech.render(("user", f"Be brief.\n\n{talk[1][1]}"), *talk[2:])
    assert _in_ollama(speech, talk) == expected


def test_the_start_token_is_left_to_who_adds_it(tmp_path: Path) -> None:
    """Written twice, it would change every answer; the tests' tokenizers do not add one."""
    speech = _speech(tmp_path / "model", "Llama 3")
    assert _in_ollama(speech, (("user", "x"),)).startswith("<|begin_of_text|>")
    source = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    begin = {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    source["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text],
        "special_tokens": {
            "<|begin_of_text|>": {
                "id": "<|begin_of_text|>",
                "ids": [0],
                "tokens": ["<|begin_of_text|>"],
            }
        },
    }
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(source))
    adding = read_speech(tmp_path / "model", None)
    assert adding.adds_start and not adding.adds_end
    assert _in_ollama(adding, (("user", "x"),)).startswith("<|start_header_id|>user")


def test_a_model_without_a_template_goes_on_with_the_text(tmp_path: Path) -> None:
    speech = _speech(tmp_path / "model", "ChatML")
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    speech = read_speech(tmp_path / "model", None)
    (note,) = write_modelfile(tmp_path, "some.gguf", speech)
    assert "no chat template" in note
    assert 'TEMPLATE """{{ .Prompt }}"""' in (tmp_path / "Modelfile").read_text()


def test_a_template_that_hides_messages_is_refused(tmp_path: Path) -> None:
    speech = _speech(tmp_path / "model", "ChatML")
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ messages[-1]['content'] | upper }}"
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    speech = read_speech(tmp_path / "model", None)
    with pytest.raises(SlidepackError) as caught:
        write_modelfile(tmp_path, "some.gguf", speech)
    assert caught.value.report.code == "MODEL-NO-CHAT-TEMPLATE"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("My Model 3", "my-model-3"),
        ("../../x", "x"),
        ("/etc/passwd", "etc-passwd"),
        ("..", "model"),
        ("模型", "model"),
        ("a" * 200, "a" * 60),
        (".hidden", "hidden"),
    ],
)
def test_names_stay_in_their_folder(name: str, expected: str) -> None:
    assert model_name(name) == expected


def _fake_ollama(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    folder.mkdir()
    program = folder / "ollama"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_where_ollama_is_it_gets_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    _fake_ollama(tmp_path / "bin", monkeypatch, f'echo "$@" > {tmp_path}/said; cat Modelfile')
    target = tmp_path / "out"
    done = export(result, base, target, "ollama", name="../My Bot", verify=False)
    assert (tmp_path / "said").read_text().split() == [
        *("create", "my-bot", "-f"),
        str(target / "Modelfile"),
    ]
    assert set(done.files) == {"Modelfile", "my-bot-f16.gguf"}
    assert "my-bot" in done.notes[-1]


def test_what_ollama_refuses_is_said_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    _fake_ollama(tmp_path / "bin", monkeypatch, "echo no server >&2; exit 1")
    with pytest.raises(SlidepackError) as caught:
        export(result, base, tmp_path / "out", "ollama", verify=False)
    report = caught.value.report
    assert (report.code, report.why) == ("RUN-FAILED", "no server")
    assert (tmp_path / "out" / "Modelfile").exists()


@pytest.mark.parametrize("folder", ["out", "my out", "it's", "$HOME;x", 'a "b"'])
def test_the_command_to_paste_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = ["ollama", "create", "bot", "-f", str(tmp_path / folder / "Modelfile")]
    said = create_in_ollama(tmp_path / folder, "bot")
    assert shlex.split(said.rpartition("run: ")[2]) == expected
    _fake_ollama(tmp_path / "bin", monkeypatch, "exit 1")
    (tmp_path / folder).mkdir()
    with pytest.raises(SlidepackError) as caught:
        create_in_ollama(tmp_path / folder, "bot")
    assert shlex.split(caught.value.report.fix.rpartition("run: ")[2]) == expected


def test_without_ollama_the_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    monkeypatch.setenv("PATH", str(tmp_path))
    done = export(result, base, tmp_path / "out", "ollama", name="bot", verify=False)
    assert f"ollama create bot -f {tmp_path / 'out' / 'Modelfile'}" in done.notes[-1]
