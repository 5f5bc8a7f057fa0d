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
from slidepack.engine.memory_lora import plan_lanes
from slidepack.engine.memory_parts import HEADROOM, logit_bytes
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
        ("nf4", "cpu", "fp32"),
        ("nf4", "cuda:0", "bf16"),
    ],
)
def test_precision(precision: Any, device: str, expected: str) -> None:
    assert run_precision(_spec(method=LoraMethod(base_precision=precision)), device) == expected


@pytest.mark.parametrize(("device", "expected"), [("cpu", "fp32"), ("cuda:0", "bf16")])
def test_precision_of_full_fine_tuning(device: str, expected: str) -> None:
    assert run_precision(_spec(method=FullMethod()), device) == expected


def test_a_base_in_4_bits_takes_less() -> None:
    shape = SHAPES["llama-8b"]
    plain, plain_need = plan_in_detail(_spec(), shape, _gpu(80 * GIB))
    small, need = plan_in_detail(
        _spec(method=LoraMethod(base_precision="nf4")), shape, _gpu(80 * GIB)
    )
    assert (plain.base_format, small.base_format) == ("plain", "nf4")
    assert need.device.keys() == plain_need.device.keys()
    changed = {part for part in need.device if need.device[part] != plain_need.device[part]}
    assert changed == {"frozen weights"}
    # The embedding and the head stay as they are.
    ends = 2 * shape.vocab * shape.hidden * 2
    layers = plain_need.device["frozen weights"] - ends
    assert 0.25 < (need.device["frozen weights"] - ends) / layers < 0.35


def test_room_for_everything_keeps_everything() -> None:
    plan = plan_run(_spec(), SHAPE, _cpu(64 * GIB))
    assert plan.layer_activations == ("keep",) * 30
    assert plan.layer_weights == ("device",) * 30
    assert (plan.device, plan.precision, plan.cpu_threads) == ("cpu", "fp32", 3)
    assert plan.micro_batch_tokens == 4 * 512
    assert plan.predicted_device_bytes == 0
    assert "kept" in plan.reason
    assert msgspec.json.decode(msgspec.json.encode(plan), type=RunPlan) == plan


def test_less_room_cuts_the_step_then_recomputes_then_lets_the_base_slide() -> None:
    spec, shape = _spec(batch_size=32), SHAPES["llama-3b"]
    kept = _peak(plan_run(spec, shape, _gpu(400 * GIB)))
    seen = []
    for share in range(1010, 0, -1):
        machine = _gpu(kept / 0.9 * share / 1000)
        if not _fits(spec, machine, shape):
            break
        plan = plan_run(spec, shape, machine)
        policy = "slides" if plan.slide is not None else plan.layer_activations[0]
        seen.append((policy, plan.micro_batch_tokens == 32 * 512))
    assert list(dict.fromkeys(seen)) == [
        ("keep", True),
        ("keep", False),
        ("recompute", True),
        ("recompute", False),
        ("slides", True),
        ("slides", False),
    ]


@pytest.mark.parametrize(
    ("batch", "length", "enough"),
    [(32, 512, 2048), (3, 700, 2048), (1, 512, 512), (3, 512, 1536), (4, 4096, 4096)],
)
def test_activations_are_kept_where_a_pass_that_is_large_enough_fits(
    batch: int, length: int, enough: int
) -> None:
    spec = _spec(batch_size=batch, max_seq_len=length)
    _, need = plan_in_detail(spec, SHAPE, _gpu(400 * GIB))
    fixed = need.device_bytes - need.device["activations"] - need.device["logits of a chunk"]
    passing = enough * activation_bytes_per_token(SHAPE, "keep", 2, on_cpu=False)
    least = (fixed + passing + logit_bytes(SHAPE, enough, 2, on_cpu=False)) / HEADROOM
    just = plan_run(spec, SHAPE, _gpu(least + 10))
    assert (just.layer_activations[0], just.micro_batch_tokens) == ("keep", enough)
    less = plan_run(spec, SHAPE, _gpu(least - 10))
    assert less.layer_activations[0] == "recompute"
    assert less.micro_batch_tokens >= min(batch * length, 4 * enough)


