"""Step times: as measured on the H200, and moving the way that their causes do."""

from typing import Any

import msgspec
import pytest

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.job import (
    DatasetRef,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
    OptimSpec,
)
from slidepack.engine.contract.plan import FullPlan
from slidepack.engine.memory import Machine, plan_run
from slidepack.engine.rates import Rates, rates_of
from slidepack.engine.timing import StepTime, full_step, step_time, work_of

LLAMA_3B = SHAPES["llama-3b"]
H200 = rates_of("NVIDIA H200", cpu_threads=16)


def _step(tokens: int = 8192, rates: Rates = H200, **changes: Any) -> StepTime:
    """Return a step of llama-3b, the CPU updating half of the layers."""
    options: dict[str, Any] = {"clip": False, "on_cpu": False, "cpu_share": 0.5}
    options |= {name: changes.pop(name) for name in list(changes) if name in options}
    values: dict[str, Any] = {
        "weights": "slide",
        "weight_slots": 5,
        "grad_slots": 4,
        "host_grad_slots": 8,
        "engine": "auto",
        "rows": "device",
        "moments": "fp32",
        "max_tokens": tokens,
        "longest_row": 1024,
    }
    full = FullPlan(**(values | changes))
    return full_step(LLAMA_3B, full, work_of(LLAMA_3B, 1024), tokens, rates, **options)


def _spec(method: Any = None, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "name": "n",
        "base": ModelRef(model_id="m", path="m", content_hash="-"),
        "dataset": DatasetRef(dataset_id="d", path="d", content_hash="-"),
        "method": method or FullMethod(),
        "optim": OptimSpec(clip_norm=0.0),
        "batch_size": 8,
        "max_seq_len": 1024,
        "steps": 1,
    }
    return JobSpec(**(values | changes))


def _machine(vram: float = 24.0) -> Machine:
    return Machine(
        device="cuda:0" if vram else "cpu",
        device_free_bytes=int(vram * 1e9),
        ram_available_bytes=128 * 10**9,
        cpu_threads=16,
    )


def _sliding_alone() -> float:
    """Return the passes of a step with the layers sliding and nothing updated."""
    step = _step()
    return sum(phase.busy_seconds.get("compute", 0.0) for phase in step.phases)


@pytest.mark.parametrize(
    ("predicted", "measured"),
    [
        pytest.param(_step().compute_seconds, 0.384, id="ceiling"),
        pytest.param(_sliding_alone(), 0.413, id="sliding alone"),
        pytest.param(_step().seconds, 0.86, id="every parameter updated"),
    ],
)
def test_the_prediction_is_within_a_fifth_of_the_h200(predicted: float, measured: float) -> None:
    assert predicted == pytest.approx(measured, rel=0.2)


def test_the_work_of_a_token() -> None:
    work = work_of(LLAMA_3B, 1024)
    layers = 28 * LLAMA_3B.layer_decayed_params
    head = LLAMA_3B.vocab * LLAMA_3B.hidden
    # Causal attention: 4.5 times 2 · S · width, forward, recompute and backward.
    attention = 4.5 * 2 * 1024 * LLAMA_3B.q_width * 28
    assert work.total == pytest.approx(8 * layers + 6 * head + attention)


def test_a_window_limits_what_a_token_sees() -> None:
    windowed = msgspec.structs.replace(LLAMA_3B, layer_windows=(512,) * 28)
    layers = 2 * 28 * LLAMA_3B.layer_decayed_params
    seen = [work_of(windowed, sequence).forward - layers for sequence in (512, 1024, 1 << 20)]
    assert seen[0] == pytest.approx(work_of(LLAMA_3B, 512).forward - layers)
    assert seen[0] < seen[1] < seen[2]
    assert seen[2] == pytest.approx(2 * seen[0], rel=1e-3)


def test_a_small_step_takes_as_long_as_its_transfers() -> None:
    small, larger = _step(64), _step(1024)
    # Where nothing hides it, the head's own time is all that differs.
    assert larger.seconds == pytest.approx(small.seconds, rel=0.02)
    assert small.bound_by == "memory"
    assert larger.seconds / (LLAMA_3B.total_params / 1e9) <= 0.27


def test_a_large_step_takes_as_long_as_its_passes() -> None:
    large = _step(65536, rows="host")
    assert large.bound_by == "compute"
    assert large.compute_seconds / large.seconds == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("rows", ["device", "host"])
def test_from_the_critical_tokens_on_the_passes_are_the_longest(rows: str, clip: bool) -> None:
    critical = _step(rows=rows, clip=clip).critical_tokens
    assert critical is not None

    def waiting(tokens: int) -> set[str]:
        step = _step(tokens, rows=rows, clip=clip)
        return {phase.bound_by for phase in step.phases if phase.name in ("forward", "backward")}

    assert waiting(critical + 1) == {"compute"}
    assert waiting(critical - 2) != {"compute"}


def test_rows_may_never_be_hidden() -> None:
    slow = msgspec.structs.replace(H200, link_bytes=1e8, duplex_bytes=1e8)
    assert _step(rates=slow, rows="host").critical_tokens is None


