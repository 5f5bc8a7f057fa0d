"""Members that an Optuna study chooses; skipped, aloud, where Optuna is not installed."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.queueing import Farm
from support.sweep_shop import SweepShop
from support.tiny import chat_rows, write_jsonl

from slidepack.cli.sweep_optuna import SweepStudy, make_study, optimise
from slidepack.daemon.sweeps.request import MembersRequest, SweepPlan, SweepRequest
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.sweep import Halving

PLAN = SweepPlan(
    name="searched",
    fixed={"steps": 4},
    random={
        "seed": 3,
        "lr": {"log": [1e-5, 1e-2]},
        "rank": {"log": [2, 32]},
        "targets": {"choices": [["q_proj"], ["q_proj", "v_proj"]]},
    },
    grid={"schedule": ["cosine", "constant"]},
    halving=Halving(first_samples=8),
)


class _Daemon:
    """Answers as the API does, over a real database; its jobs end when a test says so."""

    def __init__(self, home: Path) -> None:
        self.shop = SweepShop(home)

    def get(self, path: str) -> Any:
        return msgspec.to_builtins(self.shop.sweeps.show(int(path.removeprefix("/sweeps/"))))

    def post(self, path: str, body: object = None) -> Any:
        _, _, sweep, *_ = [*path.split("/"), ""]
        if not sweep:
            request = msgspec.convert(body, SweepRequest)
            return msgspec.to_builtins(self.shop.sweeps.add(request))
        members = msgspec.convert(body, MembersRequest)
        return msgspec.to_builtins(self.shop.sweeps.add_members(int(sweep), members))

    def train(self, most: int = 500) -> None:
        """Let the first jobs that wait end; the loss is lowest at a rate of 1e-3."""
        for job in self.shop.stores.jobs.queued()[:most]:
            lr = self.shop.stores.jobs.spec(job.id).optim.lr
            self.shop.measure(job.id, 9.0, 1.0 + abs(lr - 1e-3))
            self.shop.end(job.id)


@pytest.fixture
def daemon(tmp_path: Path) -> _Daemon:
    return _Daemon(tmp_path)


@pytest.fixture
def optuna() -> Any:
    return pytest.importorskip("optuna", reason="Optuna is not installed: its tests are left out")


@pytest.fixture
def sweep(daemon: _Daemon, optuna: Any) -> SweepStudy:
    target = {"model": daemon.shop.model, "dataset": daemon.shop.dataset}
    return SweepStudy(make_study(PLAN), PLAN, daemon, target)


def test_members_are_asked_for_in_one_sweep_and_told(sweep: SweepStudy, daemon: _Daemon) -> None:
    first = sweep.ask(3)
    assert (len(first), sweep.running, sweep.tell()) == (3, 3, ())
    for job_id in first:
        spec = daemon.shop.stores.jobs.spec(job_id)
        assert 1e-5 <= spec.optim.lr <= 1e-2
        assert 2 <= spec.method.rank <= 32  # type: ignore[union-attr]
        assert spec.steps == 4
    daemon.train()
    assert sorted(sweep.tell()) == sorted(first)
    sweep.ask(1)
    (table,) = daemon.shop.sweeps.list_sweeps()
    assert (table.id, table.members, table.name) == (sweep.sweep_id, 4, "searched")


def test_a_study_learns_and_never_has_more_than_allowed(daemon: _Daemon, optuna: Any) -> None:
    study = make_study(PLAN)
    target = {"model": daemon.shop.model, "dataset": daemon.shop.dataset}
    sweep = SweepStudy(study, PLAN, daemon, target)
    waiting, told = [], []

    def wait() -> None:
        waiting.append(len(daemon.shop.stores.jobs.queued()))
        daemon.train(2)

    optimise(sweep, 20, 6, lambda ended, of: told.append((ended, of)), wait)
    assert waiting == [*[6] * 8, 4, 2]
    assert told == [(ended, 20) for ended in range(2, 21, 2)]
    best = daemon.shop.sweeps.best(1)
    assert study.best_value == best.loss
    assert study.best_params["lr"] == best.settings["lr"]
    states = {trial.state for trial in study.trials}
    assert states == {optuna.trial.TrialState.COMPLETE}


def test_each_ending_is_told_as_what_it_is(daemon: _Daemon, optuna: Any) -> None:
    study = make_study(PLAN)
    target = {"model": daemon.shop.model, "dataset": daemon.shop.dataset}
    sweep = SweepStudy(study, PLAN, daemon, target)
    stopped, failed, unmeasured, gone, done, running = sweep.ask(6)
    shop = daemon.shop
    shop.judge(done, 1.0)
    assert not shop.judge(stopped, 2.0)
    for job_id, loss in ((stopped, 2.0), (done, 1.0)):
        shop.measure(job_id, 9.0, loss)
        shop.end(job_id)
    shop.measure(failed, 9.0, 0.5)
    shop.end(failed, "failed")
    shop.end(unmeasured)
    shop.end(gone, "cancelled")
    shop.queue.remove(gone)
    assert set(sweep.tell()) == {stopped, failed, unmeasured, gone, done}
    assert sweep.running == 1
    state = optuna.trial.TrialState
    assert [trial.state for trial in study.trials] == [
        *(state.PRUNED, state.FAIL, state.FAIL, state.FAIL, state.COMPLETE, state.RUNNING)
    ]
    assert study.trials[0].intermediate_values == {1: 2.0}
    assert study.best_value == 1.0
    assert shop.stores.jobs.get(running).state == "queued"


def test_what_the_daemon_refuses_is_no_trial_that_runs(daemon: _Daemon, optuna: Any) -> None:
    plan = msgspec.structs.replace(PLAN, random={"rank": {"uniform": [2000, 3000]}}, grid={})
    study = make_study(plan)
    target = {"model": daemon.shop.model, "dataset": daemon.shop.dataset}
    sweep = SweepStudy(study, plan, daemon, target)
    with pytest.raises(SlidepackError, match="use 1 to 1024"):
        sweep.ask(2)
    assert {trial.state for trial in study.trials} == {optuna.trial.TrialState.FAIL}
    assert (sweep.running, sweep.sweep_id) == (0, None)


def test_the_same_seed_searches_the_same(tmp_path: Path, optuna: Any) -> None:
    found = []
    for name in ("one", "two"):
        daemon = _Daemon(tmp_path / name)
        target = {"model": daemon.shop.model, "dataset": daemon.shop.dataset}
        jobs = SweepStudy(make_study(PLAN), PLAN, daemon, target).ask(4)
        found.append([daemon.shop.stores.jobs.spec(job).optim.lr for job in jobs])
    assert found[0] == found[1]


@pytest.mark.usefixtures("optuna")
@pytest.mark.full
def test_the_command_queues_trials_at_a_daemon(
    command: Callable[..., Any], served_farm: Farm, tmp_path: Path
) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", chat_rows(40))
    space = tmp_path / "space.toml"
    space.write_text(
        "[fixed]\nsteps = 2\nbatch_size = 4\nmax_seq_len = 128\n[random.lr]\nlog = [1e-5, 1e-2]\n"
    )
    search = ("sweep", "optuna", str(rows), "--model", served_farm.model, "--space", str(space))
    status, table = command(*search, "--trials", "3", "--at-once", "2", "--name", "found")
    assert (status, table["sweep"]["name"], len(table["members"])) == (0, "found", 3)
    assert {row["state"] for row in table["members"]} == {"completed"}
    assert table["best"]["loss"] == min(row["loss"] for row in table["members"])


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SlidepackError, match=r"pip install 'slidepack\[optuna\]'"):
        make_study(PLAN)
