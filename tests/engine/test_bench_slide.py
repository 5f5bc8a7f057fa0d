"""`slidepack bench slide` on a CPU: the whole path with a tiny shape, and its parts."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import torch

from slidepack.engine import bench
from slidepack.engine.bench_slide import run
from slidepack.engine.bench_slide.measure import Bench, measure_ceiling, measure_sliding
from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.bench_slide.plan import plan_slide, resident_layers
from slidepack.engine.bench_slide.rates import engine_rate, link_rates
from slidepack.engine.bench_slide.run import bench_slide
from slidepack.engine.bench_slide.shapes import SHAPES, TINY
from slidepack.engine.bench_slide.steps import random_batches, time_steps
from slidepack.engine.bench_slide.weights import random_state
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.model.loss import LossSum
from slidepack.engine.sliding.full_driver import StepResult
from slidepack.engine.sliding.sharing import EngineName
from slidepack.engine.sliding.state import StateFormat

CPU = torch.device("cpu")
GB = 10**9
FP32 = StateFormat(split=False, moments="fp32")


def _options(**changed: Any) -> SlideOptions:
    values: dict[str, Any] = {
        "shape": "tiny",
        "batch": 4,
        "seq": 12,
        "micro_tokens": 24,
        "steps": 2,
        "threads": 1,
        "device": "cpu",
    }
    return SlideOptions(**(values | changed))


def _big(shape: str, **changed: Any) -> SlideOptions:
    return _options(
        **{"shape": shape, "batch": 8, "seq": 1024, "micro_tokens": 8192, "device": "cuda"}
        | changed
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # As their model cards count them, or the sum over their safetensors files.
        ("smollm2-135m", 134_515_008),
        ("llama-1b", 1_235_814_400),
        ("llama-3b", 3_212_749_824),
        ("llama-8b", 8_030_261_248),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("mistral-123b", 122_610_069_504),
    ],
)
def test_shapes_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert SHAPES[name].total_params == parameters


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp() / "native-cache"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: folder / name)
    return folder / "slidepack" / "native"


def _check(result: dict[str, Any], options: SlideOptions) -> None:
    """Assert what holds of every measurement."""
    tokens = options.batch * options.seq
    assert result["tokens"] == tokens
    for timing in (result, result["ceiling"]):
        assert len(timing["step_seconds"]) == options.steps
        median = statistics.median(timing["step_seconds"])
        assert timing["median_step_seconds"] == median
        assert timing["tokens_per_second"] == tokens / median
        assert timing["mean_step_seconds"] == timing["total_seconds"] / options.steps
        assert timing["tokens_per_second_with_tail"] == tokens / timing["mean_step_seconds"]
        assert timing["total_seconds"] >= sum(timing["step_seconds"])
    ceiling = result["ceiling"]
    ratio = result["tokens_per_second"] / ceiling["tokens_per_second"]
    assert result["share_of_ceiling"] == ratio
    split = result["split"]
    assert split["compute"] == ceiling["median_step_seconds"]
    assert split["idle"] == result["median_step_seconds"] - split["compute"]
    assert math.isfinite(result["loss"])
    assert result["grad_norm"] > 0.0
    assert result["applied"]
    memory = result["memory"]
    assert memory["ram_bytes_per_parameter"] * memory["stored_parameters"] == pytest.approx(
        memory["ram_peak_bytes"]
    )
    assert (memory["vram_peak_bytes"], result["link"]) == (0, None)
    assert all(rates["alone"] > 0.0 for rates in result["optimizer_rates"].values())


@pytest.mark.parametrize("optimizer", ["cpu", "gpu", "auto"])
def test_a_measurement_is_consistent(optimizer: str) -> None:
    options = _options(optimizer=optimizer)
    result = bench_slide(options)
    _check(result, options)
    assert json.loads(json.dumps(result)) == result
    assert set(result) == {
        *("shape", "device", "versions", "parameters", "batch", "seq", "tokens", "micro_batches"),
        *("optimizer", "moments", "master", "clip", "threads", "vram_cap_gb"),
        *("alias_layers", "alias_note", "nvme", "warm_up_steps", "step_seconds"),
        *("median_step_seconds",),
        *("total_seconds", "mean_step_seconds", "tokens_per_second", "tokens_per_second_with_tail"),
        *("share_of_ceiling", "share_of_ceiling_with_tail", "split", "ceiling"),
        *("optimizer_rates", "link", "memory", "plan", "loss", "grad_norm", "applied"),
    }
    assert set(result["split"]) == {
        *("compute", "h2d", "d2h", "rows_h2d", "rows_d2h", "update_h2d", "update", "update_d2h"),
        *("cpu_optimizer", "gpu_optimizer", "idle"),
    }
    assert result["micro_batches"] == 2
    assert result["alias_note"] is None
    assert result["memory"]["stored_parameters"] == TINY.total_params
    assert result["memory"]["state_bytes"] > 12 * TINY.total_params
    rates = {name: rate["beside_the_rest"] for name, rate in result["optimizer_rates"].items()}
    worked = {"cpu", "gpu"} if optimizer == "auto" else {optimizer}
    assert all(rates[name] is None for name in {"cpu", "gpu"} - worked)
    # With auto the CPU may have been left without a layer; the card always has the ends.
    assert rates["cpu" if optimizer == "cpu" else "gpu"] is not None
    plan = result["plan"]
    assert plan["cpu_share"] == {"cpu": 1.0, "gpu": 0.0}.get(optimizer, plan["cpu_share"])
    assert plan["engine"] == optimizer
    assert len(plan["reasons"]) >= 3


def test_layers_may_share_their_storage_and_the_output_says_so() -> None:
    options = _options(alias_layers=2, clip=0.01, rows="host", moments="int8", optimizer="gpu")
    result = bench_slide(options)
    _check(result, options)
    ends = TINY.total_params - TINY.num_layers * TINY.layer_params
    assert result["alias_layers"] == 2
    assert "4 layers share 2 layers of storage" in result["alias_note"]
    assert result["memory"]["stored_parameters"] == ends + 2 * TINY.layer_params
    assert result["plan"]["rows"] == "host"


def test_as_many_layers_of_storage_as_layers_is_no_alias() -> None:
    result = bench_slide(_options(alias_layers=TINY.num_layers, optimizer="gpu"))
    assert result["alias_note"] is None
    assert result["alias_layers"] is None


def test_the_ceiling_walks_the_same_passes(cache: Path) -> None:
    """Layers that learn nothing give the loss of the resident ones, and the gradient's norm."""
    options = _options(alias_layers=2, optimizer="gpu")
    state = random_state(TINY, FP32, CPU, 2)
    plan = plan_slide(options, TINY, None)
    measured = Bench(
        options=options,
        shape=TINY,
        state=state,
        plan=plan,
        device=CPU,
        cap_bytes=None,
        cache=cache,
    )
    sliding = measure_sliding(measured).timing.last
    ceiling = measure_ceiling(measured).timing.last
    assert sliding.loss == ceiling.loss
    assert sliding.grad_norm == ceiling.grad_norm


