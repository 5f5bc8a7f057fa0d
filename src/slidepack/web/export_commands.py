"""The commands that run an export in other programs, with this machine's own paths in them."""

import shlex
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.exports.record import ExportRecord
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.export.naming import model_name

__all__ = ["Command", "commands_of"]

_VLLM_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's --max-lora-rank takes."""
_ASK: Final = """\
messages = [{"role": "user", "content": "Hello"}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
answer = model.generate(**inputs, max_new_tokens=100)
print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Something to paste."""

    title: str
    text: str


def commands_of(export: ExportRecord, spec: JobSpec) -> tuple[Command, ...]:
    """Return how an export that is done is run.

    Args:
        export: of the job.
        spec: of the job that it was made of.
    """
    folder = Path(export.folder)
    name = model_name(export.wanted.name or export.job_name)
    match export.wanted.format:
        case "peft":
            return _of_adapter(folder, name, spec)
        case "merged":
            return _of_folder(folder, name)
        case "ollama":
            return _of_modelfile(folder, name)
        case "gguf":
            return _of_gguf(export, folder)


def _of_adapter(folder: Path, name: str, spec: JobSpec) -> tuple[Command, ...]:
    base = spec.base.path
    rank = spec.method.rank if isinstance(spec.method, LoraMethod) else 0
    most = next((known for known in _VLLM_RANKS if known >= rank), rank)
    load = (
        "from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"base = {base!r}\n"
        "tokenizer = AutoTokenizer.from_pretrained(base)\n"
        "model = AutoModelForCausalLM.from_pretrained(base)\n"
        f"model = PeftModel.from_pretrained(model, {str(folder)!r})\n"
    )
    serve = _line(
        *("vllm", "serve", base, "--enable-lora", "--max-lora-rank", str(most)),
        *("--lora-modules", f"{name}={folder}"),
    )
    return (
        Command(title="In Python, with transformers and peft", text=load + _ASK),
        Command(title="With vLLM", text=serve),
    )


def _of_folder(folder: Path, name: str) -> tuple[Command, ...]:
    load = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"folder = {str(folder)!r}\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        "model = AutoModelForCausalLM.from_pretrained(folder)\n"
    )
    return (
        Command(title="In Python, with transformers", text=load + _ASK),
        Command(
            title="With vLLM",
            text=_line("vllm", "serve", str(folder), "--served-model-name", name),
        ),
    )


def _of_gguf(export: ExportRecord, folder: Path) -> tuple[Command, ...]:
    file = str(next((folder / name for name in export.files if name.endswith(".gguf")), folder))
    if export.wanted.adapter_only:
        text = f"llama-server -m BASE.gguf --lora {shlex.quote(file)}"
        return (Command(title="With llama.cpp, beside the base as a GGUF file", text=text),)
    return (Command(title="With llama.cpp", text=_line("llama-server", "-m", file)),)


def _of_modelfile(folder: Path, name: str) -> tuple[Command, ...]:
    return (
        Command(
            title="With Ollama",
            text=_line("ollama", "create", name, "-f", str(folder / "Modelfile"))
            + "\n"
            + _line("ollama", "run", name),
        ),
    )


def _line(*words: str) -> str:
    return shlex.join(words)
