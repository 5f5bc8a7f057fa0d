import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from slidepack.engine.bench_kernels import run
from slidepack.engine.bench_kernels.elementwise import (
    ELEMENTWISE,
    rms_norm_backward,
    rms_norm_forward,
)
from slidepack.engine.bench_kernels.head import HEAD, frozen_head
from slidepack.engine.bench_kernels.lora import (
    LoraCase,
    LoraShape,
    lora_case,
    lora_row,
    lora_shapes,
)
from slidepack.engine.bench_kernels.measure import GpuMeter, Limit, measure
from slidepack.engine.bench_kernels.operation import (
    LLAMA_8B,
    Operation,
    Pass,
    Prepared,
    Setting,
    Sizes,
    Unit,
)
from slidepack.engine.bench_kernels.optimizer import OPTIMIZER, adamw_fp32
from slidepack.kernels import join_master

_TINY = Sizes(tokens=5, width=64, ffn=96, vocab=50, heads=4, kv_heads=2, head=16, params=2048)
_BUILDERS = (*ELEMENTWISE, *OPTIMIZER, *HEAD)
_COUNTERPARTS = ("eager", "torch_fused", "compilable")
_LORA = LoraShape(tokens=61, in_width=48, out_width=33, adapters=7)

Builder = Callable[[Setting], Operation]


def _setting(dtype: torch.dtype = torch.float32) -> Setting:
    return Setting(
        sizes=_TINY,
        device=torch.device("cpu"),
        dtype=dtype,
        generator=torch.Generator().manual_seed(0),
    )


def _results(timed: Pass) -> tuple[Tensor, ...]:
    result = timed.prepare().call()
    tensors = (result,) if isinstance(result, Tensor) else tuple(result)
    if tensors[0].dtype == torch.bfloat16:
        # Planes are one unit apart where the master lies on a border; the master itself is not.
        return join_master(tensors[0], tensors[1]), *tensors[2:]
    return tensors


class CountingMeter:
    """Runs each call twice, as the real one runs it many times; ours takes 2 ms, others 3."""

    def __init__(self) -> None:
        self.timed = 0

    def limit(self, unit: Unit, amount: int) -> Limit:
        return Limit(f"{amount} {unit} in 1 ms", 1.0)

    def median_ms(self, call: Callable[[], Any]) -> float:
        call()
        call()
        self.timed += 1
        return 2.0 if self.timed == 1 else 3.0

    def interleaved_ms(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        for call in (*calls, *calls):
            call()
        return [2.0, 2.5, 8.0][: len(calls)]

    def extra_bytes(self, prepared: Prepared) -> int:
        prepared.call()
        return 10 + self.timed


@pytest.mark.parametrize("counterpart", _COUNTERPARTS)
@pytest.mark.parametrize("build", _BUILDERS, ids=lambda build: build.__name__)
def test_a_counterpart_computes_what_ours_does(build: Builder, counterpart: str) -> None:
    operation = build(_setting())
    other: Pass | None = getattr(operation, counterpart)
    if other is None:
        assert counterpart != "eager"
        return
    expected = _results(other)
    ours = _results(operation.ours)
    assert len(ours) == len(expected)
    for mine, theirs in zip(ours, expected, strict=True):
        if mine.is_floating_point():
            torch.testing.assert_close(mine, theirs)
        else:
            # A code that lies on a border goes either way.
            assert (mine.int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize("build", OPTIMIZER, ids=lambda build: build.__name__)
def test_a_step_leaves_the_tensors_of_its_counterparts_alone(build: Builder) -> None:
    operation = build(_setting())
    before = [x.clone() for x in operation.ours.inputs]
    operation.ours.prepare().call()
    operation.eager.prepare().call()
    assert all(torch.equal(x, y) for x, y in zip(before, operation.ours.inputs, strict=True))


@pytest.mark.parametrize(
    "build",
    [rms_norm_forward, rms_norm_backward, adamw_fp32, frozen_head],
    ids=lambda build: build.__name__,
)
def test_the_row_of_an_operation(build: Builder) -> None:
    operation = build(_setting())
    row = measure(operation, CountingMeter(), with_liger=False, backend="aot_eager")
    assert row["operation"] == operation.name
    assert row["limit"] == f"{operation.amount} {operation.unit} in 1 ms"
    assert row["milliseconds"] == 2.0
    assert row["share"] == 0.5
    assert row["eager_ratio"] == row["compile_ratio"] == 1.5
    assert row["torch_fused_ratio"] == (None if operation.torch_fused is None else 1.5)
    assert row["liger_ratio"] is None
    assert (row["extra_bytes"], row["eager_extra_bytes"]) == (10, 11)
    assert row["failures"] == {}


def test_a_counterpart_that_fails_is_named_and_the_rest_is_measured() -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("it does not fit\nand here is a long report")

    def fine(x: Tensor) -> Tensor:
        return x + 1.0

    inputs = (torch.ones(3),)
    operation = Operation(
        name="one",
        amount=24,
        ours=Pass(function=fine, inputs=inputs),
        eager=Pass(function=fine, inputs=inputs),
        torch_fused=Pass(function=broken, inputs=inputs),
    )
    row = measure(operation, CountingMeter(), with_liger=False, backend="aot_eager")
    assert row["failures"] == {"torch_fused": "RuntimeError: it does not fit"}
    assert row["torch_fused_ratio"] is None
    assert row["compile_ratio"] == 1.5


def test_an_operation_of_ours_that_fails_ends_the_run() -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("ours")

    broken_pass = Pass(function=broken, inputs=(torch.ones(3),))
    operation = Operation(name="one", amount=24, ours=broken_pass, eager=broken_pass)
    with pytest.raises(RuntimeError, match="ours"):
        measure(operation, CountingMeter(), with_liger=False)


def test_calls_that_are_compared_take_turns_on_a_busy_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    clock = itertools.count()

    class Event:
        def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
            self.at = 0

        def record(self) -> None:
            self.at = next(clock)

        def elapsed_time(self, other: "Event") -> float:
            return float(other.at - self.at)

    class Flush:
        def zero_(self) -> None:
            log.append("fill")

    def slow() -> None:
        log.append("slow")
        for _ in range(5):
            next(clock)

    seconds = itertools.count()
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(GpuMeter, "_flush", lambda self: Flush())
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds) * 1e-3)
    times = GpuMeter(torch.device("cpu")).interleaved_ms([lambda: log.append("quick"), slow])
    assert times == [1.0, 6.0]
    # A call takes the host as long as a fill takes the GPU: two with the margin, and one more.
    round_of_runs = ["fill", "fill", "fill", "quick", "fill", "fill", "fill", "slow"]
    assert log[-16:] == round_of_runs * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="need a GPU"):
        run.bench_kernels()
    with pytest.raises(RuntimeError, match="need a GPU"):
        run.bench_lora_linear()


