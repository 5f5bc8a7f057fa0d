"""What a run may say of itself at its end: completed means that it has learned."""

import math
from collections.abc import Callable
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import OptimSpec
from slidepack.engine.lora.optimizer import learning_rate, warmup_steps
from slidepack.engine.worker.learning import Change
from slidepack.engine.worker.trainee import Trainee
from slidepack.engine.worker.trainer import Trainer
from slidepack.engine.worker.watchdog import advice

__all__ = ["check_learned"]

_SHOWN: Final = 5


def check_learned(
    trainer: Trainer,
    trainee: Trainee,
    optim: OptimSpec,
    loss_after: float | None,
    warn: Callable[[str, str], None],
) -> None:
    """Check that a run has learned something.

    Args:
        trainer: after the last step.
        trainee: what it trained.
        optim: of the job.
        loss_after: the final held-out loss, None where nothing is held out.
        warn: reports a code and a sentence: a module that stood still, a loss that did not fall.

    Raises:
        SlidepackError: RUN-DIVERGED: weights or held-out loss are no numbers.
            RUN-NOTHING-LEARNED: the weights are what they were, or no loss moved by more than
            rounding.
    """
    broken = ""
    if not trainee.is_finite():
        broken = "The trained weights hold values that are no numbers."
    elif loss_after is not None and not math.isfinite(loss_after):
        broken = "The held-out loss of the trained weights is no number."
    if broken:
        raise SlidepackError(
            "RUN-DIVERGED",
            broken,
            why=f"after step {trainer.step}",
            fix=advice(optim.lr, trainer.good_step),
        )
    change = trainee.change()
    losses = _losses(trainer, loss_after)
    if not change.shows:
        raise _nothing_learned(
            "The weights did not change: nothing was learned.",
            f"{change.modules} modules are as they were; {losses}",
            trainer,
            optim,
        )
    movement = trainer.trail.movement(trainer.step, trainer.eval_loss_before, loss_after)
    if movement == "identical":
        raise _nothing_learned("No loss moved: nothing was learned.", losses, trainer, optim)
    if movement == "unmoved":
        warn("RUN-LOSS-UNMOVED", f"The loss did not fall: {losses}.")
    if change.still:
        warn("RUN-MODULES-UNMOVED", _still(change))


def _nothing_learned(what: str, why: str, trainer: Trainer, optim: OptimSpec) -> SlidepackError:
    # The rate rises to its peak, and falls from there.
    peak = min(max(0, trainer.step - 1), warmup_steps(optim, trainer.total_steps))
    rate = learning_rate(optim, peak, trainer.total_steps)
    if rate > 0.0:
        fix = "Raise the learning rate, and look at a few rows with `slidepack data check`."
    else:
        fix = "Train for more steps, or set warmup_fraction to 0: the warm-up starts from 0."
    return SlidepackError(
        "RUN-NOTHING-LEARNED",
        what,
        why=f"{why}; the learning rate was at most {rate:.1e} in {trainer.step} steps",
        fix=fix,
    )


def _losses(trainer: Trainer, after: float | None) -> str:
    parts = [trainer.trail.describe(trainer.step)]
    before = trainer.eval_loss_before
    if before is not None and after is not None:
        parts.append(f"held-out loss {before:.4f} before and {after:.4f} after")
    return "; ".join(part for part in parts if part) or "no loss was measured"


def _still(change: Change) -> str:
    names = ", ".join(change.still[:_SHOWN])
    more = len(change.still) - _SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return (
        f"Training left {len(change.still)} of {change.modules} modules as they were: "
        f"{names}{rest}."
    )
