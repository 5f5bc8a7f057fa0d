"""`slidepack bench packed` over bases that slide or have 4 bits, and what it predicts."""

import json
import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import platformdirs
import pytest
import torch

from slidepack.engine import bench
from slidepack.engine.bench_packed import run
from slidepack.engine.bench_packed.base import host_base, nf4_base, resident_base
from slidepack.engine.bench_packed.layout import SlideLayout, lane_sizes, slide_layout
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.packs import PackResult
from slidepack.engine.bench_packed.predict import compared, predict
from slidepack.engine.bench_packed.run import bench_packed
from slidepack.engine.bench_packed.slides import measure_residents
from slidepack.engine.bench_packed.steps import StepTimes
from slidepack.engine.bench_slide.shapes import SHAPES, TINY
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef, Precision
from slidepack.engine.contract.plan import LaneSlidePlan
from slidepack.engine.lora.pack import Pack
from slidepack.engine.memory_lanes import plan_lane_slide
from slidepack.engine.memory_lora import plan_lanes
from slidepack.engine.memory_parts import Machine
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.rates import rates_of
from slidepack.engine.timing import step_time

CPU: Final = torch.device("cpu")
H200: Final = rates_of("NVIDIA H200", cpu_threads=16)
LARGE: Final = Machine(
    device="cuda:0",
    device_free_bytes=141_000_000_000,
    ram_available_bytes=128_000_000_000,
    cpu_threads=16,
)
SMALL: Final = msgspec.structs.replace(LARGE, device_free_bytes=8_000_000_000)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "native-cache"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: folder / name)


def _options(**changed: Any) -> PackedOptions:
    values: dict[str, Any] = {
        "shape": "tiny",
        "lanes": (1, 3),
        "batch": 2,
        "seq": 12,
        "rank": 3,
        "steps": 2,
        "warm_up": 1,
        "peft": False,
        "ceiling": False,
        "device": "cpu",
    }
    return PackedOptions(**(values | changed))


def _large(**changed: Any) -> PackedOptions:
    sizes = {"shape": "llama-8b", "lanes": (16,), "batch": 4, "seq": 512, "rank": 16}
    return _options(**(sizes | changed))


def _result(
    options: PackedOptions, lanes: int, passes: Iterable[int], layout: SlideLayout | None = None
) -> PackResult:
    return PackResult(
        lanes=lanes,
        pass_limit=max(passes) if layout is None else layout.pass_limit,
        passes=tuple(passes),
        times=StepTimes(step_seconds=(2.0,), device_peak_bytes=10**10, device_reserved_bytes=0),
        lane_state_bytes=0,
        join_peak_bytes=0,
        host_peak_bytes=None,
        loss=0.0,
        applied=True,
        slide=None if layout is None else layout.slide,
    )


@pytest.mark.parametrize(
    "changed",
    [{}, {"rows": "host", "weight_slots": 2, "max_tokens": 24}, {"rows": "device", "batch": 1}],
    ids=["as planned", "rows in host memory, many passes", "rows on the device"],
)
def test_a_base_that_slides_does_what_the_resident_one_does(changed: dict[str, Any]) -> None:
    options = _options(slide=True, **changed)
    result = bench_packed(options)
    assert result["activations"] == "recompute"
    for pack in result["packs"]:
        resident = pack["resident"]
        assert pack["loss"] == resident["loss"]
        assert pack["pass_tokens"] == resident["pass_tokens"]
        assert len(resident["step_seconds"]) == options.steps
        rate = pack["tokens"] / resident["median_step_seconds"]
        assert pack["resident_tokens_per_second"] == rate
        assert pack["share_of_resident"] == pack["tokens_per_second"] / rate
        assert pack["slide"]["slots"] == changed.get("weight_slots", 4)
        assert pack["slide"]["rows"] == changed.get("rows", "device")
        assert pack["predicted"]["step_seconds"] is None
        assert "without a card" in pack["predicted"]["why"]
    passes = 3 if "max_tokens" in changed else 1
    assert [len(pack["pass_tokens"]) for pack in result["packs"]] == [1, passes]
    ends = 4 * (2 * TINY.vocab * TINY.hidden + TINY.hidden)
    assert result["base_device_bytes"] == ends
    layers = result["base_host_bytes"]
    assert 0 <= layers - 4 * TINY.num_layers * TINY.layer_params < 256 * TINY.num_layers


def test_the_losses_of_sliding_lanes_fall_with_their_steps() -> None:
    few, many = (
        bench_packed(_options(slide=True, lanes=(2,), solo=False, steps=steps))["packs"][0]
        for steps in (1, 30)
    )
    assert many["loss"] < few["loss"] < 1.1 * math.log(TINY.vocab)