def test_a_pass_is_no_larger_than_is_of_use() -> None:
    roomy = _gpu(4000 * GIB, ram=4000 * GIB)
    long = msgspec.structs.replace(SHAPE, max_positions=131_072)
    for batch, length, tokens in ((64, 512, 16_384), (1, 20_000, 20_000), (4, 20_000, 20_000)):
        plan = plan_run(_spec(batch_size=batch, max_seq_len=length), long, roomy)
        assert (plan.layer_activations[0], plan.micro_batch_tokens) == ("keep", tokens)
        cut = f"at most {tokens} of a step's {batch * length} tokens at a time"
        assert (cut in plan.reason) == (tokens < batch * length)


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
    for on_cpu in (True, False):
        keep, recompute = (
            activation_bytes_per_token(SHAPE, policy, 2, on_cpu=on_cpu)
            for policy in ("keep", "recompute")
        )
        assert recompute < keep / 5


@pytest.mark.parametrize("field", ["sandwich_norms", "qk_norm"])
@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_a_norm_more_holds_more(field: str, policy: Any) -> None:
    more = msgspec.structs.replace(SHAPE, **{field: True})
    plain = activation_bytes_per_token(SHAPE, policy, 2, on_cpu=True)
    layers = 30 if policy == "keep" else 2
    width = 2 * 576 if field == "sandwich_norms" else 12 * 64
    assert activation_bytes_per_token(more, policy, 2, on_cpu=True) - plain == layers * width * 2


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


def _random_spec(rng: random.Random, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "batch_size": rng.randrange(1, 65),
        "max_seq_len": rng.choice([16, 500, 4096]),
        "method": LoraMethod(rank=rng.choice([1, 16, 256])),
    }
    return _spec(**(values | changes))


def _quality(plan: RunPlan) -> tuple[int, ...]:
    """Order plans, the better the higher: where the base is, what is kept, how large a pass is."""
    if plan.slide is not None:
        return 0, plan.micro_batch_tokens, plan.slide.slots, plan.slide.rows == "device"
    return 1, plan.layer_activations[0] == "keep", plan.micro_batch_tokens


def _roomier(machine: Machine, factor: float) -> Machine:
    return msgspec.structs.replace(
        machine,
        ram_available_bytes=int(machine.ram_available_bytes * factor),
        device_free_bytes=int(machine.device_free_bytes * factor),
    )


def _planned(specs: list[JobSpec], shape: ModelShape, machine: Machine) -> RunPlan | None:
    try:
        return plan_lanes(specs, shape, machine)[0]
    except SlidepackError as error:
        assert error.report.code in ("RAM-TOO-SMALL", "GPU-OUT-OF-MEMORY")
        return None


def _assert_in_budget(
    plan: RunPlan, specs: list[JobSpec], shape: ModelShape, machine: Machine
) -> None:
    assert plan.predicted_host_bytes <= HEADROOM * machine.ram_available_bytes
    if machine.device == "cpu":
        assert plan.predicted_device_bytes == 0
    else:
        assert 0 < plan.predicted_device_bytes <= HEADROOM * machine.device_free_bytes
    lengths = [min(spec.max_seq_len, shape.max_positions) for spec in specs]
    step = sum(spec.batch_size * length for spec, length in zip(specs, lengths, strict=True))
    assert max(lengths) <= plan.micro_batch_tokens <= max(max(lengths), min(step, 16_384))
    assert len(plan.layer_activations) == len(plan.layer_weights) == shape.num_layers


def _assert_not_needlessly_small(
    plan: RunPlan, specs: list[JobSpec], shape: ModelShape, machine: Machine
) -> None:
    """Check that neither one token more nor a better policy would have fitted."""
    if plan.slide is not None:
        return
    width = 4 if plan.precision == "fp32" else 2
    on_cpu = machine.device == "cpu"
    usable = HEADROOM * (machine.ram_available_bytes if on_cpu else machine.device_free_bytes)
    lengths = [min(spec.max_seq_len, shape.max_positions) for spec in specs]
    step = sum(spec.batch_size * length for spec, length in zip(specs, lengths, strict=True))
    most = max(max(lengths), min(step, 16_384))
    policy = plan.layer_activations[0]
    per_token = activation_bytes_per_token(shape, policy, width, on_cpu=on_cpu)

    def logits(tokens: int) -> int:
        return logit_bytes(shape, tokens, width, on_cpu=on_cpu)

    here = plan.micro_batch_tokens
    if here < most:
        more = per_token + logits(here + 1) - logits(here)
        assert _peak(plan) + more > usable - 1
    if policy == "recompute":
        fixed = _peak(plan) - here * per_token - logits(here)
        enough = max(max(lengths), min(most, 2048))
        kept = activation_bytes_per_token(shape, "keep", width, on_cpu=on_cpu)
        assert fixed + enough * kept + logits(enough) > usable - 1


