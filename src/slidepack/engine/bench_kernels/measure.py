"""Time, extra memory and limits of a GPU, and the row that they make of an operation."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch
import torch._functorch.config
from torch import Tensor
from triton.errors import TritonError

from slidepack.engine.bench_kernels.operation import Operation, Pass, Prepared, Unit

__all__ = ["GpuMeter", "Limit", "Meter", "current_gpu", "measure"]

_FLUSH_BYTES: Final = 1 << 30
"""Written before each run. It empties the L2 cache, as `triton.testing.do_bench` does by 256 MiB,
and keeps the GPU busy for a quarter of a millisecond and more: the host has then queued the whole
run before it starts, and no counterpart pays for its Python, as torch.compile's guards would."""
_WARM_UP_RUNS: Final = 10
_TIMED_MS: Final = 300.0
_MIN_RUNS: Final = 10
_MAX_RUNS: Final = 100
_ROUNDS: Final = 25
_HEAD_START: Final = 1.25
"""Of the host's time for a call, as it varies."""
_SQUARE: Final = 8192
_RIVAL_FAILURES: Final = (
    RuntimeError, TypeError, ValueError, AttributeError, AssertionError, ImportError, TritonError,
)  # fmt: skip
"""What another project's code, or a card too small for it, fails with."""


class Limit(NamedTuple):
    """What the device itself does in the same run."""

    text: str
    milliseconds: float
    """Of the operation's amount at this limit."""


