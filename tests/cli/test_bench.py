import json
import subprocess
import sys
from collections.abc import Callable
from subprocess import Popen
from typing import Any

import msgspec
import pytest
from rich.console import Console

from slidepack.cli import bench, bench_packed, output
from slidepack.engine.contract.errors import SlidepackError


def _row(**changed: Any) -> dict[str, Any]:
    return {
        "operation": "rms_norm forward",
        "milliseconds": 0.0381,
        "amount": 134217728,
        "unit": "bytes",
        "limit": "copy 3.61 TB/s",
        "share": 0.97,
        "eager_ratio": 5.254,
        "torch_fused_ratio": 1.1,
        "compile_ratio": 1.02,
        "liger_ratio": None,
        "extra_bytes": 0,
        "eager_extra_bytes": 402653184,
        "failures": {},
    } | changed


def _lora_row(**changed: Any) -> dict[str, Any]:
    return {
        "tokens": 4096,
        "in": 4096,
        "out": 14336,
        "adapters": 32,
        "base_ms": 1.4,
        "ours_ms": 1.54,
        "overhead": 0.1,
        "loop_ms": 4.2,
        "loop_overhead": 2.0,
        "extra_bytes": 12_000_000,
    } | changed


def _answer(
    monkeypatch: pytest.MonkeyPatch, status: int, stdout: str, stderr: str = ""
) -> list[list[str]]:
    """Let the benchmark end this way; return the commands that were run."""
    commands: list[list[str]] = []

    def popen(command: list[str], **kwargs: Any) -> "subprocess.Popen[str]":
        commands.append(command)
        ended = f"import sys; sys.stdout.write({stdout!r}); sys.stderr.write({stderr!r}); "
        return Popen([sys.executable, "-c", ended + f"sys.exit({status})"], **kwargs)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(output, "Console", lambda **kwargs: Console(width=200, **kwargs))
    return commands


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    head = _row(
        operation="linear_cross_entropy",
        amount=25_800_000_000_000,
        unit="flops",
        eager_ratio=None,
        eager_extra_bytes=None,
        failures={"eager": "OutOfMemoryError: too large"},
    )
    answer = {
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11.0", "triton": "3.6.0", "liger": None},
        "operations": [_row(), head],
        "lora": [_lora_row(), _lora_row(tokens=16384, loop_ms=None, loop_overhead=None)],
    }
    _answer(monkeypatch, 0, json.dumps(answer) + "\n")
    return answer


