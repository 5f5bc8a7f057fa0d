from collections.abc import Callable
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
from slidepack.engine.bench_kernels.measure import Limit, measure
from slidepack.engine.bench_kernels.operation import Operation, Pass, Prepared, Setting, Sizes, Unit
from slidepack.engine.bench_kernels.optimizer import OPTIMIZER, adamw_fp32
from slidepack.kernels import join_master

_TINY = Sizes(tokens=5, width=64, ffn=96, vocab=50, heads=4, kv_heads=2, head=16, params=2048)
_BUILDERS = (*ELEMENTWISE, *OPTIMIZER, *HEAD)
_COUNTERPARTS = ("eager", "torch_fused", "compilable")

Builder = Callable[[Setting], Operation]


def _setting() -> Setting:
    return Setting(
        sizes=_TINY,
        device=torch.device("cpu"),
        dtype=torch.float32,
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="need a GPU"):
        run.bench_kernels()


def test_the_versions_name_torch_and_triton() -> None:
    versions = run.versions()
    assert versions["torch"] == torch.__version__
    assert versions["triton"]
