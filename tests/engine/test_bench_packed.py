"""`slidepack bench packed` on a CPU: the whole path with a tiny shape, and its parts."""

import json
import math
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import slidepack
from slidepack.engine import bench
from slidepack.engine.bench_packed import run
from slidepack.engine.bench_packed.ceiling import BasePass
from slidepack.engine.bench_packed.crossover import find_crossover
from slidepack.engine.bench_packed.options import PackedOptions, lane_counts
from slidepack.engine.bench_packed.packs import random_rows
from slidepack.engine.bench_packed.peft_baseline import base_model
from slidepack.engine.bench_packed.peft_process import measure_peft
from slidepack.engine.bench_packed.run import bench_packed
from slidepack.engine.bench_packed.steps import time_steps
from slidepack.engine.bench_slide.shapes import SHAPES, TINY
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.lora.pack import LaneStep, Pack, StepOutcome
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import random_decoder
from slidepack.engine.shape import shape_from_config

CPU = torch.device("cpu")
CHANCE = math.log(TINY.vocab)
"""Loss of a model that knows nothing."""


def _options(**changed: Any) -> PackedOptions:
    values: dict[str, Any] = {
        "shape": "tiny",
        "lanes": (1, 2),
        "batch": 2,
        "seq": 12,
        "rank": 3,
        "steps": 2,
        "warm_up": 1,
        "peft": False,
        "device": "cpu",
    }
    return PackedOptions(**(values | changed))


def _check(result: dict[str, Any], options: PackedOptions) -> None:
    """Assert what holds of every measurement."""
    solo, peft = result["one_by_one"], result["peft"]
    passes = {one["tokens"]: one for one in result["ceiling"]["passes"]}
    assert [pack["lanes"] for pack in result["packs"]] == list(options.lanes)
    for pack in result["packs"]:
        tokens = pack["lanes"] * options.batch * options.seq
        rate, median = pack["tokens_per_second"], pack["median_step_seconds"]
        assert pack["tokens"] == tokens == sum(pack["pass_tokens"])
        assert len(pack["step_seconds"]) == options.steps
        assert median == statistics.median(pack["step_seconds"])
        assert rate == tokens / median
        assert pack["tokens_per_second_per_lane"] * pack["lanes"] == pytest.approx(rate)
        if solo is not None:
            assert pack["gain_over_one_by_one"] == rate / solo["tokens_per_second"]
        if peft["why"] is None:
            assert pack["gain_over_peft"] == rate / peft["tokens_per_second"]
        seconds = sum(passes[size]["median_pass_seconds"] for size in pack["pass_tokens"])
        assert pack["ceiling_tokens_per_second"] == tokens / seconds
        assert pack["share_of_ceiling"] == rate / pack["ceiling_tokens_per_second"]
        assert pack["loss"] == pytest.approx(CHANCE, rel=0.1)
        assert pack["applied"]
        params = result["trainable_parameters_per_lane"] * pack["lanes"]
        # A lane's part of each layer is rounded up to a block of the optimizer.
        blocks = 1024 * pack["lanes"] * TINY.num_layers
        assert 16 * params <= pack["lane_state_bytes"] < 16 * (params + blocks)
        assert pack["device_peak_bytes"] == pack["join_peak_device_bytes"] == 0
    largest = max(passes)
    assert result["ceiling"]["tokens_per_second"] == passes[largest]["tokens_per_second"]
    assert passes[largest]["tokens_per_second"] == (
        largest / passes[largest]["median_pass_seconds"]
    )


@pytest.fixture(scope="module")
def measured() -> tuple[PackedOptions, dict[str, Any]]:
    options = _options(lanes=(1, 2, 4), peft=True)
    return options, bench_packed(options)


@pytest.mark.full
def test_a_measurement_is_consistent(measured: tuple[PackedOptions, dict[str, Any]]) -> None:
    options, result = measured
    _check(result, options)
    solo = result["packs"][0]
    assert solo["gain_over_one_by_one"] == 1.0
    assert result["one_by_one"]["step_seconds"] == solo["step_seconds"]
    assert "one lane alone" in result["one_by_one"]["note"]
    assert [pack["pass_tokens"] for pack in result["packs"]] == [[24], [48], [96]]
    assert result["trainable_parameters_per_lane"] == 4 * 3 * (
        80 + 48 + 48 + 64 + 80 + 80 + 80 - 16
    )
    assert result["host_peak_bytes"] > 1 << 20


