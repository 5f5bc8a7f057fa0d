"""What was measured so far, on standard error: a run that dies later has said it."""

import sys

from slidepack.engine.bench_packed.steps import StepTimes

__all__ = ["tell", "tell_rate"]


def tell(text: str) -> None:
    """Write one line."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def tell_rate(what: str, times: StepTimes, tokens: int) -> None:
    """Write one line of a part that was measured.

    Args:
        what: was measured.
        times: of its steps.
        tokens: of a step.
    """
    seconds = times.median_seconds
    said = f"{what}: {seconds:.3f} s a step, {tokens / seconds:,.0f} tokens/s"
    if times.device_peak_bytes:
        said += f", {times.device_peak_bytes / 1e9:.2f} GB of VRAM"
    tell(said)
