"""Compares an export's logits with the trainer's: the figures, their bounds, and the verdict."""

from typing import Final

from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.contract import Verification

__all__ = ["BOUNDS", "compare", "differs"]

BOUNDS: Final = {
    "exact": (1e-4, 1e-5),
    "fp16": (0.05, 0.005),
    "bf16": (0.4, 0.04),
    "q8_0": (1.0, 0.1),
}
"""Largest and mean absolute difference of a logit, as shares of the logits' standard deviation.

`exact` is for weights that were not rounded: what is left is the order of sums in fp32. Rounding to
fp16 moves a weight by 0.01 % of itself, to bf16 by 0.1 %, to Q8_0 by 0.5 % of its block's spread,
and logits by about ten times as much in the smallest models, less in others. Weights in a wrong
place move logits by their whole spread."""


def compare(
    trainer: Tensor, export: Tensor, *, bound: str, loader: str, prompts: int, bare: Tensor | None
) -> Verification:
    """Return the figures of two sets of logits.

    Args:
        trainer: [T, V] fp32.
        export: [T, V] fp32.
        bound: a key of `BOUNDS`.
        loader: what read the export back.
        prompts: how many there are.
        bare: the base's logits without the adapter, [T, V]; None where there is none.
    """
    difference = (export - trainer).abs()
    spread = float(trainer.std())
    most, mean = BOUNDS[bound]
    agreement = (trainer.argmax(dim=-1) == export.argmax(dim=-1)).float().mean()
    return Verification(
        loader=loader,
        prompts=prompts,
        positions=len(trainer),
        max_abs=float(difference.max()),
        mean_abs=float(difference.mean()),
        top1_agreement=float(agreement),
        spread=spread,
        max_bound=most * spread,
        mean_bound=mean * spread,
        effect=None if bare is None else float((trainer - bare).abs().mean()),
        learned=None if bare is None else _learned(trainer, export, bare),
    )


def _learned(trainer: Tensor, export: Tensor, bare: Tensor) -> float | None:
    """Return the share of the step from the base to the trained model that the export has made.

    Rounding points in no direction of its own, so that it hardly shows here.
    """
    step = (trainer - bare).double()
    length = float((step * step).sum())
    return None if length == 0.0 else float(((export - bare).double() * step).sum()) / length


def differs(found: Verification, where: str) -> SlidepackError:
    """Return the error of an export that does not compute what the trainer does.

    Args:
        found: the figures.
        where: the folder that it was left in.
    """
    share = "" if found.learned is None else f"; it has {found.learned:.0%} of what was learned"
    return SlidepackError(
        "RUN-EXPORT-DIFFERS",
        "The export does not compute what the trained model does.",
        why=f"its logits differ by {found.max_abs:.3g} at most and {found.mean_abs:.3g} on average;"
        f" {found.max_bound:.3g} and {found.mean_bound:.3g} are allowed{share}",
        fix=f"Do not use it; it is in {where}. Choose --quant f16 or --format merged, and check "
        "this machine's disk and memory.",
    )