@pytest.mark.full
def test_a_measurement_has_these_keys(measured: tuple[PackedOptions, dict[str, Any]]) -> None:
    _, result = measured
    assert json.loads(json.dumps(result)) == result
    timing = {"median_step_seconds", "step_seconds", "tokens_per_second"}
    memory = {"device_peak_bytes", "device_reserved_bytes"}
    assert set(result) == {
        *("shape", "device", "versions", "precision", "threads", "attention", "parameters"),
        *("trainable_parameters_per_lane", "batch", "seq", "rank", "alpha", "activations"),
        *("max_tokens", "vram_cap_gb", "warm_up_steps", "steps", "packs", "one_by_one", "peft"),
        *("ceiling", "crossover", "host_peak_bytes", "base", "base_device_bytes"),
        *("base_host_bytes", "slides", "rates"),
    }
    assert set(result["packs"][0]) == timing | memory | {
        *("lanes", "tokens", "pass_tokens", "tokens_per_second_per_lane", "gain_over_one_by_one"),
        *("gain_over_peft", "ceiling_tokens_per_second", "share_of_ceiling", "loss", "applied"),
        *("join_peak_device_bytes", "lane_state_bytes", "host_peak_bytes", "slide", "predicted"),
        *("error", "resident", "resident_tokens_per_second", "share_of_resident"),
    }
    assert set(result["one_by_one"]) == timing | memory | {"note"}
    assert set(result["peft"]) == timing | memory | {
        *("host_peak_bytes", "trainable_parameters", "adapter_precision", "loss", "versions"),
        "why",
    }
    assert set(result["ceiling"]["passes"][0]) == memory | {
        *("tokens", "pass_seconds", "median_pass_seconds", "tokens_per_second", "why"),
    }
    assert set(result["crossover"]) == {"lanes", "least_gain", "text"}


@pytest.mark.full
def test_peft_trains_the_same_adapter(measured: tuple[PackedOptions, dict[str, Any]]) -> None:
    options, result = measured
    peft = result["peft"]
    assert len(peft["step_seconds"]) == options.steps
    assert peft["tokens_per_second"] == 24 / statistics.median(peft["step_seconds"])
    assert peft["trainable_parameters"] == result["trainable_parameters_per_lane"]
    assert peft["loss"] == pytest.approx(CHANCE, rel=0.1)
    assert peft["adapter_precision"] == "float32"
    assert set(peft["versions"]) == {"torch", "transformers", "peft"}


def test_one_lane_is_measured_as_a_yardstick_though_it_was_not_asked_for() -> None:
    options = _options(lanes=(3,), activations="recompute")
    result = bench_packed(options)
    _check(result, options)
    assert result["packs"][0]["gain_over_one_by_one"] > 0.0
    assert result["peft"] == {"tokens_per_second": None, "why": "not asked for"}
    assert result["packs"][0]["gain_over_peft"] is None


def test_without_a_yardstick_there_is_no_gain() -> None:
    options = _options(lanes=(2,), solo=False)
    result = bench_packed(options)
    _check(result, options)
    assert result["one_by_one"] is None
    assert result["packs"][0]["gain_over_one_by_one"] is None
    assert result["crossover"]["lanes"] is None
    assert "shows no crossover" in result["crossover"]["text"]


def test_the_ceiling_of_a_step_walks_the_passes_of_the_step() -> None:
    options = _options(lanes=(1, 5), batch=1, max_tokens=48)
    result = bench_packed(options)
    _check(result, options)
    assert [pack["pass_tokens"] for pack in result["packs"]] == [[12], [48, 12]]
    assert [one["tokens"] for one in result["ceiling"]["passes"]] == [12, 48]


def test_a_step_passes_whole_as_long_as_that_is_not_large() -> None:
    options = _options(batch=4, seq=512)
    assert [options.pass_limit(lanes) for lanes in (1, 8, 32)] == [2048, 16384, 16384]
    assert _options(batch=1, seq=20000).pass_limit(1) == 20000
    assert _options(max_tokens=12).pass_limit(32) == 12


