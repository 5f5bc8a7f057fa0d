"""Who holds a pack up is charged with the time."""

import time

import pytest

from slidepack.engine.worker.held_up import HeldUp


def test_lanes_share_what_is_done_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    held_up = HeldUp()
    with held_up.by("a"):
        clock[0] += 9.0
    held_up.begin()
    assert held_up.take("a") == 0.0, "nobody waited before the first had joined"
    with held_up.by("a", "b"):
        clock[0] += 3.0
    with held_up.by("b"):
        clock[0] += 0.5
    assert (held_up.take("a"), held_up.take("b"), held_up.take("c")) == (1.5, 2.0, 0.0)
    assert held_up.take("a") == 0.0, "a lane that comes again begins anew"
