"""A drive that refuses while a run ends is logged, and hides nothing."""

import logging
from pathlib import Path

import pytest
import torch

from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.sliding.state import StateFormat, TrainState, Unit
from slidepack.engine.sliding.tier_store import TierSetup


def test_what_cannot_be_removed_stays_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = (tmp_path / "one", tmp_path / "two")
    tier = TierSetup(
        folders=folders,
        moments=frozenset({0}),
        master=frozenset({0}),
        transport=RingTransport(threads=1),
        chunk=4096,
    )
    units = [Unit("layer 0", 10_000, 9_000)]
    state = TrainState(units, StateFormat(split=True, moments="int8"), pin=False, tier=tier)
    state.write(0, 0, torch.randn(10_000))
    # As a file of a drive that has become read-only, it is not to be unlinked.
    (folders[0] / "refused.state").mkdir()
    with caplog.at_level(logging.WARNING):
        state.close()
    assert [path.name for path in folders[0].iterdir()] == ["refused.state"]
    assert not folders[1].exists()
    assert str(folders[0]) in caplog.text
    caplog.clear()
    state.close()
