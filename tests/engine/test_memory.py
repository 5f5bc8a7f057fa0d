"""Plans of memory: never over the budget, never needlessly small, and refusals with figures."""

import random
import re
from typing import Any

import msgspec
import pytest

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import (
    LORA_TARGETS,
    DatasetRef,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
)
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.memory import (
    GIB,
    Machine,
    activation_bytes_per_token,
    plan_in_detail,
    plan_run,
    run_precision,
    tighten,
)
from slidepack.engine.shape import ModelShape, RopeShape

SHAPE = SHAPES["smollm2-135m"]


def _spec(**changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "name": "n",
        "base": ModelRef(model_id="m", path="m", content_hash="-"),
        "dataset": DatasetRef(dataset_id="d", path="d", content_hash="-"),
        "method": LoraMethod(),
        "batch_size": 4,
        "max_seq_len": 512,
        "steps": 1,
    }
    return JobSpec(**(values | changes))


def _cpu(free: float) -> Machine:
    return Machine(device="cpu", device_free_bytes=0, ram_available_bytes=int(free), cpu_threads=3)


def _gpu(free: float, ram: float = 64 * GIB) -> Machine:
    return Machine(
        device="cuda:1",
        device_free_bytes=int(free),
        ram_available_bytes=int(ram),
        cpu_threads=3,
    )


def _peak(plan: RunPlan) -> int:
    return plan.predicted_device_bytes or plan.predicted_host_bytes


def _fits(spec: JobSpec, machine: Machine, shape: ModelShape = SHAPE) -> bool:
    try:
        plan_run(spec, shape, machine)
    except SlidepackError as error:
        assert error.report.code in ("RAM-TOO-SMALL", "GPU-OUT-OF-MEMORY")
        return False
    return True


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [
        ("auto", "cpu", "fp32"),
        ("auto", "cuda:0", "bf16"),
        ("fp32", "cuda:0", "fp32"),
        ("bf16", "cpu", "bf16"),
    ],
)
def test_precision(precision: Any, device: str, expected: str) -> None:
    assert run_precision(_spec(method=LoraMethod(base_precision=precision)), device) == expected


@pytest.mark.parametrize(("device", "expected"), [("cpu", "fp32"), ("cuda:0", "bf16")])
def test_precision_of_full_fine_tuning(device: str, expected: str) -> None:
    assert run_precision(_spec(method=FullMethod()), device) == expected


def test_what_is_not_built_says_so() -> None:
    with pytest.raises(SlidepackError) as caught:
        plan_run(_spec(method=LoraMethod(base_precision="nf4")), SHAPE, _cpu(64 * GIB))
    assert caught.value.report.code == "RUN-METHOD-UNSUPPORTED"


def test_room_for_everything_keeps_everything() -> None:
    plan = plan_run(_spec(), SHAPE, _cpu(64 * GIB))
    assert plan.layer_activations == ("keep",) * 30
    assert plan.layer_weights == ("device",) * 30
    assert (plan.device, plan.precision, plan.cpu_threads) == ("cpu", "fp32", 3)
    assert plan.micro_batch_tokens == 4 * 512
    assert plan.predicted_device_bytes == 0
    assert "kept" in plan.reason
    assert msgspec.json.decode(msgspec.json.encode(plan), type=RunPlan) == plan


def test_less_room_recomputes_and_then_cuts_the_step() -> None:
    spec = _spec(batch_size=32)
    kept = _peak(plan_run(spec, SHAPE, _gpu(400 * GIB)))
    seen = []
    for share in range(101, 0, -1):
        machine = _gpu(kept / 0.9 * share / 100)
        if not _fits(spec, machine):
            break
        plan = plan_run(spec, SHAPE, machine)
        seen.append((plan.layer_activations[0], plan.micro_batch_tokens == 32 * 512))
    assert list(dict.fromkeys(seen)) == [
        ("keep", True),
        ("recompute", True),
        ("recompute", False),
    ]


@pytest.mark.parametrize(
    ("machine", "code"),
    [
        (_cpu(1 * GIB), "RAM-TOO-SMALL"),
        (_gpu(1 * GIB), "GPU-OUT-OF-MEMORY"),
        (_gpu(0), "GPU-OUT-OF-MEMORY"),
        (_gpu(80 * GIB, ram=0.3 * GIB), "RAM-TOO-SMALL"),
    ],
)
def test_a_refusal_says_the_figures(machine: Machine, code: str) -> None:
    with pytest.raises(SlidepackError) as caught:
        plan_run(_spec(), SHAPE, machine)
    report = caught.value.report
    assert report.code == code
    figures = re.search(r"about ([\d.]+) GiB, ([\d.]+) GiB are free", report.why)
    assert figures is not None
    needed, free = map(float, figures.groups())
    assert needed > free * 0.9
    assert report.fix


