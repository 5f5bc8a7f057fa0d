"""The C loop gives the bits of `kernels.adamw`; without a compiler, torch does."""

import multiprocessing
from pathlib import Path
from typing import Literal

import pytest
import torch
from support.full_runs import BETA1, BETA2, EPS, cache_folder, copy_of, same_bits
from support.waiting import PATIENCE
from torch import Tensor

from slidepack.engine.sliding.cpu_adamw import CpuAdamW, cpu_adamw
from slidepack.engine.sliding.state import StateFormat, TrainState, Unit
from slidepack.kernels import AdamWState, adamw, adamw_scalars, join_master

BLOCK = 1 << 16
"""Elements that a thread of the loop takes at a time."""
SIZES = (1, 63, 1000, BLOCK, 2 * BLOCK + 1023)
Moments = Literal["fp32", "bf16", "int8"]


def _state(elements: int, *, split: bool, moments: Moments) -> AdamWState:
    unit = Unit("one", elements, elements)
    state = TrainState([unit], StateFormat(split=split, moments=moments), pin=False)
    state.write(0, 0, torch.randn(elements, generator=torch.Generator().manual_seed(0)))
    (only,) = state.states
    return only


def _gradients(elements: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    grads = []
    for scale in (1.0, 1e-4, 30.0):
        grads.append((torch.randn(elements, generator=generator) * scale).to(dtype))
        # Zero, as rows of the embedding have it.
        grads[-1][::5] = 0
    return grads


def _step(step: int, clip: float) -> Tensor:
    return adamw_scalars(
        torch.tensor(step),
        torch.tensor(clip),
        lr=3e-3,
        beta1=BETA1,
        beta2=BETA2,
        weight_decay=0.1,
    )


def _compare(loop: CpuAdamW, state: AdamWState, grads: list[Tensor], decayed: int) -> AdamWState:
    """Step both; return the state at the end."""
    plain = copy_of(state)
    for number, grad in enumerate(grads, start=1):
        scalars = _step(number, 0.37 if number == 2 else 1.0)
        kept = grad.clone()
        loop.step(grad, state, scalars, beta1=BETA1, beta2=BETA2, eps=EPS, decayed=decayed)
        adamw(grad, plain, scalars, beta1=BETA1, beta2=BETA2, eps=EPS, decayed=decayed)
        assert torch.equal(grad.view(torch.uint8), kept.view(torch.uint8))
        assert same_bits(state, plain), number
    return state


@pytest.fixture(scope="module")
def loop() -> CpuAdamW:
    found = cpu_adamw(cache_folder(), 2)
    if found.reason != "a C loop compiled for this CPU":
        pytest.skip(found.reason)
    return found


@pytest.mark.parametrize("grad", [torch.float32, torch.bfloat16], ids=["grad32", "grad16"])
@pytest.mark.parametrize("moments", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("split", [False, True], ids=["fp32", "split"])
def test_the_loop_gives_the_bits_of_the_kernel(
    loop: CpuAdamW, split: bool, moments: Moments, grad: torch.dtype
) -> None:
    for elements in SIZES:
        for decayed in sorted({0, elements // 2, elements - 1, elements}):
            state = _state(elements, split=split, moments=moments)
            _compare(loop, state, _gradients(elements, grad), decayed)


@pytest.mark.parametrize("decayed", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_decay_ends_beside_a_block(loop: CpuAdamW, decayed: int) -> None:
    elements = 2 * BLOCK + 5
    state = _state(elements, split=True, moments="fp32")
    before = join_master(state.master, state.remainder) if state.remainder is not None else None
    assert before is not None
    _compare(loop, state, [torch.zeros(elements)] * 3, decayed)
    assert state.remainder is not None
    after = join_master(state.master, state.remainder)
    # A gradient of zero moves nothing: what changed is what decays.
    assert torch.equal(after[decayed:], before[decayed:])
    assert (after[:decayed] != before[:decayed]).float().mean() > 0.99


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_threads_do_not_change_the_bits(threads: int) -> None:
    loop = cpu_adamw(cache_folder(), threads)
    elements = 5 * BLOCK + 1
    _compare(
        loop,
        _state(elements, split=True, moments="bf16"),
        _gradients(elements, torch.bfloat16),
        elements - 7,
    )


@pytest.mark.parametrize("grad", [torch.float32, torch.bfloat16], ids=["grad32", "grad16"])
@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("split", [False, True], ids=["fp32", "split"])
def test_extreme_gradients(
    loop: CpuAdamW, split: bool, moments: Moments, grad: torch.dtype
) -> None:
    tiny, largest = torch.finfo(grad).tiny, torch.finfo(grad).max
    smallest = torch.tensor(1, dtype=torch.int16).view(torch.bfloat16).item()
    extreme = [tiny, -tiny / 4, smallest, -0.0, largest, -largest, 1e-30, 1e19, -3e-19]
    grads = [torch.tensor(extreme * 9).to(grad)] * 3
    state = _compare(loop, _state(grads[0].numel(), split=split, moments=moments), grads, 40)
    # The second moment of the largest overflows, so its step is zero; nothing becomes a NaN.
    assert torch.isfinite(state.exp_avg).all()
    assert torch.isfinite(state.master).all()


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("split", [False, True], ids=["fp32", "split"])
def test_gradients_that_are_no_numbers(loop: CpuAdamW, split: bool, moments: Moments) -> None:
    state = _state(99, split=split, moments=moments)
    plain = copy_of(state)
    grad = torch.zeros(99)
    grad[::3], grad[1::3] = torch.nan, torch.inf
    for one, step in ((state, loop.step), (plain, adamw)):
        step(grad, one, _step(1, 1.0), beta1=BETA1, beta2=BETA2, eps=EPS, decayed=50)
    for ours, theirs in ((state.exp_avg, plain.exp_avg), (state.exp_avg_sq, plain.exp_avg_sq)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(ours.isnan(), grad.isnan())
    masters = []
    for one in (state, plain):
        whole = one.master if one.remainder is None else join_master(one.master, one.remainder)
        assert torch.equal(whole.isnan(), grad != 0)
        masters.append(whole)
    # Which of the NaNs it is, no one promises; their neighbours are exact.
    torch.testing.assert_close(*masters, rtol=0, atol=0, equal_nan=True)


def _check_bits(form: CpuAdamW) -> None:
    state = _state(1500, split=True, moments="bf16")
    _compare(form, state, _gradients(1500, torch.bfloat16), 700)


def test_the_torch_form_works_in_chunks(loop: CpuAdamW) -> None:
    # The loop leaves 8-bit moments to torch.
    elements = (1 << 20) + 3000
    state = _state(elements, split=True, moments="int8")
    _compare(loop, state, _gradients(elements, torch.bfloat16)[:1], (1 << 20) + 1000)


def test_without_a_compiler_torch_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    form = cpu_adamw(tmp_path / "cache", 1)
    assert form.reason == "torch operations: no C compiler was found"
    _check_bits(form)
    assert not (tmp_path / "cache").exists()


def _fake_compiler(folder: Path, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_when_compilation_fails_torch_does_it_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_compiler(tmp_path / "bin", "echo 'cc: no OpenMP\n here' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    form = cpu_adamw(tmp_path / "cache", 1)
    assert form.reason == "torch operations: the C loop was not compiled (cc: no OpenMP here)"
    _check_bits(form)
    assert not list((tmp_path / "cache").iterdir())


def test_a_compiler_that_makes_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    _fake_compiler(tmp_path / "bin", "exit 0")
    form = cpu_adamw(tmp_path / "cache", 1)
    assert form.reason.startswith("torch operations: the C loop was not compiled (")
    _check_bits(form)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    form = cpu_adamw(tmp_path / "file" / "cache", 1)
    assert form.reason.startswith("torch operations: ")
    _check_bits(form)


def test_a_compiled_library_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: CpuAdamW
) -> None:
    cpu_adamw(tmp_path / "cache", 1)
    (library,) = (tmp_path / "cache").iterdir()
    before = library.stat()
    # A compiler that would fail is not asked.
    _fake_compiler(tmp_path / "bin", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    again = cpu_adamw(tmp_path / "cache", 1)
    assert again.reason == loop.reason
    assert library.stat().st_mtime_ns == before.st_mtime_ns
    _check_bits(again)


def test_processes_that_build_at_once(tmp_path: Path, loop: CpuAdamW) -> None:
    # Forked, because a process that imports torch takes seconds; these compile and load, no more.
    context = multiprocessing.get_context("fork")
    barrier, reasons = context.Barrier(2), context.SimpleQueue()
    cache = tmp_path / "cache"

    def build() -> None:
        barrier.wait(PATIENCE)
        reasons.put(cpu_adamw(cache, 1).reason)

    # The one that is second replaces the first one's library, which is in use by then.
    processes = [context.Process(target=build) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0
    assert [reasons.get() for _ in processes] == [loop.reason] * 2
    assert [path.suffix for path in cache.iterdir()] == [".so"]
    _check_bits(cpu_adamw(cache, 1))