class Meter(Protocol):
    """Measures calls."""

    def limit(self, unit: Unit, amount: int) -> Limit:
        """Measure the limit of an amount."""

    def median_ms(self, call: Callable[[], Any]) -> float:
        """Measure the time of a call."""

    def interleaved_ms(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """Measure calls against each other."""

    def extra_bytes(self, prepared: Prepared) -> int:
        """Measure the memory that a call holds at its peak beyond arguments and results."""


def current_gpu() -> torch.device:
    """Return the GPU that is measured.

    Raises:
        RuntimeError: there is no GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("These timings need a GPU, and torch sees none.")
    return torch.device("cuda", torch.cuda.current_device())


class GpuMeter:
    """Measures on one GPU."""

    def __init__(self, device: torch.device) -> None:
        """Make a meter of one GPU."""
        self._device = device

    def limit(self, unit: Unit, amount: int) -> Limit:
        """Time a copy of as many bytes, half read and half written, or a bf16 matrix product."""
        if unit == "bytes":
            source = torch.empty(amount // 2, dtype=torch.uint8, device=self._device)
            target = torch.empty_like(source)
            copy_ms = self.median_ms(lambda: target.copy_(source))
            return Limit(f"copy {amount / copy_ms / 1e9:.2f} TB/s", copy_ms)
        square = torch.randn(_SQUARE, _SQUARE, dtype=torch.bfloat16, device=self._device)
        flops_a_ms = 2 * _SQUARE**3 / self.median_ms(lambda: square @ square)
        return Limit(f"matmul {flops_a_ms / 1e9:.0f} TFLOP/s", amount / flops_a_ms)

    def median_ms(self, call: Callable[[], Any]) -> float:
        """Time a call on the GPU, its L2 cache emptied before each run."""
        flush = self._flush()

        def times(runs: int) -> list[float]:
            events = [self._run(call, flush, fills=1) for _ in range(runs)]
            torch.cuda.synchronize(self._device)
            return [begun.elapsed_time(ended) for begun, ended in events]

        estimate = statistics.median(times(_WARM_UP_RUNS))
        runs = min(_MAX_RUNS, max(_MIN_RUNS, int(_TIMED_MS / max(estimate, 1e-3))))
        return statistics.median(times(runs))

    def interleaved_ms(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        """Time calls on the GPU in turn, so that a change of its clocks meets them all alike.

        The GPU is kept busy before each run until the host has queued the run: a call of many
        launches, such as a whole backward pass, is timed without its Python too.
        """
        flush = self._flush()
        fills = self._fills(calls, flush)
        times: list[list[float]] = [[] for _ in calls]
        for _ in range(_ROUNDS):
            events = [self._run(call, flush, fills) for call in calls]
            torch.cuda.synchronize(self._device)
            for measured, (begun, ended) in zip(times, events, strict=True):
                measured.append(begun.elapsed_time(ended))
        return [statistics.median(measured) for measured in times]

    def _flush(self) -> Tensor:
        return torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=self._device)

    def _run(
        self, call: Callable[[], Any], flush: Tensor, fills: int
    ) -> tuple[torch.Event, torch.Event]:
        begun, ended = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        for _ in range(fills):
            flush.zero_()
        begun.record()
        call()
        ended.record()
        return begun, ended

    def _fills(self, calls: Sequence[Callable[[], Any]], flush: Tensor) -> int:
        """Return how many fills last longer than the host takes to queue the slowest call."""

        def host_ms(call: Callable[[], Any], *, wait: bool = False) -> float:
            call()
            torch.cuda.synchronize(self._device)
            begun = time.perf_counter()
            call()
            if wait:
                torch.cuda.synchronize(self._device)
            return (time.perf_counter() - begun) * 1e3

        slowest = max(host_ms(call) for call in calls)
        return 1 + math.ceil(_HEAD_START * slowest / host_ms(flush.zero_, wait=True))

    def extra_bytes(self, prepared: Prepared) -> int:
        """Read the allocator's peak over a second call: the first fills the libraries' buffers."""
        prepared.call()
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        result = prepared.call()
        peak = torch.cuda.max_memory_allocated(self._device)
        there = {x.untyped_storage().data_ptr() for x in prepared.held}
        made = {
            x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in _tensors(result)
        }
        returned = sum(num_bytes for place, num_bytes in made.items() if place not in there)
        return max(0, peak - before - returned)


def measure(
    operation: Operation, meter: Meter, *, with_liger: bool, backend: str = "inductor"
) -> dict[str, Any]:
    """Measure an operation and its counterparts, one after the other.

    Args:
        operation: what is measured.
        meter: what measures.
        with_liger: whether Liger is there.
        backend: of torch.compile.

    Returns:
        The row. A ratio is the other's time over ours: None where there is no counterpart, or where
        it failed, as `failures` then says.
    """
    limit = meter.limit(operation.unit, operation.amount)
    ours = _time(operation.ours, meter)
    rivals = {
        "eager": operation.eager,
        "torch_fused": operation.torch_fused,
        "compile": operation.eager if operation.compilable is None else operation.compilable,
        "liger": operation.liger if with_liger else None,
    }
    timings: dict[str, _Timing] = {}
    failures: dict[str, str] = {}
    for name, rival in rivals.items():
        if rival is None:
            continue
        try:
            timings[name] = (
                _time_compiled(rival, meter, backend) if name == "compile" else _time(rival, meter)
            )
        except _RIVAL_FAILURES as error:
            failures[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    ratios = {
        f"{name}_ratio": timings[name].milliseconds / ours.milliseconds if name in timings else None
        for name in rivals
    }
    return {
        "operation": operation.name,
        "milliseconds": ours.milliseconds,
        "amount": operation.amount,
        "unit": operation.unit,
        "limit": limit.text,
        "share": limit.milliseconds / ours.milliseconds,
        **ratios,
        "extra_bytes": ours.extra_bytes,
        "eager_extra_bytes": timings["eager"].extra_bytes if "eager" in timings else None,
        "failures": failures,
    }


class _Timing(NamedTuple):
    milliseconds: float
    extra_bytes: int


def _time(timed: Pass, meter: Meter) -> _Timing:
    prepared = timed.prepare()
    extra_bytes = meter.extra_bytes(prepared)
    return _Timing(meter.median_ms(prepared.call), extra_bytes)


def _time_compiled(timed: Pass, meter: Meter, backend: str) -> _Timing:
    torch.compiler.reset()
    compiled = torch.compile(timed.function, dynamic=False, backend=backend)
    # A backward pass that is repeated keeps its graph, so it must not be given buffers to reuse.
    with torch._functorch.config.patch(donated_buffer=False):
        return _time(dataclasses.replace(timed, function=compiled), meter)


def _tensors(result: Any) -> Iterator[Tensor]:
    yield from (result,) if isinstance(result, Tensor) else result
