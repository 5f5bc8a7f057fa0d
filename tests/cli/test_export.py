"""`slidepack export`: jobs and result folders, what it prints, and what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.exports import random_adapter, save_exportable
from support.queueing import Farm

from slidepack.cli.export_process import run_export
from slidepack.cli.main import run
from slidepack.engine.contract.errors import CATALOGUE, SlidepackError
from slidepack.engine.export.contract import ExportRequest, ExportResult

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result folder whose adapter names its base by path."""
    root = tmp_path_factory.mktemp("exports")
    base = save_exportable(root / "base", "llama")
    folder = random_adapter(base, root / "My result")
    config = folder / "adapter" / "adapter_config.json"
    values = json.loads(config.read_text()) | {"base_model_name_or_path": str(base)}
    config.write_text(json.dumps(values))
    return folder


def test_a_job_is_exported_and_checked(command: Command, tmp_path: Path) -> None:
    status, value = command("export", "1", "--to", str(tmp_path / "out"), "--format", "merged")
    assert status == 0
    done = msgspec.convert(value, ExportResult)
    assert done.path == str(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").stat().st_size == (
        done.files["model.safetensors"]
    )
    found = done.verification
    assert found is not None and found.holds and found.loader == "transformers"


@pytest.mark.full
def test_a_jobs_run_folder_needs_no_daemon(
    command: Command,
    served_farm: Farm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = served_farm.daemon.job(1)["result"]
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path / "nobody"))
    for number, path in enumerate((folder, str(Path(folder).parent))):
        target = tmp_path / f"out-{number}"
        status, value = command("export", path, "--to", str(target), "--format", "peft")
        assert status == 0 and value["verification"]["loader"] == "peft"
        assert (target / "adapter_model.safetensors").read_bytes() == (
            Path(folder) / "adapter" / "adapter_model.safetensors"
        ).read_bytes()


def test_a_job_whose_base_has_changed_is_refused(
    command: Command, result: Path, tmp_path: Path
) -> None:
    other = str(result.parent / "base")
    arguments = ("--to", str(tmp_path / "out"), "--format", "merged", "--base", other)
    status, value = command("export", "1", *arguments)
    assert value["error"]["code"] == "MODEL-CHANGED"
    assert status == CATALOGUE["MODEL-CHANGED"].exit_code
    assert not (tmp_path / "out").exists()


def test_an_unknown_job_and_a_running_daemon(command: Command, tmp_path: Path) -> None:
    status, value = command("export", "999", "--to", str(tmp_path / "out"), "--format", "peft")
    assert (status, value["error"]["code"]) == (
        CATALOGUE["RUN-NOT-FOUND"].exit_code,
        "RUN-NOT-FOUND",
    )


def test_a_job_without_a_result_is_refused(
    command: Command, served_farm: Farm, tmp_path: Path
) -> None:
    job = served_farm.queue(steps=6, not_before=4e9)
    served_farm.act(job, "cancel")
    status, value = command("export", str(job), "--to", str(tmp_path / "out"), "--format", "peft")
    assert value["error"]["code"] == "RUN-NO-RESULT" and "cancelled" in value["error"]["why"]
    assert status == CATALOGUE["RUN-NO-RESULT"].exit_code


@pytest.mark.full
def test_people_are_told_the_figures(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path / "nobody"))
    target = tmp_path / "out"
    arguments = ["--to", str(target), "--format", "ollama", "--quant", "q8_0", "--name", "../Bot"]
    assert run(["export", str(result), *arguments]) == 0
    out = capsys.readouterr().out
    assert f"The export is in {target}:" in out
    assert "bot-q8_0.gguf" in out and "Modelfile" in out
    assert "Read back by gguf and transformers" in out and "allowed" in out
    assert "no `ollama` on the PATH" in out and "ollama create bot" in out
    assert sorted(path.name for path in target.iterdir()) == ["Modelfile", "bot-q8_0.gguf"]


def test_without_the_check_it_says_so(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--to", str(tmp_path / "out"), "--format", "gguf", "--no-verify"]
    assert run(["export", str(result), *arguments]) == 0
    out = capsys.readouterr().out
    assert "It was not checked." in out and "my-result-f16.gguf" in out


@pytest.mark.full
def test_a_target_that_is_full_is_left_alone(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    status = run(["export", str(result), "--to", str(tmp_path), "--format", "peft", "--json"])
    assert status == CATALOGUE["DISK-UNWRITABLE"].exit_code
    assert json.loads(capsys.readouterr().out)["error"]["why"] == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "merged", "--adapter-only"],
        ["--format", "onnx"],
        ["--format", "gguf", "--quant", "q4_0"],
        [],
    ],
)
def test_wrong_usage_is_the_command_lines_own(
    result: Path, tmp_path: Path, arguments: list[str]
) -> None:
    assert run(["export", str(result), "--to", str(tmp_path / "out"), *arguments]) == 2


@pytest.mark.full
def test_a_result_that_does_not_say_its_base(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(result, copy)
    path = copy / "adapter" / "adapter_config.json"
    values = json.loads(path.read_text()) | {"base_model_name_or_path": "somebody/model"}
    path.write_text(json.dumps(values))
    arguments = ["export", str(copy), "--to", str(tmp_path / "out"), "--format", "peft"]
    assert run([*arguments, "--json"]) == CATALOGUE["MODEL-NOT-FOUND"].exit_code
    assert "--base" in json.loads(capsys.readouterr().out)["error"]["fix"]
    path.write_text("{")
    assert run([*arguments, "--json"]) == CATALOGUE["RUN-FOLDER-BROKEN"].exit_code
    assert not (tmp_path / "out").exists()


def test_ctrl_c_leaves_nothing(result: Path, tmp_path: Path) -> None:
    """The signal reaches the command alone, as `kill` sends it; a terminal tells both."""
    place = tmp_path / "place"
    command = [sys.executable, "-m", "slidepack.cli", "export", str(result)]
    with subprocess.Popen(
        [*command, "--to", str(place / "out"), "--format", "gguf"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        while process.poll() is None and not (place.is_dir() and any(place.iterdir())):
            os.sched_yield()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == CATALOGUE["RUN-INTERRUPTED"].exit_code
    assert said.decode().startswith("RUN-INTERRUPTED: ")
    assert list(place.iterdir()) == []


def test_an_exporter_that_dies_is_reported(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = tmp_path / "python"
    shell.write_text("#!/bin/sh\necho half a li; echo something broke >&2; kill -9 $$\n")
    shell.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(shell))
    request = ExportRequest(result=str(result), target=str(tmp_path / "out"), format="peft")
    with pytest.raises(SlidepackError) as caught:
        run_export(request)
    report = caught.value.report
    assert (report.code, report.why) == ("RUN-CRASHED", "signal 9: something broke")
