"""Timings of the fused operations at the sizes of Llama 8B, against the card's own limits.

Memory-bound operations are set against a copy of the same number of bytes, the head against a bf16
matrix product, each measured in the same run.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import triton

from slidepack.kernels import AdamWState, adamw, adamw_scalars, dequantise_nf4, quantise_nf4
from slidepack.kernels.gated import gated_bwd, gated_fwd
from slidepack.kernels.linear_cross_entropy import linear_cross_entropy
from slidepack.kernels.rms_norm import rms_norm_bwd, rms_norm_fwd
from slidepack.kernels.rope import rope_launch

TOKENS: Final = 8192
WIDTH: Final = 4096
FFN: Final = 14336
VOCAB: Final = 128256
HEADS, KV_HEADS, HEAD = 32, 8, 128
_PARAMS: Final = 1 << 27


def bench_kernels() -> list[dict[str, Any]]:
    """Time every operation on the first GPU.

    Returns:
        One row an operation: milliseconds (median), the limit it is set against, and its share.
    """
    torch.manual_seed(0)
    return [*_memory_bound(), *_head()]


def _memory_bound() -> list[dict[str, Any]]:
    x, dy = _bf16(TOKENS, WIDTH), _bf16(TOKENS, WIDTH)
    weight = _bf16(WIDTH)
    _, total, scale = rms_norm_fwd(x, weight, 1e-5, None, plus_one=False)
    gate, up, d_inner = _bf16(TOKENS, FFN), _bf16(TOKENS, FFN), _bf16(TOKENS, FFN)
    q, k = _bf16(TOKENS, HEADS, HEAD), _bf16(TOKENS, KV_HEADS, HEAD)
    cos, sin = _bf16(TOKENS, HEAD), _bf16(TOKENS, HEAD)
    packed, scales = quantise_nf4(_bf16(FFN, WIDTH))
    wide = TOKENS * WIDTH * 2
    inner = TOKENS * FFN * 2
    rows = [
        _row(
            "rms_norm forward",
            lambda: rms_norm_fwd(x, weight, 1e-5, None, plus_one=False),
            2 * wide,
        ),
        _row(
            "rms_norm backward, frozen weight",
            lambda: rms_norm_bwd(dy, total, weight, scale, None, weight_grad=False, plus_one=False),
            3 * wide,
        ),
        _row(
            "rms_norm backward",
            lambda: rms_norm_bwd(dy, total, weight, scale, None, weight_grad=True, plus_one=False),
            3 * wide,
        ),
        _row(
            "rope, q and k",
            lambda: rope_launch(q, k, cos, sin, inverse=False),
            2 * (q.numel() + k.numel()) * 2 + 2 * cos.numel() * 2,
        ),
        _row("swiglu forward", lambda: gated_fwd(gate, up, "silu"), 3 * inner),
        _row("swiglu backward", lambda: gated_bwd(d_inner, gate, up, "silu"), 5 * inner),
        _row(
            "nf4 dequantise",
            lambda: dequantise_nf4(packed, scales, (FFN, WIDTH), torch.bfloat16),
            FFN * WIDTH * 2 + packed.numel() + scales.numel() * 4,
        ),
    ]
    return [*rows, _adamw()]


def _adamw() -> dict[str, Any]:
    grad = _bf16(_PARAMS)
    zeros = torch.zeros(_PARAMS, device="cuda")
    state = AdamWState(torch.zeros_like(zeros), None, zeros, torch.zeros_like(zeros))
    step, clip = torch.tensor(1, device="cuda"), torch.tensor(1.0, device="cuda")
    scalars = adamw_scalars(step, clip, lr=1e-4, beta1=0.9, beta2=0.999, weight_decay=0.0)
    return _row(
        "adamw, fp32 state, bf16 gradient",
        lambda: adamw(grad, state, scalars, beta1=0.9, beta2=0.999, eps=1e-8),
        _PARAMS * (2 + 6 * 4),
    )


def _head() -> list[dict[str, Any]]:
    hidden, head = _bf16(TOKENS, WIDTH), _bf16(VOCAB, WIDTH) * 0.02
    labels = torch.randint(0, VOCAB, (TOKENS,), device="cuda")
    square = _bf16(8192, 8192)
    limit_ms = _median_ms(lambda: square @ square)
    rate = 2 * 8192**3 / (limit_ms / 1e3)
    rows = []
    for name, products, head_grad in (
        ("linear_cross_entropy, frozen head", 2, False),
        ("linear_cross_entropy", 3, True),
    ):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = linear_cross_entropy(hidden, head, labels, head_grad=head_grad, none_ignored=True)
        returned = sum(part.nbytes for part in result if part is not None)
        extra = torch.cuda.max_memory_allocated() - before - returned
        del result

        def run(with_head: bool = head_grad) -> None:
            linear_cross_entropy(hidden, head, labels, head_grad=with_head, none_ignored=True)

        flops = products * 2 * TOKENS * WIDTH * VOCAB
        ms = _median_ms(run)
        rows.append(
            {
                "operation": name,
                "milliseconds": ms,
                "limit": f"bf16 matmul {rate / 1e12:.0f} TFLOP/s",
                "share": flops / (ms / 1e3) / rate,
                "extra_bytes": extra,
            }
        )
    return rows


def _row(operation: str, run: Callable[[], object], num_bytes: int) -> dict[str, Any]:
    """Time one memory-bound operation against a copy that moves as many bytes."""
    source = torch.empty(num_bytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_ms = _median_ms(lambda: target.copy_(source))
    ms = _median_ms(run)
    return {
        "operation": operation,
        "milliseconds": ms,
        "limit": f"copy {num_bytes / copy_ms / 1e9:.2f} TB/s",
        "share": copy_ms / ms,
        "extra_bytes": 0,
    }


def _median_ms(run: Callable[[], object]) -> float:
    # do_bench empties the L2 cache before each run, for the copy as for the operation.
    return float(triton.testing.do_bench(run, return_mode="median"))


def _bf16(*size: int) -> torch.Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)