def test_lanes_are_numbers_in_a_list() -> None:
    assert lane_counts("8,1,2,8") == (1, 2, 8)
    assert lane_counts("4") == (4,)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"shape": "llama-9b"}, "llama-9b; choose among"),
        ({"lanes": (0, 1)}, r"lanes is \[0, 1\]; use 1 to 1024"),
        ({"lanes": (2, 1)}, "use rising numbers"),
        ({"lanes": ()}, "use rising numbers"),
        ({"batch": 0}, "1 or more"),
        ({"seq": 1}, "seq 2 or more"),
        ({"rank": 1025}, "rank is 1025; use 1 to 1024"),
        ({"warm_up": -1}, "warm-up 0 or more"),
        ({"max_tokens": 11}, "max-tokens is 11; use at least a row, 12"),
        ({"activations": "drop"}, "activations is drop; use keep or recompute"),
        ({"vram_cap_gb": 0.0}, "vram-cap is 0.0"),
        ({"device": "tpu"}, "device is tpu"),
    ],
)
def test_what_cannot_be_measured_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _options(**changed)


@pytest.mark.parametrize("asked", ["--lanes=two", "--lanes=0", "--seq=1", "--rank=0"])
def test_the_command_refuses_with_a_code(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["packed", "--shape=tiny", "--batch=2", "--seq=8", "--rank=2", "--device=cpu", asked]
    assert bench.main(given) == 51
    report = json.loads(capsys.readouterr().out)["error"]
    assert report["code"] == "RUN-SPEC-INVALID"
    assert "use " in report["why"] or "or more" in report["why"]


def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "packed --shape=tiny --lanes=2 --batch=1 --seq=8 --rank=2 --steps=1 --warm-up=0"
    assert bench.main([*asked.split(), "--no-peft", "--no-solo", "--device=cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [pack["lanes"] for pack in result["packs"]] == [2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="need a GPU"):
        bench_packed(_options(device="cuda"))


def test_a_pack_that_does_not_fit_has_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Pack.step

    def step(pack: Pack, work: dict[str, LaneStep], *more: Any) -> dict[str, StepOutcome]:
        if len(work) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nDetails")
        return whole(pack, work, *more)

    monkeypatch.setattr(Pack, "step", step)
    with pytest.raises(SlidepackError) as raised:
        bench_packed(_options())
    report = raised.value.report
    assert report.code == "GPU-OUT-OF-MEMORY"
    assert report.why == "2 lanes: CUDA out of memory. Tried to allocate 2 GiB."
    assert "--max-tokens" in report.fix


def test_a_base_that_does_not_fit_has_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_fits(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(run, "resident_base", nothing_fits)
    with pytest.raises(SlidepackError, match=r"GPU-OUT-OF-MEMORY.*the base"):
        bench_packed(_options())


def test_a_ceiling_that_does_not_fit_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BasePass.run

    def ceiling(base: BasePass, batch: Any) -> Any:
        if batch.num_tokens > 24:
            raise torch.OutOfMemoryError("too large\nDetails")
        return whole(base, batch)

    monkeypatch.setattr(BasePass, "run", ceiling)
    result = bench_packed(_options())
    assert result["ceiling"]["tokens_per_second"] is None
    assert [one["why"] for one in result["ceiling"]["passes"]] == [None, "too large"]
    assert [pack["share_of_ceiling"] is None for pack in result["packs"]] == [False, True]
    assert result["packs"][1]["tokens_per_second"] > 0.0


def test_without_peft_installed_that_is_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "peft.py").write_text("raise ModuleNotFoundError('no peft here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = measure_peft(_options())
    assert (result.answer, result.why) == (None, "ModuleNotFoundError: no peft here")


def test_nothing_but_the_other_process_needs_peft() -> None:
    (package,) = slidepack.__path__
    wanted = re.compile(r"^(import|from) (peft|transformers)\b", re.MULTILINE)
    needing = [one.name for one in Path(package).rglob("*.py") if wanted.search(one.read_text())]
    assert sorted(needing) == ["peft_baseline.py", "theirs.py"], "benchmarks alone"


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "why"),
    [
        (1, "", "Traceback\ntorch.OutOfMemoryError: too large\n", "OutOfMemoryError: too large"),
        (-9, "", "", "it ended with -9"),
        (0, "", "", "cannot be read"),
        (0, "{}\n", "", "cannot be read"),
    ],
)
def test_a_peft_that_does_not_run_is_a_result(
    monkeypatch: pytest.MonkeyPatch, status: int, stdout: str, stderr: str, why: str
) -> None:
    def ended(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, status, stdout=stdout, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", ended)
    result = measure_peft(_options())
    assert result.answer is None
    assert why in str(result.why)


@pytest.mark.parametrize("name", [*SHAPES, "tiny"])
def test_peft_wraps_a_model_of_the_same_shape(name: str) -> None:
    shape = TINY if name == "tiny" else SHAPES[name]
    model = base_model(shape, torch.device("meta"), torch.bfloat16)
    assert {key: tuple(p.shape) for key, p in model.named_parameters()} == shape.tensor_shapes()
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "sdpa"
    config = model.config.to_dict() | {"architectures": [shape.architecture]}
    assert shape_from_config(config, Path("there")) == shape


def test_the_ceiling_is_the_whole_loss_and_its_gradient_at_the_embedding() -> None:
    """Judged by transformers' model with the same weights."""
    decoder = random_decoder(TINY, CPU, torch.float32, seed=1)
    options = _options()
    rows = random_rows(options, 0)
    base = BasePass(decoder, layer_attention(TINY, CPU, torch.float32))
    losses, grad = base.run(pack_rows(rows, TINY, CPU, torch.float32))
    weights = {
        "model.embed_tokens.weight": decoder.embedding,
        "model.norm.weight": decoder.final_norm,
        "lm_head.weight": decoder.head,
    }
    for index, layer in enumerate(decoder.layers):
        weights |= {f"model.layers.{index}.{name}": view for name, view in layer.named.items()}
    judge = base_model(TINY, CPU, torch.float32)
    judge.load_state_dict(weights)
    ids = torch.tensor([row.ids for row in rows])
    inputs = decoder.embedding[ids].requires_grad_()
    loss = judge(inputs_embeds=inputs, labels=ids).loss
    (expected,) = torch.autograd.grad(loss, inputs)
    torch.testing.assert_close(losses.sum(), loss)
    torch.testing.assert_close(grad.view_as(expected), expected, rtol=1e-4, atol=1e-7)
    assert expected.abs().max() > 1e-4, "there is something to compare"


def test_lanes_have_rows_of_their_own() -> None:
    options = _options(batch=3)
    first, second = random_rows(options, 0), random_rows(options, 1)
    assert [len(row.ids) for row in first] == [12, 12, 12]
    assert all(all(row.supervised) for row in first)
    assert first == random_rows(options, 0) != second


def test_each_step_is_timed_from_idle_to_idle() -> None:
    ticks = iter([0.0, 5.0, 10.0, 11.0, 20.0, 24.0])
    done: list[int] = []
    times = time_steps(lambda: done.append(1), _options(), CPU, lambda: next(ticks))
    assert len(done) == 3
    assert times.step_seconds == (1.0, 4.0)
    assert times.median_seconds == 2.5


@pytest.mark.parametrize(
    ("points", "lanes", "text"),
    [
        ([(1, 10.0), (2, 20.0), (4, 39.0)], None, "packing still pays at 4 lanes"),
        (
            [(1, 10.0), (2, 18.0), (4, 18.5), (8, 18.0)],
            2,
            "packing stops paying at 2 lanes: 4 lanes give 2.8% more tokens a second",
        ),
        (
            [(1, 10.0), (2, 9.5), (4, 9.4)],
            1,
            "packing does not pay at this batch and length: 2 lanes give 5.0% fewer tokens",
        ),
        # A number that gains little by chance is not where it ends.
        ([(1, 10.0), (2, 10.2), (4, 18.0), (8, 18.1)], 4, "stops paying at 4 lanes"),
        # Three doublings that give 12% in all give less than 5% each.
        ([(1, 10.0), (8, 11.2)], 1, "8 lanes give 12.0% more"),
        ([(1, 10.0), (8, 12.0)], None, "still pays at 8 lanes"),
        ([(4, 10.0), (8, 10.0)], 4, "at 4 lanes, the fewest measured: 8 lanes give 0.0% more"),
        ([(1, 10.0)], None, "shows no crossover"),
    ],
)
def test_the_crossover(points: list[tuple[int, float]], lanes: int | None, text: str) -> None:
    found = find_crossover(points)
    assert found.lanes == lanes
    assert text in found.text