def test_kernels_prints_a_row_an_operation(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.kernels()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["operation", "ms", "work"]
    assert lines[1].split() == [
        *("rms_norm", "forward", "0.038", "134", "MB", "copy", "3.61", "TB/s", "97%"),
        *("5.25", "1.10", "1.02", "0", "MB", "403", "MB"),
    ]
    assert "25.8 TFLOP" in lines[2]


def test_kernels_prints_the_lora_shapes_as_a_table_of_their_own(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.kernels()
    lines = capsys.readouterr().out.splitlines()
    (head,) = [i for i, line in enumerate(lines) if line.startswith("LoRA linear")]
    assert lines[head + 1].split() == [
        *("4096", "to", "14336", "4096", "32", "1.400", "1.540", "10.0%"),
        *("4.200", "200%", "12", "MB"),
    ]
    assert lines[head + 2].split()[3:] == ["16384", "32", "1.400", "1.540", "10.0%", "12", "MB"]


def test_kernels_says_what_is_missing_and_what_was_measured(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.kernels()
    text = capsys.readouterr().out
    assert "linear_cross_entropy: eager failed: OutOfMemoryError: too large" in text
    assert "Liger is not installed: `pip install liger-kernel` adds its column." in text
    assert text.endswith("NVIDIA H200, torch 2.11.0, triton 3.6.0\n")


def test_kernels_json_is_the_whole_answer(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.kernels(json_output=True)
    assert json.loads(capsys.readouterr().out) == result


def _slid(**changed: Any) -> dict[str, Any]:
    timing = {
        "step_seconds": [0.8, 0.7, 0.75],
        "median_step_seconds": 0.75,
        "mean_step_seconds": 0.8,
        "tokens_per_second": 10922.6,
        "tokens_per_second_with_tail": 10240.0,
    }
    return {
        "shape": "llama-3b",
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11.0", "triton": "3.6.0"},
        "batch": 8,
        "seq": 1024,
        "micro_batches": 1,
        "moments": "fp32",
        "clip": 0.0,
        "alias_note": None,
        "nvme": None,
        **timing,
        "share_of_ceiling": 0.5123,
        "split": {"compute": 0.38, "h2d": 0.2, "cpu_optimizer": 0.5, "idle": 0.37},
        "ceiling": {**timing, "tokens_per_second": 21320.4, "resident_layers": 28, "rows": "host"},
        "optimizer_rates": {
            "cpu": {"beside_the_rest": 3.5, "alone": 4.125},
            "gpu": {"beside_the_rest": None, "alone": 3.9},
        },
        "link": {"h2d": 55.0, "d2h": 54.0, "both_each_way": 47.5},
        "memory": {
            "vram_peak_bytes": 7_350_000_000,
            "vram_reserved_bytes": 7_900_000_000,
            "ram_peak_bytes": 41_800_000_000,
            "ram_bytes_per_parameter": 13.01,
            "ram_predicted_bytes": 41_900_000_000,
        },
        "plan": {
            "cpu_share": 0.5714,
            "engines": "14 units on the CPU; 15 on the card",
            "predicted_step_seconds": 0.77,
            "reasons": ["rows stay on the card", "5 slots"],
        },
        "loss": 11.76,
        "grad_norm": 1.25,
        "applied": True,
    } | changed


def test_slide_prints_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _answer(monkeypatch, 0, json.dumps(_slid()) + "\n")
    bench.slide("llama-3b", 8, 1024, vram_cap=24.0, optimizer="auto")
    text = capsys.readouterr().out
    lines = dict(line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    said = {name: value.strip() for name, value in lines.items()}
    assert said["tokens a second"] == "10,923"
    assert said["ceiling"] == "21,320 (28 resident layers, rows on the host)"
    assert said["share of the ceiling"] == "51.2%"
    assert said["each step"] == "0.800 0.700 0.750"
    assert said["cpu_optimizer"] == "0.500 s"
    assert said["gpu optimizer"] == "none beside the rest, 3.90 Gparam/s alone"
    assert said["link"] == "55.0 GB/s in, 54.0 out, 47.5 each way at once"
    assert said["VRAM peak"] == "7.35 GB, 7.90 GB reserved"
    assert said["RAM peak"] == "41.8 GB, 13.0 bytes a parameter"
    assert said["on"] == "NVIDIA H200, torch 2.11.0, triton 3.6.0"
    assert "Plan: rows stay on the card.\nPlan: 5 slots.\n" in text
    assert "Aliased" not in text
    assert commands[0][commands[0].index("slide") :] == [
        *("slide", "--shape=llama-3b", "--batch=8", "--seq=1024", "--micro-tokens=8192"),
        *(
            "--steps=6",
            "--warm-up=2",
            "--vram-cap=24.0",
            "--optimizer=auto",
            "--moments=fp32",
            "--clip=0.0",
        ),
    ]


def test_slide_says_what_is_aliased_or_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = _slid()["memory"] | {"ram_peak_bytes": None, "ram_bytes_per_parameter": None}
    answer = _slid(alias_note="88 layers share 4", link=None, memory=memory, applied=False)
    _answer(monkeypatch, 0, json.dumps(answer) + "\n")
    bench.slide("mistral-123b", 8, 1024, alias_layers=4)
    text = capsys.readouterr().out
    assert "Aliased: 88 layers share 4." in text
    assert "gradient norm 1.25, not applied" in text
    assert "\nRAM peak" not in text
    assert "GB/s" not in text


def test_slide_json_is_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _answer(monkeypatch, 0, json.dumps(_slid()) + "\n")
    bench.slide("tiny", 2, 8, rows="host", threads=3, device="cpu", json_output=True)
    assert json.loads(capsys.readouterr().out) == _slid()
    assert {"--rows=host", "--threads=3", "--device=cpu"} <= set(commands[0])


def _pack(**changed: Any) -> dict[str, Any]:
    return {
        "lanes": 8,
        "tokens": 16384,
        "pass_tokens": [8192, 8192],
        "median_step_seconds": 0.4321,
        "tokens_per_second": 37917.1,
        "tokens_per_second_per_lane": 4739.6,
        "gain_over_one_by_one": 2.516,
        "gain_over_peft": 4.04,
        "share_of_ceiling": 0.8767,
        "device_peak_bytes": 21_340_000_000,
        "host_peak_bytes": 30_120_000_000,
        "slide": None,
        "resident": None,
        "resident_tokens_per_second": None,
        "share_of_resident": None,
        "predicted": {
            "device_bytes": 22_500_000_000,
            "driver_context_bytes": 943_718_400,
            "host_bytes": 1_610_612_736,
            "step_seconds": 0.5,
            "why": None,
        },
        "error": {"device_bytes": 1.0544, "host_bytes": 0.0535, "step_seconds": 1.1571},
        "applied": True,
    } | changed


_NO_PREDICTION = {
    "predicted": {
        "device_bytes": None,
        "driver_context_bytes": None,
        "host_bytes": None,
        "step_seconds": None,
        "why": "no card",
    },
    "error": {"device_bytes": None, "host_bytes": None, "step_seconds": None},
}


def _packed(**changed: Any) -> dict[str, Any]:
    solo = _pack(lanes=1, pass_tokens=[2048], gain_over_one_by_one=1.0)
    return {
        "shape": "llama-8b",
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11.0", "triton": "3.6.0"},
        "precision": "bfloat16",
        "attention": "flash",
        "batch": 4,
        "seq": 512,
        "rank": 16,
        "activations": "keep",
        "base": "bf16",
        "base_device_bytes": 16_060_000_000,
        "base_host_bytes": 0,
        "slides": False,
        "rates": {"source": "H200: measured"},
        "packs": [solo, _pack()],
        "one_by_one": {
            "median_step_seconds": 0.1359,
            "tokens_per_second": 15070.2,
            "device_peak_bytes": 18_700_000_000,
            "note": "lanes one after the other have this rate",
        },
        "peft": {
            "median_step_seconds": 0.2182,
            "tokens_per_second": 9385.7,
            "device_peak_bytes": 36_500_000_000,
            "adapter_precision": "bfloat16",
            "versions": {"torch": "2.11.0", "peft": "0.21.2"},
            "why": None,
        },
        "ceiling": {
            "passes": [
                {
                    "tokens": 8192,
                    "median_pass_seconds": 0.1894,
                    "tokens_per_second": 43250.0,
                    "why": None,
                }
            ]
        },
        "crossover": {
            "lanes": 4,
            "text": "packing stops paying at 4 lanes: 8 lanes give 1.0% more",
        },
        "host_peak_bytes": 4_200_000_000,
    } | changed


def test_packed_prints_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _answer(monkeypatch, 0, json.dumps(_packed()) + "\n")
    bench_packed.packed("llama-8b", 4, 512, 16, lanes="1,8", vram_cap=80.0, no_solo=True)
    text = capsys.readouterr().out
    lines = dict(line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    said = {name: value.strip() for name, value in lines.items()}
    assert said["run"] == (
        "llama-8b, 4 x 512 tokens a lane, rank 16, bfloat16, activations kept, attention by flash"
    )
    assert said["one lane"] == "15,070 tokens/s, 0.136 s a step, 18.70 GB of VRAM"
    assert said["PEFT, eager"] == (
        "9,386 tokens/s, 0.218 s a step, 36.50 GB of VRAM, adapter in bfloat16"
    )
    assert said["ceiling"] == "43,250 tokens/s, 8,192 tokens in 0.189 s"
    assert said["RAM peak"] == "4.20 GB"
    assert said["on"] == "NVIDIA H200, torch 2.11.0, triton 3.6.0, peft 0.21.2"
    assert said["base"] == "bf16, 16.06 GB where the passes run"
    packs, predictions = (line.split() for line in text.splitlines() if line.startswith("8 "))
    assert packs == [
        *("8", "2", "x", "8,192", "0.432", "37,917", "4,740", "2.52", "4.04", "87.7%", "21.34"),
    ]
    assert predictions == ["8", "0.500", "(1.16)", "22.50", "(1.05)", "1.61", "(0.05)"]
    assert "Predicted with: H200: measured; in brackets by measured.\n" in text
    assert "resident" not in text
    assert "Alone: lanes one after the other have this rate.\n" in text
    assert text.endswith("\nPacking stops paying at 4 lanes: 8 lanes give 1.0% more.\n")
    assert "no number" not in text
    assert commands[0][commands[0].index("packed") :] == [
        *("packed", "--shape=llama-8b", "--lanes=1,8", "--batch=4", "--seq=512", "--rank=16"),
        *("--steps=10", "--warm-up=3", "--base=bf16", "--vram-cap=80.0", "--no-solo"),
    ]


def test_packed_prints_what_slid(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slid = _pack(
        slide={"slots": 3, "rows": "host"},
        resident={"why": None},
        resident_tokens_per_second=40123.4,
        share_of_resident=0.945,
        **_NO_PREDICTION,
    )
    answer = _packed(packs=[slid], slides=True, base_device_bytes=2_100_000_000)
    answer |= {"base_host_bytes": 13_960_000_000, "activations": "recompute"}
    commands = _answer(monkeypatch, 0, json.dumps(answer) + "\n")
    bench_packed.packed("llama-8b", 4, 512, 16, slide=True, weight_slots=3, rows="host")
    text = capsys.readouterr().out
    assert "bf16, 2.10 GB where the passes run, 13.96 GB slide" in text
    _, walked = (line.split() for line in text.splitlines() if line.startswith("8 "))
    assert walked == ["8", "3", "host", "40,123", "94.5%", "30.12"]
    assert "Nothing is predicted: no card.\n" in text
    assert "Predicted with" not in text
    assert {"--slide", "--weight-slots=3", "--rows=host"} <= set(commands[0])
    assert not [one for one in commands[0] if one.startswith("--activations")]


def test_packed_says_that_no_resident_base_fits_and_leaves_its_columns_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slid = _pack(slide={"slots": 2, "rows": "host"}, resident={"why": "out of memory"})
    _answer(monkeypatch, 0, json.dumps(_packed(packs=[slid], slides=True)) + "\n")
    bench_packed.packed("llama-8b", 4, 512, 16, slide=True)
    text = capsys.readouterr().out
    assert "No resident base was measured: out of memory.\n" in text
    assert "resident tokens/s" not in text
    assert "share of it" not in text


def test_packed_asks_for_a_4_bit_base_and_no_ceiling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = _packed(base="nf4", base_device_bytes=5_800_000_000, ceiling={"passes": []})
    commands = _answer(monkeypatch, 0, json.dumps(answer) + "\n")
    bench_packed.packed("llama-8b", 4, 512, 16, base="nf4", no_ceiling=True)
    text = capsys.readouterr().out
    assert "nf4, 5.80 GB where the passes run" in text
    assert "slide" not in text
    assert "Ceiling and PEFT are those of a base in bf16.\n" in text
    assert {"--base=nf4", "--no-ceiling"} <= set(commands[0])


def test_packed_says_what_was_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = {"gain_over_one_by_one": None, "gain_over_peft": None, "share_of_ceiling": None}
    answer = _packed(
        packs=[_pack(**bare, applied=False)],
        one_by_one=None,
        peft={"tokens_per_second": None, "why": "No module named 'peft'"},
        ceiling={"passes": [{"tokens": 8192, "tokens_per_second": None, "why": "too large"}]},
        activations="recompute",
        host_peak_bytes=None,
    )
    _answer(monkeypatch, 0, json.dumps(answer) + "\n")
    bench_packed.packed("llama-8b", 4, 512, 16)
    text = capsys.readouterr().out
    assert "PEFT was not measured: No module named 'peft'.\n" in text
    assert "No ceiling for passes of 8,192 tokens: too large.\n" in text
    assert "A gradient was no number" in text
    assert "activations recomputed" in text
    assert not {"one lane", "PEFT, eager", "ceiling", "RAM peak"} & {
        line.split("  ")[0] for line in text.splitlines()
    }


def test_packed_json_is_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _answer(monkeypatch, 0, json.dumps(_packed()) + "\n")
    bench_packed.packed(
        "tiny", 2, 8, 4, max_tokens=16, no_peft=True, device="cpu", json_output=True
    )
    assert json.loads(capsys.readouterr().out) == _packed()
    assert {"--max-tokens=16", "--no-peft", "--device=cpu"} <= set(commands[0])


_TUNED = {
    "device": "NVIDIA H200",
    "device_class": "sm_90",
    "versions": {"torch": "2.11.0", "triton": "3.6.0", "liger": None},
    "operations": {"nf4": {"blocks": 32, "warps": 1, "measured": "41.9 us"}},
    "toml": '[sm_90.nf4]\nblocks = 32\nwarps = 1\nmeasured = "41.9 us"\n',
    "written": None,
}


def test_tune_prints_the_rows_and_writes_nothing_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _answer(monkeypatch, 0, json.dumps(_TUNED) + "\n")
    bench.tune()
    text = capsys.readouterr().out
    assert text.startswith(str(_TUNED["toml"]))
    assert "Nothing is written" in text
    assert [command[-2:] for command in commands] == [["slidepack.engine.bench", "tune"]]


def test_tune_writes_when_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _answer(monkeypatch, 0, json.dumps(_TUNED | {"written": "/a/table.toml"}) + "\n")
    bench.tune(write=True)
    assert "Written to /a/table.toml." in capsys.readouterr().out
    assert commands[0][-2:] == ["tune", "--write"]


def test_tune_json_is_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, 0, json.dumps(_TUNED) + "\n")
    bench.tune(json_output=True)
    assert json.loads(capsys.readouterr().out) == _TUNED


def test_a_coded_error_of_the_benchmark_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SlidepackError("DISK-UNWRITABLE", "The table cannot be written.", why="/a: read-only")
    said = msgspec.json.encode({"error": error.report}).decode() + "\n"
    _answer(monkeypatch, error.exit_code, said, str(error))
    with pytest.raises(SlidepackError) as raised:
        bench.tune(write=True)
    assert raised.value.report == error.report


@pytest.mark.parametrize("stdout", ["", "half a line", '{"error": 3}\n'])
@pytest.mark.parametrize("command", [bench.kernels, bench.tune])
def test_a_benchmark_that_did_not_run_has_a_code(
    monkeypatch: pytest.MonkeyPatch, command: Callable[[], None], stdout: str
) -> None:
    _answer(monkeypatch, 1, stdout, "Traceback\nRuntimeError: no GPU\n")
    with pytest.raises(SlidepackError, match=r"RUN-CRASHED.*no GPU"):
        command()