def test_what_makes_a_step_shorter() -> None:
    step = _step()
    assert _step(moments="bf16").seconds < step.seconds
    assert _step(moments="int8").seconds < _step(moments="bf16").seconds
    assert step.seconds < _step(clip=True).seconds
    assert step.seconds < _step(cpu_share=0.0).seconds
    assert step.seconds < _step(cpu_share=1.0).seconds
    assert _step(weights="resident").seconds < step.seconds
    wider = msgspec.structs.replace(H200, memory_bytes=2 * H200.memory_bytes)
    assert _step(rates=wider).seconds < step.seconds


def test_phases_add_up() -> None:
    for step in (_step(), _step(clip=True), _step(on_cpu=True, cpu_share=1.0)):
        assert [phase.name for phase in step.phases] == ["forward", "head", "backward", "update"]
        assert step.seconds == pytest.approx(sum(phase.seconds for phase in step.phases))
        assert step.tokens_per_second == pytest.approx(8192 / step.seconds)


def test_auto_is_the_best_share_of_a_plan() -> None:
    spec = _spec()
    plan = plan_run(spec, LLAMA_3B, _machine())
    best = step_time(spec, LLAMA_3B, plan, H200)
    assert 0.0 < best.cpu_share < 1.0
    for engine, share in (("cpu", 1.0), ("gpu", 0.0)):
        spec = _spec(FullMethod(optimizer_engine=engine))  # type: ignore[arg-type]  # of the two
        alone = step_time(spec, LLAMA_3B, plan_run(spec, LLAMA_3B, _machine()), H200)
        assert alone.cpu_share == share
        assert best.seconds < alone.seconds


def test_a_cpu_does_one_after_the_other() -> None:
    shape, spec = SHAPES["smollm2-135m"], _spec()
    rates = rates_of("", cpu_threads=16)
    step = step_time(spec, shape, plan_run(spec, shape, _machine(0)), rates)
    assert step.critical_tokens is None
    update = step.phases[-1]
    assert step.seconds == pytest.approx(step.compute_seconds + update.seconds)
    # Reads master, moments and gradient, writes master and moments.
    assert update.busy_seconds["cpu"] == pytest.approx(
        28 * shape.total_params / rates.cpu_adamw_bytes
    )


def test_adapters_cost_less_than_all_weights() -> None:
    spec = _spec(LoraMethod())
    kept = step_time(spec, LLAMA_3B, plan_run(spec, LLAMA_3B, _machine(300)), H200)
    recomputed = step_time(spec, LLAMA_3B, plan_run(spec, LLAMA_3B, _machine(12)), H200)
    assert kept.seconds < recomputed.seconds < _step().compute_seconds
    assert kept.critical_tokens is None


def test_adapters_on_a_base_that_slides_wait_for_the_link() -> None:
    spec = _spec(LoraMethod())
    recomputed = step_time(spec, LLAMA_3B, plan_run(spec, LLAMA_3B, _machine(12)), H200)
    slid = step_time(spec, LLAMA_3B, plan_run(spec, LLAMA_3B, _machine(8)), H200)
    assert recomputed.seconds <= slid.seconds
    assert slid.compute_seconds == pytest.approx(recomputed.seconds)
    assert [phase.name for phase in slid.phases] == ["forward", "head", "backward"]
    assert slid.critical_tokens is not None
    few = _spec(LoraMethod(), batch_size=1, max_seq_len=max(16, slid.critical_tokens // 4))
    short = step_time(few, LLAMA_3B, plan_run(few, LLAMA_3B, _machine(8)), H200)
    assert short.bound_by == "link"
    assert short.seconds > 1.8 * short.compute_seconds


@pytest.mark.parametrize(
    ("card", "teraflops", "estimated"),
    [
        ("NVIDIA H200", 549, False),
        ("NVIDIA GeForce RTX 4090", 150, False),
        ("NVIDIA GeForce RTX 5090", 190, True),
        ("AMD Radeon RX 7900 XT", 60, True),
        ("AMD Radeon RX 7900 XTX", 60, True),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 60, True),
        ("a card of 24 GB", 60, True),
    ],
)
def test_rates_of_cards(card: str, teraflops: float, estimated: bool) -> None:
    rates = rates_of(card, cpu_threads=8)
    assert rates.compute_flops == pytest.approx(teraflops * 1e12)
    assert rates.estimated == estimated
    assert ("estimate" in rates.source) == estimated


def test_the_h200_machine_updates_as_fast_as_measured() -> None:
    assert H200.cpu_adamw_bytes / 26 == pytest.approx(3.9e9)
    assert H200.duplex_bytes / 12 == pytest.approx(3.9e9, rel=0.03)


def test_what_is_known_of_a_machine_counts() -> None:
    slow = rates_of("NVIDIA GeForce RTX 4090", cpu_threads=8, pcie_generation=3, pcie_width=8)
    assert slow.link_bytes == pytest.approx(6.24e9)
    full = rates_of("NVIDIA GeForce RTX 4090", cpu_threads=8, pcie_generation=4, pcie_width=16)
    assert full.link_bytes == pytest.approx(25e9, rel=0.01)
    measured = rates_of("NVIDIA GeForce RTX 4090", cpu_threads=8, copy_bytes_per_second=70e9)
    assert measured.cpu_adamw_bytes == pytest.approx(H200.cpu_adamw_bytes)
    assert "measured copy" in measured.source
    cores = [rates_of("", cpu_threads=threads).compute_flops for threads in (1, 8)]
    assert cores[1] == pytest.approx(8 * cores[0])
