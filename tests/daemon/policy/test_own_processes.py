"""Which processes are ours, also while they leave."""

from pathlib import Path

import pytest

from slidepack.daemon.policy.applications import Applications
from slidepack.daemon.policy.own_processes import OwnProcesses

WORKER = 100


class _Table(Applications):
    """Says of each pid when it started, as the test has it."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"), own_pid=1)
        self.starts: dict[int, int] = {}

    def started(self, pid: int) -> int | None:
        return self.starts.get(pid)


@pytest.fixture
def table() -> _Table:
    return _Table()


def test_a_worker_stays_ours_for_half_a_minute_after_it_left(table: _Table) -> None:
    own = OwnProcesses(table)
    own.update([WORKER], 0.0)
    assert (set(own.pids), own.running) == ({WORKER}, True)
    own.update([], 29.0)
    assert (set(own.pids), own.running) == ({WORKER}, False)
    own.update([], 31.0)
    assert own.pids == frozenset()


def test_the_cards_settle_after_each_coming_and_going(table: _Table) -> None:
    own = OwnProcesses(table)
    own.update([], 0.0)
    assert not own.settling
    course = [([WORKER], 1.0, True), ([WORKER], 12.0, False), ([], 13.0, True), ([], 24.0, False)]
    for pids, monotonic, settling in course:
        own.update(pids, monotonic)
        assert own.settling is settling, monotonic


def test_a_game_with_a_workers_old_pid_is_a_game(table: _Table) -> None:
    own = OwnProcesses(table)
    own.update([WORKER], 0.0)
    table.starts = {WORKER: 500}
    own.update([WORKER], 1.0)
    own.update([], 2.0)
    assert own.pids == {WORKER}, "it is still leaving"
    table.starts = {}
    own.update([], 3.0)
    assert own.pids == {WORKER}, "it is gone, and its memory may not be"
    table.starts = {WORKER: 900}
    own.update([], 4.0)
    assert own.pids == frozenset()