def test_a_resident_base_that_does_not_fit_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_fits(*_: object) -> None:
        raise torch.OutOfMemoryError("too large\nDetails")

    monkeypatch.setattr(run, "resident_base", nothing_fits)
    result = bench_packed(_options(slide=True, ceiling=True))
    for pack in result["packs"]:
        assert pack["resident"] == {"why": "too large"}
        assert pack["share_of_resident"] is None
        assert pack["tokens_per_second"] > 0.0
    assert {one["why"] for one in result["ceiling"]["passes"]} == {"too large"}


def test_a_resident_pack_that_does_not_fit_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_: object) -> None:
        raise torch.OutOfMemoryError("too large\nDetails")

    monkeypatch.setattr(Pack, "step", step)
    options = _options()
    decoder = resident_base(TINY, CPU, torch.float32).decoder
    choices = layer_attention(TINY, CPU, torch.float32)
    (found,) = measure_residents(options, decoder, choices, [_result(options, 1, (24,))])
    assert (found.pack, found.why) == (None, "too large")


def test_a_sliding_pack_that_does_not_fit_has_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_: object) -> None:
        raise torch.OutOfMemoryError("too large\nDetails")

    monkeypatch.setattr(Pack, "step", step)
    with pytest.raises(SlidepackError, match=r"GPU-OUT-OF-MEMORY.*one lane over a sliding base"):
        bench_packed(_options(slide=True))


def test_a_4_bit_base_trains_as_the_plain_one_nearly_does() -> None:
    plain, narrow = (bench_packed(_options(base=base)) for base in ("bf16", "nf4"))
    for one, other in zip(plain["packs"], narrow["packs"], strict=True):
        assert one["loss"] != other["loss"]
        assert one["loss"] == pytest.approx(other["loss"], rel=0.02)
        assert other["applied"]
    assert narrow["base"] == "nf4"
    assert narrow["base_device_bytes"] < plain["base_device_bytes"]


def test_a_4_bit_base_takes_about_a_quarter() -> None:
    shape = msgspec.structs.replace(TINY, num_layers=24, hidden=128, ffn=256)
    plain, narrow, host = (
        make(shape, CPU, torch.bfloat16).bytes for make in (resident_base, nf4_base, host_base)
    )
    assert plain.device == 2 * shape.total_params
    # A scale for 64 elements, and the room of one widened layer, are a ninth of a byte more.
    assert 0.25 < narrow.device / plain.device < 0.35
    assert host.device < 0.02 * plain.device
    assert host.host == pytest.approx(plain.device - host.device, rel=0.01)


def test_every_base_has_the_same_weights() -> None:
    plain, narrow, host = (
        make(TINY, CPU, torch.float32).decoder for make in (resident_base, nf4_base, host_base)
    )
    assert torch.equal(plain.embedding, narrow.embedding)
    assert not torch.equal(plain.embedding, plain.head)
    for one, four, sliding in zip(plain.layers, narrow.layers, host.layers, strict=True):
        assert torch.equal(one.flat, sliding.flat)
        assert torch.equal(one.qkv_bias, four.qkv_bias)  # type: ignore[arg-type]  # it has one
        assert torch.equal(one.input_norm, torch.ones(TINY.hidden))
        assert 0.0 < (one.down - four.down).abs().mean() < 0.1 * one.down.abs().mean()


def test_the_ceiling_of_a_4_bit_base_is_there_and_can_be_left_out() -> None:
    options = _options(base="nf4", ceiling=True)
    result = bench_packed(options)
    assert [one["tokens"] for one in result["ceiling"]["passes"]] == [24, 72]
    assert all(pack["share_of_ceiling"] > 0.0 for pack in result["packs"])
    bare = bench_packed(_options(base="nf4"))
    assert bare["ceiling"] == {"tokens_per_second": None, "passes": []}
    assert {pack["share_of_ceiling"] for pack in bare["packs"]} == {None}


def test_each_part_is_told_once_it_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "packed --shape=tiny --lanes=2 --batch=1 --seq=8 --rank=2 --steps=1 --warm-up=0"
    flags = ["--no-peft", "--no-solo", "--device=cpu", "--slide", "--rows=host"]
    assert bench.main([*asked.split(), *flags]) == 0
    out, err = capsys.readouterr()
    (pack,) = json.loads(out)["packs"]
    lines = dict(line.split(": ", 1) for line in err.splitlines() if " s a step" in line)
    assert list(lines) == ["2 lanes, sliding", "2 lanes, resident", "the bare base, 16 tokens"]
    assert lines["2 lanes, sliding"].endswith(f"{pack['tokens_per_second']:,.0f} tokens/s")
    assert "2 lanes: 4 slots, rows on the host, passes of at most 16 tokens" in err


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"base": "int4"}, "base is int4; use bf16 or nf4"),
        ({"base": "nf4", "slide": True}, "base is nf4, which does not slide"),
        ({"slide": True, "activations": "keep"}, "has to recompute"),
        ({"slide": True, "weight_slots": 1}, "weight-slots is 1; use 2 or more"),
        ({"slide": True, "rows": "disk"}, "rows is disk; use device or host"),
        ({"rows": "host"}, "those of a base that slides"),
        ({"weight_slots": 2}, "those of a base that slides"),
    ],
)
def test_bases_that_cannot_be_measured_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _options(**changed)