@pytest.mark.parametrize("machine", [_cpu(1000 * GIB), _gpu(1000 * GIB, ram=1000 * GIB)])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("batch_size", [1, 2, 3, 8, 64]),
        ("max_seq_len", [16, 17, 128, 1024, 8192]),
        ("method", [LoraMethod(rank=rank) for rank in (1, 2, 8, 64, 1024)]),
        ("method", [LoraMethod(targets=LORA_TARGETS[:count]) for count in range(1, 8)]),
    ],
)
def test_more_work_needs_more_memory(machine: Machine, name: str, values: list[Any]) -> None:
    plans = [plan_run(_spec(**{name: value}), SHAPE, machine) for value in values]
    peaks = [_peak(plan) for plan in plans]
    assert all(plan.layer_activations[0] == "keep" for plan in plans)
    assert peaks == sorted(set(peaks))
    disks = [plan.predicted_disk_bytes for plan in plans]
    assert disks == sorted(disks)


def test_a_longer_limit_than_the_models_costs_nothing() -> None:
    machine = _cpu(1000 * GIB)
    assert plan_run(_spec(max_seq_len=8192), SHAPE, machine) == plan_run(
        _spec(max_seq_len=100_000), SHAPE, machine
    )


def test_the_parts_add_up_to_the_prediction() -> None:
    for machine in (_cpu(64 * GIB), _gpu(64 * GIB)):
        plan, need = plan_in_detail(_spec(), SHAPE, machine)
        assert plan == plan_run(_spec(), SHAPE, machine)
        assert (need.device_bytes, need.host_bytes, need.disk_bytes) == (
            plan.predicted_device_bytes,
            plan.predicted_host_bytes,
            plan.predicted_disk_bytes,
        )
        assert need.device or machine.device == "cpu"


def test_adapters_have_no_smaller_plan() -> None:
    assert tighten(plan_run(_spec(), SHAPE, _gpu(64 * GIB)), _spec(), SHAPE) is None


def test_recomputing_holds_less_than_keeping() -> None:
    for width in (2, 4):
        keep = activation_bytes_per_token(SHAPE, "keep", width)
        assert activation_bytes_per_token(SHAPE, "recompute", width) < keep / 5


@pytest.mark.parametrize("field", ["sandwich_norms", "qk_norm"])
@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_a_norm_more_holds_more(field: str, policy: Any) -> None:
    more = msgspec.structs.replace(SHAPE, **{field: True})
    plain = activation_bytes_per_token(SHAPE, policy, 2)
    layers = 30 if policy == "keep" else 2
    width = 2 * 576 if field == "sandwich_norms" else 12 * 64
    assert activation_bytes_per_token(more, policy, 2) - plain == layers * width * 2


def _random_shape(rng: random.Random) -> ModelShape:
    heads = rng.choice([1, 2, 4, 9, 32])
    return ModelShape(
        architecture="LlamaForCausalLM",
        num_layers=rng.choice([1, 2, 16, 80]),
        hidden=rng.choice([8, 576, 4096]),
        ffn=rng.choice([8, 1536, 14336]),
        num_heads=heads,
        num_kv_heads=rng.choice([d for d in range(1, heads + 1) if heads % d == 0]),
        head_dim=rng.choice([2, 64, 128]),
        vocab=rng.choice([10, 49152, 128256]),
        max_positions=rng.choice([32, 2048, 131072]),
        rms_eps=1e-5,
        rope=RopeShape(kind="default", theta=1e4),
        tied_head=rng.random() < 0.5,
    )


def test_no_plan_is_over_its_budget() -> None:
    rng = random.Random(3)
    outcomes: set[object] = set()
    for _ in range(3000):
        shape = _random_shape(rng)
        spec = _spec(
            batch_size=rng.randrange(1, 65),
            max_seq_len=rng.choice([16, 500, 4096]),
            method=LoraMethod(rank=rng.choice([1, 16, 256])),
        )
        free = 2.0 ** rng.uniform(29, 38)
        on_cpu = rng.random() < 0.5
        machine = _cpu(free) if on_cpu else _gpu(free, ram=2.0 ** rng.uniform(28, 38))
        if not _fits(spec, machine, shape):
            outcomes.add("refused")
            # What does not fit does not fit with more of anything.
            bigger = msgspec.structs.replace(spec, batch_size=spec.batch_size * 2)
            assert not _fits(bigger, machine, shape)
            continue
        plan = plan_run(spec, shape, machine)
        longest = min(spec.max_seq_len, shape.max_positions)
        cut = plan.micro_batch_tokens < spec.batch_size * longest
        outcomes.add((plan.layer_activations[0], cut))
        assert plan.predicted_host_bytes <= 0.9 * machine.ram_available_bytes
        assert plan.predicted_device_bytes <= 0.9 * machine.device_free_bytes
        assert (plan.predicted_device_bytes == 0) == on_cpu
        assert longest <= plan.micro_batch_tokens <= spec.batch_size * longest
        assert len(plan.layer_activations) == len(plan.layer_weights) == shape.num_layers
        roomier = msgspec.structs.replace(
            machine,
            ram_available_bytes=machine.ram_available_bytes * 2,
            device_free_bytes=machine.device_free_bytes * 2,
        )
        assert plan_run(spec, shape, roomier).micro_batch_tokens >= plan.micro_batch_tokens
    assert outcomes == {"refused", ("keep", False), ("recompute", False), ("recompute", True)}
