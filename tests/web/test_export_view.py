"""The part "Use it": what it shows of each export, and the commands that run it."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.exports import export as make_export
from support.exports import random_adapter, save_exportable
from support.stores import plain_spec

from slidepack.daemon.exports.record import ExportRecord, ExportWanted
from slidepack.daemon.exports.source import ExportOffer
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.export.contract import ExportFormat, Verification
from slidepack.web.app import template_engine
from slidepack.web.export_commands import commands_of
from slidepack.web.export_pages import ExportsPart
from slidepack.web.export_view import make_view, stage_words

_ERROR = ErrorReport(code="RUN-CRASHED", what="It <died>.", why="signal 9", fix="Again.")
_FOUND = Verification(
    loader="peft",
    prompts=5,
    positions=268,
    max_abs=2e-5,
    mean_abs=1e-6,
    top1_agreement=0.995,
    spread=1.0,
    max_bound=1e-4,
    mean_bound=1e-5,
)
_FORMS = (
    ExportWanted(format="peft"),
    ExportWanted(format="merged"),
    ExportWanted(format="gguf"),
    ExportWanted(format="gguf", quant="q8_0"),
    ExportWanted(format="ollama", quant="q8_0"),
)


def record(wanted: ExportWanted, **changes: Any) -> ExportRecord:
    made = ExportRecord(
        id=4,
        job_id=7,
        job_name="A <bot>",
        wanted=wanted,
        state="done",
        cancelling=False,
        folder="/data/it's here/files",
        files={"a-bot-f16.gguf": 1 << 20} if wanted.format in ("gguf", "ollama") else {"w": 1},
        bytes=3 << 20,
        verification=_FOUND,
        notes=["Mind <this>."],
        error=None,
        created_at=1.0,
        started_at=2.0,
        ended_at=3.0,
    )
    return msgspec.structs.replace(made, **changes)


def offer(wanted: ExportWanted, problem: ErrorReport | None = None) -> ExportOffer:
    return ExportOffer(wanted=wanted, bytes=None if problem else 5 << 20, problem=problem)


class _Job:
    id = 7
    dataset_id = 3


def render(
    offers: list[ExportOffer], exports: list[ExportRecord], spec: JobSpec, **context: Any
) -> str:
    part = ExportsPart(exports=make_view(7, offers, exports, spec))
    return template_engine().get_template("parts/job_exports.html").render(page=part, **context)


def test_nothing_is_shown_of_a_job_without_a_result() -> None:
    assert render([], [], plain_spec()).strip() == ""


def test_each_form_has_its_size_its_use_and_its_button() -> None:
    text = render([offer(wanted) for wanted in _FORMS], [], plain_spec())
    assert text.count("at most 5.0 MiB") == 5
    for title in ("Adapter (PEFT)", "Merged model (safetensors)", "GGUF F16", "GGUF Q8_0"):
        assert f'aria-label="Make {title}"' in text
    assert 'aria-label="Make Ollama"' in text
    assert "&#34;format&#34;:&#34;gguf&#34;,&#34;quant&#34;:&#34;q8_0&#34;" in text


@pytest.mark.parametrize("wanted", _FORMS)
def test_a_done_export_shows_figures_files_and_commands(wanted: ExportWanted) -> None:
    text = render([offer(wanted)], [record(wanted)], plain_spec())
    assert "Read back by peft and compared with the trainer on 268 tokens" in text
    assert "1e-06 on average (1e-05 allowed)" in text and "the same at 99.5%" in text
    assert 'href="/api/v1/exports/4/archive"' in text and "It frees 3.0 MiB" in text
    assert "Mind &lt;this&gt;." in text and "data-copy" in text
    assert "Make" not in text.replace("Makes", "")
    unchecked = render([offer(wanted)], [record(wanted, verification=None)], plain_spec())
    assert "It was not checked." in unchecked


def test_one_that_runs_waits_or_failed() -> None:
    wanted = _FORMS[3]
    busy: dict[str, Any] = {
        "ended_at": None,
        "verification": None,
        "files": {},
        "bytes": 0,
        "notes": [],
    }
    running = record(wanted, state="running", stage="writing", done=1 << 20, total=4 << 20, **busy)
    text = render([offer(wanted)], [running], plain_spec())
    assert "Writes: 1.0 MiB of 4.0 MiB" in text and "Cancel" in text and "data-live" in text
    assert "Download" not in text and 'aria-label="Make' not in text
    asked = record(wanted, state="running", cancelling=True, **busy)
    assert stage_words(asked) == "Is being cancelled"
    assert " disabled>Cancel" in render([offer(wanted)], [asked], plain_spec())
    assert stage_words(record(wanted, state="queued", **busy)) == "Waits for its turn"
    failed = record(wanted, state="failed", error=_ERROR, **(busy | {"ended_at": 3.0}))
    text = render([offer(wanted)], [failed], plain_spec())
    assert "It &lt;died&gt;." in text and "Try again" in text and "Dismiss" in text
    # A new training would not help, whatever page the part is on.
    on_the_page = render([offer(wanted)], [failed], plain_spec(), job=_Job())
    assert "/jobs/7/retry" not in on_the_page and "Start it again" not in on_the_page
    cancelled = record(wanted, state="cancelled", **(busy | {"ended_at": 3.0}))
    assert 'aria-label="Make GGUF Q8_0"' in render([offer(wanted)], [cancelled], plain_spec())


def test_what_cannot_be_made_says_why_and_others_are_shown_too() -> None:
    lora = ExportWanted(format="gguf", adapter_only=True)
    text = render([offer(_FORMS[2], problem=_ERROR)], [record(lora)], plain_spec())
    assert "It &lt;died&gt;. Signal 9." in text and "Make" not in text
    assert "GGUF LoRA" in text


def test_commands_are_quoted_for_a_shell() -> None:
    folder = "/data/it's here/files"
    peft, merged, gguf, _, ollama = (commands_of(record(w), _spec(rank=17)) for w in _FORMS)
    assert shlex.split(peft[1].text) == [
        *("vllm", "serve", "/the base", "--enable-lora", "--max-lora-rank", "32"),
        *("--lora-modules", f"a-bot={folder}"),
    ]
    assert shlex.split(merged[1].text)[2] == folder
    assert shlex.split(gguf[0].text) == ["llama-server", "-m", f"{folder}/a-bot-f16.gguf"]
    create, start = ollama[0].text.splitlines()
    assert shlex.split(create) == ["ollama", "create", "a-bot", "-f", f"{folder}/Modelfile"]
    assert shlex.split(start) == ["ollama", "run", "a-bot"]


def _spec(rank: int = 16, base: str = "/the base") -> JobSpec:
    spec = plain_spec()
    place = msgspec.structs.replace(spec.base, path=base)
    return msgspec.structs.replace(spec, base=place, method=LoraMethod(rank=rank))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["peft", "merged"])
def test_the_python_that_is_shown_answers(kind: ExportFormat, tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "it's the base", "llama")
    result = random_adapter(base, tmp_path / "result")
    target = tmp_path / "an export"
    make_export(result, base, target, kind, verify=False)
    shown = record(ExportWanted(format=kind), folder=str(target))
    (snippet, *_) = commands_of(shown, _spec(base=str(base)))
    done = subprocess.run(
        [sys.executable, "-c", snippet.text + "\nprint('tokens', answer.shape[1])"],
        capture_output=True,
        text=True,
        check=False,
        env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 10
