"""What an update reads on the card is there when the card comes to it, however late that is."""

import pytest
import torch
from support.waiting import wait_until

from slidepack.engine.sliding.gpu_engine import GpuEngine
from slidepack.engine.sliding.state import TrainState, Unit
from slidepack.engine.sliding.state_format import StateFormat
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import Job, StepSettings, Updates
from slidepack.kernels import adamw_scalars

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
_ELEMENTS = 4096
_LATE_CYCLES = 1_000_000_000
"""Half a second of a card: launches take microseconds."""
_RATE = 1e-2


def _settings(device: torch.device) -> StepSettings:
    scalars = adamw_scalars(
        torch.tensor(1), torch.tensor(1.0), lr=_RATE, beta1=0.9, beta2=0.999, weight_decay=0.0
    )
    return StepSettings(
        scalars_host=scalars,
        scalars_device=scalars.to(device),
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
    )


def test_the_numbers_of_a_step_outlive_its_jobs() -> None:
    device = torch.device("cuda:0")
    units = [Unit(name, _ELEMENTS, _ELEMENTS) for name in ("first", "second")]
    state = TrainState(units, StateFormat(split=False, moments="fp32"), pin=True)
    streams, updates = Streams.of(device), Updates(len(units))
    engine = GpuEngine(state, updates, streams, device)
    try:
        grad = torch.ones(_ELEMENTS, device=device)
        torch.cuda.synchronize()
        with streams.update.on():
            torch.cuda._sleep(_LATE_CYCLES)
        for unit in range(len(units)):
            updates.begin(unit)
            # As with clipping, each has numbers of its own, and nobody else refers to them.
            landed, settings = streams.compute.mark(), _settings(device)
            engine.put(Job(0, unit, grad, landed, settings, lambda _: None))
            del settings
        # Both are launched, so the first job is forgotten; and neither has begun.
        wait_until(lambda: all(map(updates.is_ready, range(len(units)))))
        taken = [torch.full((count % 8 + 1,), torch.nan, device=device) for count in range(4000)]
        torch.cuda.current_stream().synchronize()
        updates.drain()
        assert all(bool(one.isnan().all()) for one in taken)
        for one in state.states:
            # AdamW's first step moves every element by the whole rate.
            torch.testing.assert_close(one.master, torch.full_like(one.master, -_RATE))
    finally:
        engine.close()
        state.close()