def test_no_plan_is_over_its_budget_or_needlessly_small() -> None:
    rng = random.Random(3)
    outcomes: set[object] = set()
    for _ in range(3000):
        shape = _random_shape(rng)
        specs = [_random_spec(rng) for _ in range(rng.choice([1, 1, 2, 5]))]
        free = 2.0 ** rng.uniform(29, 38)
        on_cpu = rng.random() < 0.5
        machine = _cpu(free) if on_cpu else _gpu(free, ram=2.0 ** rng.uniform(28, 38))
        plan = _planned(specs, shape, machine)
        if plan is None:
            outcomes.add("refused")
            # What does not fit does not fit with more of anything.
            more = msgspec.structs.replace(specs[0], batch_size=specs[0].batch_size * 2)
            assert _planned([more, *specs[1:]], shape, machine) is None
            assert _planned([*specs, specs[0]], shape, machine) is None
            continue
        outcomes.add("slides" if plan.slide is not None else plan.layer_activations[0])
        _assert_in_budget(plan, specs, shape, machine)
        _assert_not_needlessly_small(plan, specs, shape, machine)
        for factor in (1.01, 2.0):
            roomier = _planned(specs, shape, _roomier(machine, factor))
            assert roomier is not None
            assert _quality(roomier) >= _quality(plan)
    assert outcomes == {"refused", "keep", "recompute", "slides"}


@pytest.mark.parametrize("machine", [_cpu(64 * GIB), _gpu(64 * GIB)], ids=["cpu", "gpu"])
def test_lanes_add_up(machine: Machine) -> None:
    methods = [
        LoraMethod(rank=4),
        LoraMethod(rank=64, dropout=0.5, rslora=True),
        LoraMethod(rank=1, targets=("v_proj",)),
    ]
    specs = [
        _spec(method=method, batch_size=number, max_seq_len=length)
        for number, (method, length) in enumerate(zip(methods, (512, 100, 700), strict=True), 1)
    ]
    plan, need = plan_lanes(specs, SHAPE, machine)
    own = [plan_lanes([spec], SHAPE, machine) for spec in specs]
    where = "host" if machine.device == "cpu" else "device"
    adapters = "adapters, their gradients and moments"
    parts = [getattr(one, where) for _, one in own]
    assert getattr(need, where)[adapters] == sum(part[adapters] for part in parts)
    assert getattr(need, where)["frozen weights"] == parts[0]["frozen weights"]
    assert need.disk_bytes == sum(one.disk_bytes for _, one in own)
    # Their steps share passes, and the longest row is one lane's.
    assert plan.micro_batch_tokens == 1 * 512 + 2 * 100 + 3 * 700
    assert plan_lanes(specs[::-1], SHAPE, machine) == (plan, need)
    assert own[0] == plan_in_detail(specs[0], SHAPE, machine)


def test_lanes_that_do_not_fit_together_are_refused_with_the_figures() -> None:
    spec = _spec(method=LoraMethod(rank=1024), batch_size=1)
    machine = _cpu(24 * GIB)
    assert plan_lanes([spec] * 3, SHAPE, machine)
    _, alone = plan_lanes([spec], SHAPE, machine)
    adapter = alone.host["adapters, their gradients and moments"]
    with pytest.raises(SlidepackError) as caught:
        plan_lanes([spec] * 9, SHAPE, machine)
    report = caught.value.report
    assert report.code == "RAM-TOO-SMALL"
    figures = re.search(r"about ([\d.]+) GiB, 24\.0 GiB are free", report.why)
    assert figures is not None
    assert float(figures.group(1)) > 9 * adapter / GIB > 24
