"""One AdamW step (Loshchilov & Hutter, arXiv 1711.05101) over a flat range, in one pass.

State formats: moments in fp32, bf16, or 8 bits with one scale a block; the master in fp32, or split
into the bf16 plane that the forward pass reads and a 16-bit remainder:

    bits(fp32) = (bits(bf16 plane) << 16) + remainder,   remainder in [-2^15, 2^15)

with the plane rounded half up, so the pair holds the fp32 master exactly, in the same 4 bytes.

8-bit moments are companded, so that small values keep a relative precision: the first as
sign(x) · round(127 · sqrt(|x| / scale)), the second as round(255 · (x / scale)^(1/4)), at least 1
where x is above 0: a second moment that vanished would blow up its step.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "ADAMW_BLOCK",
    "AdamWState",
    "adamw",
    "adamw_launch",
    "adamw_scalars",
    "join_master",
    "split_master",
    "squared_norm",
]

ADAMW_BLOCK: Final = 1024
"""Elements of one program, and of one scale of 8-bit moments."""
_MOMENT_DTYPES: Final = (torch.float32, torch.bfloat16, torch.int8)


@dataclass(frozen=True, slots=True)
class AdamWState:
    """The flat range's master and moments, all [n], contiguous, on one device."""

    master: Tensor
    """fp32, or the bf16 plane of a split master."""
    remainder: Tensor | None
    """int16 of a split master; None for fp32."""
    exp_avg: Tensor
    """fp32, bf16, or int8 codes."""
    exp_avg_sq: Tensor
    """fp32, bf16, or uint8 codes; as wide as `exp_avg`."""
    exp_avg_scale: Tensor | None = None
    """[ceil(n / 1024)] fp32, for 8-bit moments."""
    exp_avg_sq_scale: Tensor | None = None

    def part(self, start: int, stop: int) -> "AdamWState":
        """Return the state of elements `start` to `stop`, as views.

        Raises:
            ValueError: `start` is within a block of 8-bit moments.
        """
        m_scale = v_scale = None
        if self.exp_avg_scale is not None and self.exp_avg_sq_scale is not None:
            if start % ADAMW_BLOCK:
                raise ValueError(f"{start} is not a multiple of {ADAMW_BLOCK}")
            blocks = slice(start // ADAMW_BLOCK, -(-stop // ADAMW_BLOCK))
            m_scale, v_scale = self.exp_avg_scale[blocks], self.exp_avg_sq_scale[blocks]
        return AdamWState(
            self.master[start:stop],
            None if self.remainder is None else self.remainder[start:stop],
            self.exp_avg[start:stop],
            self.exp_avg_sq[start:stop],
            m_scale,
            v_scale,
        )


@triton.jit
def read_master(master_ptr, remainder_ptr, index, inside, SPLIT: tl.constexpr):
    """Return fp32 master weights, whole or split."""
    if SPLIT:
        high = tl.load(master_ptr + index, mask=inside, other=0.0).to(tl.int16, bitcast=True)
        low = tl.load(remainder_ptr + index, mask=inside, other=0).to(tl.int32)
        return ((high.to(tl.int32) << 16) + low).to(tl.float32, bitcast=True)
    else:
        return tl.load(master_ptr + index, mask=inside, other=0.0)


@triton.jit
def write_master(master_ptr, remainder_ptr, index, inside, param, SPLIT: tl.constexpr):
    """Store fp32 master weights, whole or split."""
    if SPLIT:
        bits = param.to(tl.int32, bitcast=True)
        # Half up on the bits: the remainder then fits 16 signed bits, ties included.
        rounded = (bits + 0x8000) >> 16
        tl.store(
            master_ptr + index, rounded.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=inside
        )
        tl.store(remainder_ptr + index, (bits - (rounded << 16)).to(tl.int16), mask=inside)
    else:
        tl.store(master_ptr + index, param, mask=inside)


@triton.jit
def updated(param, m, v, step_size, root_correction, decay, eps):
    """Return the parameter after a step, from its new moments."""
    return param * decay - step_size * tl.div_rn(m, tl.div_rn(tl.sqrt_rn(v), root_correction) + eps)


@triton.jit
def _adamw_kernel(
    grad_ptr,
    master_ptr,
    remainder_ptr,
    m_ptr,
    v_ptr,
    m_scale_ptr,
    v_scale_ptr,
    scalars_ptr,
    elements,
    decayed,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    eps,
    SPLIT: tl.constexpr,
    INT8: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    inside = index < elements
    # Clip factor, step size, root of the second bias correction, decay: no host waits for them.
    clip = tl.load(scalars_ptr)
    step_size = tl.load(scalars_ptr + 1)
    root_correction = tl.load(scalars_ptr + 2)
    # Norms and biases, which come last, are not decayed.
    decay = tl.where(index < decayed, tl.load(scalars_ptr + 3), 1.0)
    grad = tl.load(grad_ptr + index, mask=inside, other=0.0).to(tl.float32) * clip
    param = read_master(master_ptr, remainder_ptr, index, inside, SPLIT)
    m = tl.load(m_ptr + index, mask=inside, other=0).to(tl.float32)
    v = tl.load(v_ptr + index, mask=inside, other=0).to(tl.float32)
    if INT8:
        m = m * tl.abs(m) * tl.div_rn(tl.load(m_scale_ptr + block), 127.0 * 127.0)
        root = tl.div_rn(v * v, 255.0 * 255.0)
        v = root * root * tl.load(v_scale_ptr + block)
    m += (grad - m) * one_minus_beta1
    v = v * beta2 + grad * grad * one_minus_beta2
    param = updated(param, m, v, step_size, root_correction, decay, eps)
    if INT8:
        m_scale = tl.max(tl.abs(m), axis=0)
        v_scale = tl.max(v, axis=0)
        tl.store(m_scale_ptr + block, m_scale)
        tl.store(v_scale_ptr + block, v_scale)
        m_share = tl.div_rn(tl.abs(m), tl.where(m_scale > 0.0, m_scale, 1.0))
        m_code = tl.floor(127.0 * tl.sqrt_rn(m_share) + 0.5)
        v_share = tl.div_rn(v, tl.where(v_scale > 0.0, v_scale, 1.0))
        v_code = tl.floor(255.0 * tl.sqrt_rn(tl.sqrt_rn(v_share)) + 0.5)
        v_code = tl.where(v > 0.0, tl.maximum(v_code, 1.0), 0.0)
        tl.store(m_ptr + index, tl.where(m < 0.0, -m_code, m_code).to(tl.int8), mask=inside)
        tl.store(v_ptr + index, v_code.to(tl.uint8), mask=inside)
    else:
        tl.store(m_ptr + index, m, mask=inside)
        tl.store(v_ptr + index, v, mask=inside)
    write_master(master_ptr, remainder_ptr, index, inside, param, SPLIT)


@triton.jit
def _squared_norm_kernel(x_ptr, partial_ptr, elements, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(program * BLOCK, elements, tl.num_programs(0) * BLOCK):
        index = tl.cast(start, tl.int64) + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + index, mask=index < elements, other=0.0).to(tl.float32)
        total += x * x
    tl.store(partial_ptr + program, tl.sum(total, axis=0))


def adamw_scalars(
    step: Tensor, clip: Tensor, *, lr: float, beta1: float, beta2: float, weight_decay: float
) -> Tensor:
    """Return the four numbers of a step, [4] fp32, computed on the device in fp64.

    Args:
        step: scalar on the device, steps done including this one.
        clip: scalar on the device, factor on the gradient.
        lr: learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        weight_decay: decoupled decay.

    Raises:
        ValueError: step or clip is no scalar.
    """
    if step.ndim or clip.ndim:
        raise ValueError(f"step is {tuple(step.shape)}, clip is {tuple(clip.shape)}, not scalars")
    wide = step.to(torch.float64)
    step_size = lr / (1.0 - beta1**wide)
    root_correction = (1.0 - beta2**wide).sqrt()
    decay = torch.full_like(step_size, 1.0 - lr * weight_decay)
    return torch.stack([clip.to(torch.float64), step_size, root_correction, decay]).float()


def adamw_launch(
    grad: Tensor,
    state: AdamWState,
    scalars: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    decayed: int | None = None,
) -> None:
    """Launch the kernel."""
    elements = grad.numel()
    if not elements:
        return
    unused = state.master
    _adamw_kernel[(triton.cdiv(elements, ADAMW_BLOCK),)](
        grad,
        state.master,
        unused if state.remainder is None else state.remainder,
        state.exp_avg,
        state.exp_avg_sq,
        unused if state.exp_avg_scale is None else state.exp_avg_scale,
        unused if state.exp_avg_sq_scale is None else state.exp_avg_sq_scale,
        scalars,
        elements,
        elements if decayed is None else decayed,
        # Rounded once, here: 1 - beta in the kernel would be that of a rounded beta.
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        eps,
        SPLIT=state.remainder is not None,
        INT8=state.exp_avg.dtype == torch.int8,
        BLOCK=ADAMW_BLOCK,
        num_warps=4,
        # Each operation rounded by itself, so that the CPU's optimizer gives the same bits.
        enable_fp_fusion=False,
    )


def adamw(
    grad: Tensor,
    state: AdamWState,
    scalars: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    decayed: int | None = None,
) -> None:
    """One AdamW step in place; in fp32 throughout, whatever the state is stored as.

    Equivalent, for fp32 state, to `grad * clip` followed by `torch.optim.AdamW`.

    Args:
        grad: [n] bf16 or fp32.
        state: master and moments.
        scalars: `adamw_scalars` of this step.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        decayed: elements from here on have no weight decay; None decays all.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    _check(grad, state, scalars)
    run = adamw_launch if grad.is_cuda else _adamw_plain
    run(grad, state, scalars, beta1=beta1, beta2=beta2, eps=eps, decayed=decayed)


def squared_norm(x: Tensor) -> Tensor:
    """Return the sum of squares of a flat tensor, a fp32 scalar on its device.

    The order of the sum depends on the length alone, so equal inputs give equal bits.

    Raises:
        ValueError: the tensor is not flat, or not of a float dtype.
    """
    if x.ndim != 1 or not x.is_floating_point():
        raise ValueError(f"x is {tuple(x.shape)} {x.dtype}, not [n] of a float dtype")
    if not x.is_cuda:
        return x.to(torch.float32).square().sum()
    return squared_norm_launch(x)


def squared_norm_launch(x: Tensor) -> Tensor:
    """Launch the reduction; a second, tiny sum adds its partials in order."""
    programs = max(1, min(1024, triton.cdiv(x.numel(), 4 * ADAMW_BLOCK)))
    partial = torch.empty(programs, dtype=torch.float32, device=x.device)
    _squared_norm_kernel[(programs,)](x, partial, x.numel(), BLOCK=4 * ADAMW_BLOCK, num_warps=8)
    return partial.sum()


def split_master(master: Tensor) -> tuple[Tensor, Tensor]:
    """Split fp32 into its bf16 plane and int16 remainder, exactly.

    Raises:
        ValueError: another dtype.
    """
    if master.dtype != torch.float32:
        raise ValueError(f"master is {tuple(master.shape)} {master.dtype}, not {torch.float32}")
    bits = master.contiguous().view(torch.int32)
    rounded = (bits + 0x8000) >> 16
    remainder = (bits - (rounded << 16)).to(torch.int16)
    return rounded.to(torch.int16).view(torch.bfloat16), remainder


def join_master(plane: Tensor, remainder: Tensor) -> Tensor:
    """Return the fp32 tensor that plane and remainder hold.

    Raises:
        ValueError: shapes differ, or dtypes do not fit.
    """
    dtypes = (plane.dtype, remainder.dtype)
    if plane.shape != remainder.shape or dtypes != (torch.bfloat16, torch.int16):
        raise ValueError(
            f"plane is {tuple(plane.shape)} {plane.dtype}, "
            f"remainder is {tuple(remainder.shape)} {remainder.dtype}"
        )
    high = plane.contiguous().view(torch.int16).to(torch.int32) << 16
    return (high + remainder.to(torch.int32)).view(torch.float32)


def decode_moments(state: AdamWState) -> tuple[Tensor, Tensor]:
    """Return both moments in fp32."""
    m, v = state.exp_avg.float(), state.exp_avg_sq.float()
    if state.exp_avg_scale is None or state.exp_avg_sq_scale is None:
        return m, v
    m_scale, v_scale = (
        scale.repeat_interleave(ADAMW_BLOCK)[: m.numel()]
        for scale in (state.exp_avg_scale, state.exp_avg_sq_scale)
    )
    root = v * v / (255.0 * 255.0)
    return m * m.abs() * (m_scale / (127.0 * 127.0)), root * root * v_scale


def _adamw_plain(
    grad: Tensor,
    state: AdamWState,
    scalars: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    decayed: int | None = None,
) -> None:
    """The same step in plain operations, in the kernel's order."""
    clip, step_size, root_correction, decay = scalars.unbind()
    split = state.remainder is not None
    param = state.master
    if state.remainder is not None:
        param = join_master(state.master, state.remainder)
    g = grad.float() * clip
    m, v = decode_moments(state)
    m = m + (g - m) * (1.0 - beta1)
    v = v * beta2 + g * g * (1.0 - beta2)
    if decayed is not None:
        index = torch.arange(param.numel(), device=param.device)
        decay = torch.where(index < decayed, decay, 1.0)
    param = param * decay - step_size * (m / (_root(v) / root_correction + eps))
    _store_moments(state, m, v)
    if split:
        plane, remainder = split_master(param)
        state.master.copy_(plane)
        assert state.remainder is not None
        state.remainder.copy_(remainder)
    else:
        state.master.copy_(param)


def _root(x: Tensor) -> Tensor:
    """Square root in fp64: torch's of fp32 may be off by a rounding on a CPU."""
    return x.double().sqrt().float()


def _store_moments(state: AdamWState, m: Tensor, v: Tensor) -> None:
    if state.exp_avg_scale is None or state.exp_avg_sq_scale is None:
        state.exp_avg.copy_(m)
        state.exp_avg_sq.copy_(v)
        return
    count = m.numel()
    for x, scale in ((m, state.exp_avg_scale), (v, state.exp_avg_sq_scale)):
        blocks = torch.nn.functional.pad(x.abs(), (0, -count % ADAMW_BLOCK))
        scale.copy_(blocks.view(-1, ADAMW_BLOCK).amax(dim=1))

    def share(x: Tensor, scale: Tensor) -> Tensor:
        wide = scale.repeat_interleave(ADAMW_BLOCK)[:count]
        return x / torch.where(wide > 0, wide, 1.0)

    m_code = torch.floor(127.0 * _root(share(m.abs(), state.exp_avg_scale)) + 0.5)
    v_code = torch.floor(255.0 * _root(_root(share(v, state.exp_avg_sq_scale))) + 0.5)
    state.exp_avg.copy_(torch.where(m < 0, -m_code, m_code).to(torch.int8))
    at_least_one = torch.where(v > 0, v_code.clamp_min(1.0), 0.0)
    state.exp_avg_sq.copy_(at_least_one.to(torch.uint8))


def _check(grad: Tensor, state: AdamWState, scalars: Tensor) -> None:
    flat, blocks = (grad.numel(),), (-(-grad.numel() // ADAMW_BLOCK),)
    moment = state.exp_avg.dtype
    eight_bit = moment == torch.int8
    if grad.dtype not in (torch.float32, torch.bfloat16) or moment not in _MOMENT_DTYPES:
        raise ValueError(f"gradient is {grad.dtype}, moments are {moment}")
    split = state.remainder is not None
    wanted: dict[str, tuple[Tensor | None, tuple[int, ...], torch.dtype]] = {
        "gradient": (grad, flat, grad.dtype),
        "master": (state.master, flat, torch.bfloat16 if split else torch.float32),
        "exp_avg": (state.exp_avg, flat, moment),
        "exp_avg_sq": (state.exp_avg_sq, flat, torch.uint8 if eight_bit else moment),
        "scalars": (scalars, (4,), torch.float32),
    }
    if split:
        wanted["remainder"] = (state.remainder, flat, torch.int16)
    if eight_bit:
        wanted["exp_avg_scale"] = (state.exp_avg_scale, blocks, torch.float32)
        wanted["exp_avg_sq_scale"] = (state.exp_avg_sq_scale, blocks, torch.float32)
    elif state.exp_avg_scale is not None or state.exp_avg_sq_scale is not None:
        raise ValueError(f"moments are {moment}, but only {torch.int8} has scales")
    for name, (tensor, shape, dtype) in wanted.items():
        if tensor is None:
            raise ValueError(f"{name} is missing, not {shape} {dtype}")
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}, not {shape} {dtype}")
