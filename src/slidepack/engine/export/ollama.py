"""Writes a Modelfile beside a GGUF file, and hands both to Ollama where it is installed."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import clip
from slidepack.engine.export.go_template import find_between, go_template
from slidepack.engine.export.speech import Speech

__all__ = ["create_in_ollama", "write_modelfile"]

_MODELFILE: Final = "Modelfile"


def write_modelfile(folder: Path, gguf: str, speech: Speech) -> list[str]:
    """Write `Modelfile` into a folder that holds a GGUF file.

    Args:
        folder: exists.
        gguf: name of the file in it.
        speech: template and ends of answers.

    Returns:
        What the user should know about it, in sentences.

    Raises:
        SlidepackError: MODEL-NO-CHAT-TEMPLATE: the template does not show how it talks.
            MODEL-BROKEN.
        OSError: the disk refused.
    """
    notes: list[str] = []
    lines = [f"FROM ./{gguf}"]
    between = find_between(speech)
    if between is not None:
        lines.append(f'TEMPLATE """{go_template(between)}"""')
        if not between.has_system:
            notes.append(
                "The chat template has no place for a system message; in Ollama one is put before "
                "the first question."
            )
    elif speech.template:
        raise SlidepackError(
            "MODEL-NO-CHAT-TEMPLATE",
            "The chat template cannot be put into Ollama's form.",
            why="it does not render a question, an answer and a question, each as it was given",
            fix="Export the model as gguf: the file holds the template as it is.",
        )
    else:
        lines.append('TEMPLATE """{{ .Prompt }}"""')
        notes.append("The model has no chat template: in Ollama it goes on with the text it gets.")
    for text in _stops(speech):
        quoted = _quoted(text)
        if quoted is None:
            notes.append(f"A Modelfile cannot hold the stop {clip(text)!r}, so it is left out.")
        else:
            lines.append(f"PARAMETER stop {quoted}")
    (folder / _MODELFILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return notes


def create_in_ollama(folder: Path, name: str) -> str:
    """Run `ollama create` where Ollama is installed; return a sentence about what was done.

    Args:
        folder: holds the Modelfile.
        name: of the model in Ollama.

    Raises:
        SlidepackError: RUN-FAILED: Ollama did not take the model; the export is there.
    """
    command = ["ollama", "create", name, "-f", str(folder / _MODELFILE)]
    program = shutil.which("ollama")
    if program is None:
        return (
            "There is no `ollama` on the PATH, so nothing was handed to it. Where Ollama is "
            f"installed, run: {shlex.join(command)}"
        )
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        why = _last_line(done.stderr) or f"exit code {done.returncode}"
    except OSError as error:
        done, why = None, str(error)
    if done is None or done.returncode:
        raise SlidepackError(
            "RUN-FAILED",
            "Ollama did not take the model.",
            why=why,
            fix=f"The export is in {folder}. Start Ollama, then run: {shlex.join(command)}",
        )
    return f"Ollama has it as {name}: run `ollama run {name}`."


def _stops(speech: Speech) -> list[str]:
    texts = {speech.text_of(index) for index in speech.end_ids} | {speech.tokenizer.eos_token}
    return sorted(text for text in texts if text.strip())


def _quoted(text: str) -> str | None:
    """Return a value as Ollama reads it back, or None where it would read another.

    Its parser, `ParseFile` and `unquote` in ollama/ollama's parser/parser.go, knows no escapes: it
    takes a pair of quotes off, or of three, and what is between them is the value. It ends a value
    at the first line whose end closes the quotes, and drops characters that are not printable.
    """
    lines = text.split("\n")
    if not all(letter == "\t" or letter.isprintable() for line in lines for letter in line):
        return None
    marks = '"""' if '"' in text else '"'
    if any(line.rstrip(" \t").endswith(marks) for line in lines[:-1]):
        return None
    return f"{marks}{text}{marks}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