def test_random_weights_are_those_of_a_fresh_model() -> None:
    state = random_state(TINY, FP32, CPU, None)
    first, second, last = (state.weights(unit) for unit in (0, 1, len(state.units) - 1))
    decayed = state.units[0].decayed
    biases = TINY.q_width + 2 * TINY.kv_width
    assert first[:decayed].std().item() == pytest.approx(0.02, rel=0.05)
    assert not first[decayed : decayed + biases].any()
    assert (first[decayed + biases :] == 1.0).all()
    assert not torch.equal(first, second)
    assert (last[-TINY.hidden :] == 1.0).all()
    assert (last[: -TINY.hidden] != 1.0).all()


def test_aliased_layers_take_the_memory_of_their_storage() -> None:
    state = random_state(TINY, FP32, CPU, 3)
    places = [one.master.data_ptr() for one in state.states]
    assert places[3] == places[0]
    assert len(set(places)) == len(places) - 1
    assert len(state.units) == TINY.num_layers + 2


def test_steps_are_timed_without_waiting_between_them() -> None:
    said: list[str] = []
    ticks = iter([10.0, 11.0, 13.0, 14.0, 16.5])
    result = StepResult(LossSum(1.0, 2), 3.0, True)

    def step() -> StepResult:
        said.append("step")
        return result

    timing = time_steps(step, lambda: said.append("finish"), 3, 2, lambda: next(ticks))
    assert said == ["step", "step", "finish", "step", "step", "step", "finish"]
    assert timing.step_seconds == (1.0, 2.0, 1.0)
    assert timing.total_seconds == 6.5
    assert timing.last is result


def test_batches_are_cut_by_tokens() -> None:
    batches = random_batches(TINY, CPU, torch.float32, batch=5, seq=12, micro_tokens=30)
    assert [batch.num_tokens for batch in batches] == [24, 24, 12]


def test_the_plan_takes_a_smaller_window_where_the_cap_asks_for_it() -> None:
    wide = plan_slide(_big("llama-3b"), SHAPES["llama-3b"], 24 * GB)
    assert (wide.full.weight_slots, wide.full.grad_slots, wide.full.rows) == (5, 4, "device")
    assert not wide.accumulate
    narrow = plan_slide(_big("qwen2.5-32b"), SHAPES["qwen2.5-32b"], 20 * GB)
    assert narrow.full.weight_slots < 5
    assert narrow.predicted_device_bytes < 20 * GB
    asked = plan_slide(_big("llama-3b", weight_slots=3), SHAPES["llama-3b"], 24 * GB)
    assert (asked.full.weight_slots, asked.full.grad_slots) == (3, 4)