def test_the_lora_shapes_are_those_of_llama_8b() -> None:
    shapes = [(shape.tokens, shape.in_width, shape.out_width) for shape in lora_shapes(LLAMA_8B)]
    assert shapes == [
        (4096, 4096, 4096),
        (4096, 4096, 14336),
        (16384, 4096, 4096),
        (16384, 4096, 14336),
    ]


@pytest.mark.parametrize("shape", [*lora_shapes(LLAMA_8B), _LORA], ids=str)
def test_adapters_of_a_lora_shape_are_mixed(shape: LoraShape) -> None:
    bounds = shape.bounds
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(lengths)) == (0, shape.tokens, shape.adapters)
    assert min(lengths) > 0
    assert max(lengths) > 3 * min(lengths)
    assert {rank for (rank,) in shape.layout.ranks} == {8, 16, 32, 64, 128}


def test_the_loop_over_adapters_computes_what_ours_does() -> None:
    case = lora_case(_setting(torch.float64), _LORA)
    y, dx = case.ours()()
    loop_y, loop_dx, *loop_grads = case.loop()()
    torch.testing.assert_close(y, loop_y)
    torch.testing.assert_close(dx, loop_dx)
    weights = case.weights
    grads = [
        grad
        for i, start in enumerate(weights.starts)
        for pair in case.tables.layout.views(weights.grads, start, i)
        for grad in pair
    ]
    assert len(grads) == len(loop_grads) == 2 * _LORA.adapters
    for ours, theirs in zip(grads, loop_grads, strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs)


def test_the_base_is_the_linear_alone() -> None:
    case = lora_case(_setting(torch.float64), _LORA)
    y, dx = case.base()()
    expected = torch.nn.functional.linear(case.x, case.weight)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(dx, torch.autograd.grad(expected, case.x, case.dy)[0])
    assert (y - case.ours()()[0]).abs().max() > 1e-3


def test_the_row_of_a_lora_shape() -> None:
    assert lora_row(_setting(), _LORA, CountingMeter()) == {
        "tokens": 61,
        "in": 48,
        "out": 33,
        "adapters": 7,
        "base_ms": 2.0,
        "ours_ms": 2.5,
        "overhead": 0.25,
        "loop_ms": 8.0,
        "loop_overhead": 3.0,
        "extra_bytes": 10,
    }


def test_a_loop_that_does_not_fit_leaves_its_figures_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large() -> tuple[Tensor, ...]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(LoraCase, "loop", lambda self: too_large)
    row = lora_row(_setting(), _LORA, CountingMeter())
    assert (row["overhead"], row["loop_ms"], row["loop_overhead"]) == (0.25, None, None)


def test_the_versions_name_torch_and_triton() -> None:
    versions = run.versions()
    assert versions["torch"] == torch.__version__
    assert versions["triton"]
