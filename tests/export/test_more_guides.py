"""The guides about full fine-tuning and about sweeps: every command, run as it is written."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.daemons import DaemonProcess
from support.exports import save_exportable
from support.tiny import chat_rows, write_jsonl

from slidepack.cli.main import run

_GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
_GB = 1e9


def _blocks(guide: str, kind: str) -> list[str]:
    text = (_GUIDES / guide).read_text("utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.S)


def _commands(guide: str) -> list[list[str]]:
    lines = [line for block in _blocks(guide, "sh") for line in block.splitlines()]
    return [shlex.split(line) for line in lines]


@dataclass
class Terminal:
    """Runs commands in a folder, as a user of a daemon would."""

    daemon: DaemonProcess
    folder: Path

    def run(self, *words: str) -> str:
        """Run `slidepack` with these words and return what it printed."""
        path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-m", "slidepack.cli", *words],
            cwd=self.folder,
            env=self.daemon.environment | path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr[-1000:])
        return done.stdout


@pytest.fixture
def terminal(daemon: DaemonProcess, tmp_path: Path) -> Terminal:
    here = tmp_path / "here"
    here.mkdir()
    return Terminal(daemon, here)


def test_the_table_of_the_full_guide_is_what_fit_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path))
    text = (_GUIDES / "full-8b-on-24gb.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (off|1\.0) \| (\w+) \| (.*) \| (.*) \| (.*) \|$", text, re.M)
    assert len(rows) == 4
    for ram, clip, moments, *figures in rows:
        machine = ("--vram", "24", "--ram", ram, "--nvme", "500")
        clipping = ("--clip", "0" if clip == "off" else clip)
        assert run(["fit", "llama-8b", *machine, *clipping, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["fits"] and f"{moments} moments" in said["plan"]["reason"]
        took = [said["memory"][place]["bytes"] / _GB for place in ("vram", "ram", "disk")]
        assert [f"{value:.1f}" for value in took] == figures
        # What becomes hidden from "about 10,000 tokens a step on", whatever is clipped.
        assert said["critical_tokens"] < 10_000


def test_the_full_guide_repeats_what_was_measured() -> None:
    measured = (_GUIDES.parent / "benchmarks.md").read_text("utf-8")
    text = (_GUIDES / "full-8b-on-24gb.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (?:8|64) . 1024.*? \| (.*) s \| (.*) \| (.*) GB \| (.*) \|$", text, re.M
    )
    assert len(rows) == 3
    for step, tokens, vram, ram in rows:
        pattern = rf"llama-8b.*{step} s \| {tokens} .*{vram} GB \| {ram} \|"
        same = rf"the same, 16 micro.*{step} s \| {tokens} .*{vram} GB \| {ram} \|"
        assert re.search(pattern, measured) or re.search(same, measured), step


@pytest.mark.full
@pytest.mark.thorough
def test_every_command_of_the_full_guide_works(terminal: Terminal) -> None:
    guide = "full-8b-on-24gb.md"
    here = terminal.folder
    save_exportable(here / "Llama-3.1-8B-Instruct", "llama3")
    write_jsonl(here / "support.jsonl", chat_rows(160))
    (toml,) = _blocks(guide, "toml")
    (here / "full.toml").write_text(toml)
    for _, *words in _commands(guide):
        if words[0] == "export":
            job = terminal.daemon.wait_for(1, "completed", "failed")
            assert job["state"] == "completed", job
        terminal.run(*words)
    assert list((here / "runs" / "every-weight").glob("**/result/model/model.safetensors"))
    made = {path.name for path in (here / "support-gguf").iterdir()}
    assert made == {"support-every-weight-q8_0.gguf"}


@pytest.mark.full
@pytest.mark.thorough
def test_every_command_of_the_sweep_guide_works(terminal: Terminal) -> None:
    guide = "sweep-overnight.md"
    here, daemon = terminal.folder, terminal.daemon
    save_exportable(here / "SmolLM2-135M-Instruct", "llama")
    rows = [f"What is number {i}?,Number {i} is {'even' if i % 2 else 'odd'}." for i in range(120)]
    (here / "support.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    (toml,) = _blocks(guide, "toml")
    (here / "sweep.toml").write_text(toml)
    best = 0
    for _, *words in _commands(guide):
        if words[0] == "digest":
            members = daemon.api("GET", "/sweeps/1")["members"]
            assert len(members) == 6
            # The night comes.
            terminal.run("schedule", "clear")
            ends = [daemon.wait_for(m["job_id"], "completed", "failed") for m in members]
            assert {job["state"] for job in ends} == {"completed"}
            assert len({job["step"] for job in ends}) > 1, "some ended early"
        if words[:2] == ["sweep", "best"]:
            best = json.loads(terminal.run(*words, "--json"))["job_id"]
        if words[:2] in (["jobs", "show"], ["export", "4"]):
            place = 2 if words[0] == "jobs" else 1
            words[place] = str(best)
        terminal.run(*words)
    assert "Modelfile" in {path.name for path in (here / "support-bot").iterdir()}