def test_the_window_does_not_grow_with_the_batch() -> None:
    shape = SHAPES["llama-3b"]
    plans = [plan_slide(_big("llama-3b", batch=n), shape, 24 * GB) for n in (64, 256)]
    assert [plan.full.rows for plan in plans] == ["host", "host"]
    assert plans[0].predicted_device_bytes == plans[1].predicted_device_bytes
    assert all(plan.accumulate for plan in plans)


def test_aliased_storage_is_predicted_smaller() -> None:
    shape = SHAPES["mistral-123b"]
    options = _big("mistral-123b", alias_layers=4)
    whole, aliased = (
        plan_slide(each, shape, 80 * GB).predicted_host_bytes
        for each in (_big("mistral-123b"), options)
    )
    assert whole - aliased == pytest.approx(84 * 12 * shape.layer_params, rel=1e-3)


def test_the_ceiling_shares_layers_where_they_do_not_all_fit() -> None:
    small, large = SHAPES["llama-1b"], SHAPES["qwen2.5-32b"]
    plan = plan_slide(_big("llama-1b"), small, 24 * GB)
    assert resident_layers(plan, small, 24 * GB) == (16, "device")
    plan = plan_slide(_big("qwen2.5-32b"), large, 24 * GB)
    layers, _ = resident_layers(plan, large, 24 * GB)
    assert 1 <= layers < 64


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"shape": "llama-9b"}, "llama-9b; choose among"),
        ({"seq": 1}, "seq 2 or more"),
        ({"batch": 0}, "1 or more"),
        ({"vram_cap_gb": 0.0}, "vram-cap is 0.0"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"alias_layers": 5}, "alias-layers is 5; use 1 to 4"),
        ({"weight_slots": 1}, "weight-slots is 2 or more"),
        ({"grad_slots": 0}, "grad-slots 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _options(**changed)


def test_a_state_beyond_the_ram_is_refused_before_it_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "free_ram", lambda: 100 << 20)
    monkeypatch.setattr(run, "random_state", lambda *_: pytest.fail("it was allocated"))
    with pytest.raises(SlidepackError, match=r"RAM-TOO-SMALL.*0\.1 GB are free"):
        bench_slide(_options())


def test_a_container_has_the_memory_of_its_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "_CGROUP", tmp_path)
    machine = run.free_ram()
    (tmp_path / "memory.stat").write_text("file 900\nanon 300\n", encoding="ascii")
    (tmp_path / "memory.max").write_text("1000\n", encoding="ascii")
    assert run.free_ram() == 700 < machine
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    assert run.free_ram() > 700


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="need a GPU"):
        bench_slide(_options(device="cuda"))


def test_the_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "slide --shape=tiny --batch=2 --seq=8 --steps=1 --optimizer=gpu --device=cpu"
    assert bench.main(asked.split()) == 0
    assert json.loads(capsys.readouterr().out)["shape"] == "tiny"


def test_the_command_refuses_with_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["slide", "--shape=none", "--batch=2", "--seq=8"]) == 51
    report = json.loads(capsys.readouterr().out)["error"]
    assert report["code"] == "RUN-SPEC-INVALID"
    assert "choose among" in report["why"]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_an_engine_alone_has_a_rate(name: EngineName, cache: Path) -> None:
    state = random_state(TINY, FP32, CPU, None)
    before = [one.master.clone() for one in state.states]
    assert engine_rate(name, state, CPU, 1, cache) > 0.0
    for one, master in zip(state.states, before, strict=True):
        assert torch.equal(one.master, master), "steps of no length"


def test_there_is_no_link_without_a_card() -> None:
    assert link_rates(CPU) is None


def test_what_lies_on_a_drive_is_told(tmp_path: Path) -> None:
    options = _options(moments="int8", nvme_folder=str(tmp_path), warm_up=1, steps=2)
    result = bench_slide(options)
    told, plan = result["nvme"], result["plan"]
    assert plan["nvme"]["step_write_bytes"] > 0
    assert any("are on drives" in reason for reason in plan["reasons"])
    assert plan["predicted_step_seconds"] > 0.0
    assert told["stored_bytes"] > 6 * TINY.total_params
    assert told["written_bytes"] == 3 * told["stored_bytes"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("alias_layers", [None, 4])
def test_state_on_a_drive_takes_no_ram(alias_layers: int | None) -> None:
    asked = {"moments": "int8", "optimizer": "gpu", "alias_layers": alias_layers}
    shape = SHAPES["llama-8b"]
    ram = plan_slide(_big("llama-8b", **asked), shape, 24 * GB)
    drive = plan_slide(_big("llama-8b", **asked, nvme_folder="/drive"), shape, 24 * GB)
    half = plan_slide(
        _big("llama-8b", **asked, nvme_folder="/drive", nvme_share=0.5), shape, 24 * GB
    )
    assert drive.predicted_host_bytes < half.predicted_host_bytes < ram.predicted_host_bytes
    assert drive.predicted_host_bytes < 8 * GB
    assert drive.full.nvme is not None
    assert len(drive.full.nvme.master) == shape.num_layers + 2
