"""A daemon that may not look into other users' programs says what it misses."""

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cards import card
from support.waiting import PATIENCE, wait_until

from slidepack.daemon.policy.applications import Applications
from slidepack.daemon.policy.blind_spots import blind_spots
from slidepack.daemon.policy.gpu_sample import GpuSample, no_gpus
from slidepack.daemon.policy.process_table import ProcessTable, Sight
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents

SERVICE, PLAYER = 997, 1000
_AMD = card(vendor="amd")
_NOTHING = Policy(detect_games=False)
_BY_PATH = Policy(detect_games=False, exclusive_apps=("/opt/games/*",))


@pytest.mark.parametrize(
    ("policy", "gpus", "missed"),
    [
        (Policy(), (), "games that GameMode started are not seen"),
        (Policy(), (card(),), "games that GameMode started are not seen"),
        (_BY_PATH, (), "programs that are listed by their path are not seen"),
        (Policy(exclusive_apps=("a/b",)), (), "games that GameMode started and programs that"),
        (_NOTHING, (_AMD,), "loads that other programs put on AMD cards are not seen"),
        (
            Policy(exclusive_apps=("a/b",)),
            (_AMD,),
            "GameMode started, programs that are listed by their path and loads that",
        ),
    ],
)
def test_what_is_missed_is_named(policy: Policy, gpus: tuple[object, ...], missed: str) -> None:
    assert missed in blind_spots(policy, "names", gpus)  # type: ignore[arg-type]  # they are cards
    assert blind_spots(policy, "all", gpus) == ""  # type: ignore[arg-type]
    assert "by name are" in blind_spots(policy, "names", gpus)  # type: ignore[arg-type]


@pytest.mark.parametrize("sight", ["names", "own"])
def test_who_asks_for_nothing_misses_nothing(sight: Sight) -> None:
    quiet = Policy(detect_games=False, foreign_gpu_percent=0)
    assert blind_spots(quiet, sight, (_AMD,)) == ""
    by_name = Policy(detect_games=False, exclusive_apps=("cs2", "cmd:*/cs2*"))
    assert (blind_spots(by_name, sight, ()) == "") == (sight == "names")


def _sight_in(proc: Path, user: int) -> Sight:
    table = ProcessTable(proc, environment=False, user=user)
    table.scan(0.0)
    return table.sight


def test_a_system_that_hides_all_others_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    assert _sight_in(tmp_path, PLAYER) == "all", "the games of this user are their own"
    assert _sight_in(tmp_path, SERVICE) == "own"
    assert "hidepid" in blind_spots(Policy(), "own", ())
    (tmp_path / "1").mkdir()
    assert _sight_in(tmp_path, SERVICE) == "all"


@pytest.fixture
def player() -> Iterator[subprocess.Popen[bytes]]:
    """A program of somebody who logs in here."""
    if os.geteuid() != 0:
        pytest.skip("only root can run programs of other users")
    process = subprocess.Popen(["/bin/sleep", "60"], user=PLAYER, group=PLAYER, extra_groups=[])
    try:
        # Until then it is this test's own program.
        wait_until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        yield process
    finally:
        process.kill()
        process.wait()


def _look_as(user: int, answer: "multiprocessing.SimpleQueue[Sight]") -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    applications = Applications()
    applications.find(Policy(exclusive_apps=("sleep",)), (), 0.0)
    answer.put(applications.sight)


@pytest.mark.parametrize(("user", "sight"), [(SERVICE, "names"), (PLAYER, "all"), (0, "all")])
def test_whom_the_kernel_refuses_knows_it(
    player: subprocess.Popen[bytes], user: int, sight: Sight
) -> None:
    # A fork: another user may not be able to read this installation.
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.SimpleQueue[Sight] = context.SimpleQueue()
    process = context.Process(target=_look_as, args=(user, answer))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert answer.get() == sight


class _Blind(Applications):
    """Sees names only."""

    @property
    def sight(self) -> Sight:
        return "names"


def test_the_policy_tells_it_with_the_cards_it_has(tmp_path: Path) -> None:
    sample = GpuSample(gpus=(_AMD,))
    for index, (cards, amd) in enumerate(((no_gpus, False), (lambda: sample, True))):
        watch = PolicyWatch(
            Documents(Database(tmp_path / f"{index}.db")), sample=cards, applications=_Blind()
        )
        watch.look(1.0, 1.0, ())
        (notice,) = watch.state(1.0).notices
        assert "GameMode" in notice
        assert ("AMD" in notice) == amd
