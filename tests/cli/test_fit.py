"""`slidepack fit`: with no daemon, for this machine or another; what does not fit is an answer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.queueing import Farm
from support.tiny import save_tiny_model

from slidepack.cli import fit_machine
from slidepack.cli.main import run
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.nvidia import NvidiaInfo
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport, probe_hardware

BIG = ("--vram", "24", "--ram", "128", "--nvme", "2000")
Fit = Callable[..., Any]


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fit:
    """Run `fit --json` where no daemon runs, and return the answer."""
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> Any:
        capsys.readouterr()
        assert run(["fit", *arguments, "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    return call


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gpu:
    """Put an RTX 4090 into this machine."""
    gpu = Gpu(
        vendor="nvidia",
        index=0,
        uuid="GPU-1",
        name="NVIDIA GeForce RTX 4090",
        pci_address="0000:01:00.0",
        architecture="sm_89",
        driver_version="580",
        vram_total_bytes=24 << 30,
        vram_free_bytes=23 << 30,
        pcie_generation=1,
        pcie_generation_max=4,
        pcie_width=8,
    )
    nvidia = NvidiaInfo(driver_version="580", cuda_version="13.0", gpus=(gpu,), cards_on_bus=())
    _change(monkeypatch, tmp_path, nvidia=nvidia)
    return gpu


def _change(monkeypatch: pytest.MonkeyPatch, folder: Path, **items: Any) -> None:
    report = msgspec.structs.replace(probe_hardware(folder, software=False), **items)

    def probed(*_: Any, **__: Any) -> HardwareReport:
        return report

    monkeypatch.setattr(fit_machine, "probe_hardware", probed)


def test_what_fits(fit: Fit) -> None:
    answer = fit("llama-3b", *BIG)
    assert answer["fits"] is True
    assert (answer["problem"], answer["change"]) == (None, [])
    assert (answer["params"], answer["batch"], answer["seq"]) == (3212749824, 8, 1024)
    plan = answer["plan"]
    assert plan["full"]["moments"] == "fp32"
    assert answer["reason"] == plan["reason"]
    for name, field in (("vram", "device"), ("ram", "host"), ("disk", "disk")):
        part = answer["memory"][name]
        assert part["bytes"] == sum(part["parts"].values()) == plan[f"predicted_{field}_bytes"]
    assert answer["step_seconds"] > 0
    assert answer["tokens_per_second"] == pytest.approx(8192 / answer["step_seconds"])
    assert answer["critical_tokens"] > 0
    assert answer["rates"]["estimated"] is True
    assert list(answer["ram_by_moments"]) == ["fp32", "bf16", "int8"]


def test_what_does_not_fit_is_an_answer(fit: Fit) -> None:
    answer = fit("llama-8b", "--vram", "24", "--ram", "64", "--nvme", "2000", "--ram-only")
    assert answer["fits"] is False
    assert answer["problem"]["code"] == "RAM-TOO-SMALL"
    assert (answer["plan"], answer["memory"], answer["step_seconds"]) == (None, None, None)
    assert answer["change"][0] == "Turn clipping off (--clip 0)."
    assert answer["ram_needed_bytes"] == answer["ram_by_moments"]["int8"]
    assert fit(
        "llama-8b", "--vram", "24", "--ram", "64", "--nvme", "2000", "--clip", "0", "--ram-only"
    )["fits"]
    enough = str(answer["ram_needed_bytes"] / 1e9)
    assert fit("llama-8b", "--vram", "24", "--ram", enough, "--nvme", "2000", "--ram-only")["fits"]


def test_state_that_the_ram_has_no_room_for_goes_to_drives(fit: Fit) -> None:
    small = ("llama-8b", "--vram", "24", "--ram", "64", "--nvme", "2000", "--nvme-tbw", "600")
    answer = fit(*small)
    assert answer["fits"] is True
    tier = answer["plan"]["full"]["nvme"]
    assert 0 < len(tier["moments"]) <= 34
    assert "rated for 600 TB" in answer["drives"]
    assert "steps" in answer["drives"]
    slower = fit(*small, "--nvme-read", "0.1", "--nvme-write", "0.1")
    assert slower["plan"]["full"]["nvme"]["moments"] == tier["moments"]
    assert slower["step_seconds"] > answer["step_seconds"]
    assert slower["step"]["bound_by"] == "drives"
    rates = ("--nvme-read", "0.1", "--nvme-write", "0.1", "--nvme-both", "0.2")
    duplex = fit(*small, *rates)
    assert duplex["step"]["bound_by"] in ("read", "write")
    assert duplex["step_seconds"] < slower["step_seconds"]


def test_a_small_disk_is_said(fit: Fit) -> None:
    answer = fit("llama-3b", "--vram", "24", "--ram", "128", "--nvme", "100")
    assert answer["fits"] is False
    assert answer["problem"]["code"] == "DISK-FULL"
    assert answer["change"] == [answer["problem"]["fix"]]
    assert answer["plan"] is not None


def test_adapters_on_a_base_in_16_and_in_4_bits(fit: Fit) -> None:
    lora = fit("llama-1b", "--method", "lora", *BIG)
    assert lora["fits"] is True
    assert lora["plan"]["full"] is None
    assert lora["memory"]["vram"]["parts"]["frozen weights"] == 2 * lora["params"]
    assert lora["ram_by_moments"] == {}
    qlora = fit("llama-1b", "--method", "qlora", *BIG)
    assert qlora["fits"] is True
    assert qlora["plan"]["base_format"] == "nf4"
    narrow, wide = (one["memory"]["vram"]["parts"]["frozen weights"] for one in (qlora, lora))
    # The embedding and one layer stay in 16 bits.
    assert 0.25 * wide < narrow < 0.6 * wide


def test_a_folder(fit: Fit, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    answer = fit(str(folder), "--vram", "0", "--ram", "8", "--nvme", "10", "--batch", "2")
    assert answer["fits"] is True
    assert answer["machine"]["device"] == answer["plan"]["device"] == "cpu"
    assert answer["memory"]["vram"] == {"bytes": 0, "parts": {}}
    # The model takes no longer rows.
    assert answer["seq"] < 1024


def test_this_machine_is_looked_at(fit: Fit, card: Gpu) -> None:
    answer = fit("smollm2-135m", "--nvme", "100")
    machine = answer["machine"]
    assert (machine["device"], machine["card"]) == ("cuda:0", card.name)
    assert machine["vram_bytes"] == 23 << 30
    assert machine["ram_bytes"] > 0
    # The idle link has 4.0 when it is awake.
    rates = fit("smollm2-135m", "--ram", "64", "--nvme", "100")["rates"]
    assert rates["link_bytes"] == pytest.approx(12.5e9, rel=0.01)
    assert rates["compute_flops"] == 150e12
    assert fit("smollm2-135m", "--vram", "0", "--ram", "64")["machine"]["card"] == ""


def test_a_setting_leaves_the_card_alone(
    fit: Fit, card: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEPACK_DEVICE", "cpu")
    assert fit("smollm2-135m", "--ram", "64")["machine"]["device"] == "cpu"
    assert fit("smollm2-135m", "--ram", "64", "--vram", "8")["machine"]["vram_bytes"] == 8 * 10**9


def test_what_cannot_be_read_must_be_given(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ProbeProblem(item="memory", what="No memory.", why="Not there.", fix="Mount it.")
    _change(monkeypatch, tmp_path, memory=broken, cpu=broken, drives=broken)
    assert run(["fit", "smollm2-135m", "--json"]) == 2
    answer = fit("smollm2-135m", "--ram", "64")
    assert answer["machine"]["disk_bytes"] is None
    assert answer["fits"] is True


@pytest.mark.full
def test_the_model_of_a_running_daemon(command: Any, served_farm: Farm) -> None:
    status, answer = command("fit", served_farm.model, "--ram", "8", "--vram", "0", "--nvme", "10")
    assert (status, answer["fits"]) == (0, True)
    status, answer = command("fit", "no-such-model", *BIG)
    assert (status, answer["error"]["code"]) == (20, "MODEL-NOT-FOUND")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("nowhere",), 20),
        (("llama-3b", "--seq", "4"), 2),
        (("llama-3b", "--batch", "0"), 2),
        (("llama-3b", "--clip", "inf"), 2),
        (("llama-3b", "--ram", "inf"), 2),
        (("llama-3b", "--method", "other"), 2),
    ],
)
def test_wrong_arguments_are_errors(
    arguments: tuple[str, ...], status: int, fit: Fit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", *arguments]) == status
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_is_no_folder(fit: Fit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert run(["fit", str(file)]) == 21
    assert "models add" in capsys.readouterr().err


def test_people_get_sentences_and_a_table(
    fit: Fit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["fit", "llama-3b", *BIG]) == 0
    text = capsys.readouterr().out
    assert (
        "llama-3b (3.21 billion parameters), full fine-tuning, 8 x 1024 tokens a step: fits."
        in (text)
    )
    assert "A window of 5 of 28 layers" in text
    assert "weights and optimizer state" in text
    assert "tokens/s" in text
    assert "estimate" in text
    assert run(["fit", "mistral-123b", *BIG]) == 0
    text = capsys.readouterr().out
    assert "does not fit." in text
    assert "Use a machine with" in text