def test_the_planner_lays_out_what_the_options_leave() -> None:
    options = _large(slide=True)
    planned = plan_lane_slide(lane_sizes(options, 16), options.model_shape, SMALL)
    assert planned is not None
    plan, _ = planned
    found = slide_layout(options, 16, SMALL)
    assert (found.slide, found.pass_limit) == (plan.slide, plan.micro_batch_tokens)
    assert found.slide.max_tokens == 32768
    asked = slide_layout(_large(slide=True, max_tokens=2048, weight_slots=3), 16, SMALL)
    assert asked.slide == LaneSlidePlan(slots=3, rows="host", max_tokens=32768)
    assert asked.pass_limit == 2048


def test_what_is_not_predicted_to_fit_is_refused_unless_all_of_it_is_asked_for() -> None:
    tiny = msgspec.structs.replace(SMALL, device_free_bytes=4_000_000_000)
    with pytest.raises(SlidepackError) as raised:
        slide_layout(_large(slide=True), 16, tiny)
    assert raised.value.report.code == "GPU-OUT-OF-MEMORY"
    assert "--vram-cap" in raised.value.report.fix
    asked = _large(slide=True, weight_slots=2, rows="host", max_tokens=4096)
    assert slide_layout(asked, 16, tiny).pass_limit == 4096


def _spec(precision: Precision, batch: int) -> JobSpec:
    return JobSpec(
        name="lane",
        base=ModelRef(model_id="", path="", content_hash=""),
        dataset=DatasetRef(dataset_id="", path="", content_hash=""),
        method=LoraMethod(rank=16, base_precision=precision),
        batch_size=batch,
        max_seq_len=512,
        steps=1,
    )


@pytest.mark.parametrize(("base", "precision"), [("bf16", "auto"), ("nf4", "nf4")])
@pytest.mark.parametrize(("gigabytes", "policy"), [(141, "keep"), (25, "recompute")])
def test_predictions_of_resident_packs_are_those_of_fit(
    base: str, precision: Precision, gigabytes: int, policy: str
) -> None:
    spec = _spec(precision, batch=4)
    shape = SHAPES["llama-8b"]
    machine = msgspec.structs.replace(LARGE, device_free_bytes=gigabytes * 10**9)
    plan, need = plan_lanes([spec], shape, machine)
    assert plan.layer_activations[0] == (policy if base == "bf16" else plan.layer_activations[0])
    options = _large(base=base, lanes=(1,), activations=plan.layer_activations[0])
    pack = _result(options, 1, (plan.micro_batch_tokens,))
    found = predict(options, pack, H200, on_cpu=False)
    assert found.need is not None
    assert found.need.device == need.device
    assert found.step_seconds == step_time(spec, shape, plan, H200).seconds


def test_predictions_of_sliding_packs_are_those_of_fit() -> None:
    options, sizes = _large(slide=True), lane_sizes(_large(), 16)
    planned = plan_lane_slide(sizes, options.model_shape, SMALL)
    assert planned is not None
    layout = slide_layout(options, 16, SMALL)
    found = predict(options, _result(options, 16, (4096,) * 8, layout), H200, on_cpu=False)
    assert found.need == planned[1]
    single = predict(options, _result(options, 1, (2048,), layout), H200, on_cpu=False)
    assert found.step_seconds is not None
    assert single.step_seconds is not None
    # Compute hides the link with many lanes, and not with one.
    assert single.step_seconds < found.step_seconds < 16 * single.step_seconds


def test_predictions_on_a_cpu_are_of_its_ram() -> None:
    (pack,) = bench_packed(_options(lanes=(1,)))["packs"]
    assert pack["predicted"]["device_bytes"] is None
    assert pack["error"]["device_bytes"] is None
    assert pack["predicted"]["host_bytes"] > 4 * TINY.total_params
    assert 0.1 < pack["error"]["host_bytes"] < 2.0
    assert pack["error"]["step_seconds"] == pytest.approx(
        pack["predicted"]["step_seconds"] / pack["median_step_seconds"]
    )


def test_the_context_of_the_driver_is_beside_what_the_allocator_hands_out() -> None:
    options = _large(activations="recompute")
    pack = _result(options, 16, (16384, 16384))
    found = predict(options, pack, H200, on_cpu=False)
    said = compared(pack, found)
    predicted, error = said["predicted"], said["error"]
    assert found.need is not None
    context = predicted["driver_context_bytes"]
    assert predicted["device_bytes"] + context == found.need.device_bytes
    assert error["device_bytes"] == predicted["device_bytes"] / 10**10
    assert error["step_seconds"] == predicted["step_seconds"] / 2.0
    assert error["host_bytes"] is None
