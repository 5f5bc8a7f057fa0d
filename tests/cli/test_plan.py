"""`slidepack plan`: the chart, the figures, the reasons, and what would be."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.plan_shop import NOW, PlanShop, cards

from slidepack.cli import plan as plan_command
from slidepack.cli.gantt import duration, gantt
from slidepack.cli.main import run
from slidepack.daemon.planner.answer import LaneSpan, Options
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planning.question import PlanQuestion
from slidepack.daemon.planning.what_if import ExtraDevice, ExtraJobs, WhatIf
from slidepack.daemon.store.costs import Promise
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod

WHAT_IF = """
without_devices = ["cuda:1"]
windows = [{ days = ["mon", "tue"], start = "23:00", end = "07:00" }]

[[devices]]
name = "RTX 3090"

[[devices]]
like = "cuda:0"
memory_gb = 12
count = 2

[[jobs]]
like = 3
count = 20
rank = 64
rows = 5000
"""


class Answering:
    """Stands for the daemon's client: answers with plans of a shop."""

    def __init__(self, shop: PlanShop) -> None:
        self.shop = shop

    def get(self, path: str) -> Any:
        assert path == "/plan"
        return self._ask(None)

    def post(self, path: str, body: object) -> Any:
        assert path == "/plan"
        assert isinstance(body, WhatIf)
        return self._ask(body)

    def _ask(self, what_if: WhatIf | None) -> Any:
        question = PlanQuestion(
            reader=self.shop.new_reader(),
            maker=self.shop.maker,
            book=self.shop.book,
            jobs=self.shop.stores.jobs,
            policy=lambda: self.shop.policy,
            held=lambda: "",
        )
        return msgspec.to_builtins(question.ask(NOW, what_if))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanShop:
    made = PlanShop(tmp_path, cards(1))
    monkeypatch.setattr(plan_command, "connect", lambda: Answering(made))
    return made


def _said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run(["plan", *arguments]) == 0
    return capsys.readouterr().out


def test_it_shows_a_line_a_job_and_what_the_plan_is_worth(
    shop: PlanShop, capsys: pytest.CaptureFixture[str]
) -> None:
    first = shop.add(name="nightly")
    shop.add(JobTiming(after=(first,)), name="then")
    text = _said(capsys)
    assert "cuda:0 (NVIDIA GeForce RTX 4090, 18.0 GiB)" in text
    lines = [line for line in text.splitlines() if "|" in line]
    assert [line.split("|")[0].split() for line in lines] == [
        ["job", "1", "nightly"],
        ["job", "2", "then"],
    ]
    assert lines[0].index("=") < lines[1].index("=")
    assert "No plan can take less than" in text
    assert "One by one on each device it would take" in text
    assert "Packing does not pay here" in text
    assert "waits for job 1" in text
    assert "No prediction could be checked yet" in text


def test_it_says_what_does_not_fit_and_what_would_help(
    shop: PlanShop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.report = cards(1, free_gib=4.5)
    shop.add(method=LoraMethod(rank=1024))
    text = " ".join(_said(capsys).split())
    assert "nothing runs here" in text
    assert "fits no device now: it needs" in text
    assert "of its rank" in text


def test_it_shows_how_far_off_predictions_were(
    shop: PlanShop, capsys: pytest.CaptureFixture[str]
) -> None:
    job = shop.add()
    shop.run(job, steps=5, tokens=480)
    promise = Promise(
        job_id=job, device="RTX", model="0123456789|bf16|plain", seat="-", end=NOW + 80
    )
    shop.book.promise([promise], NOW)
    shop.end(job, NOW + 100)
    text = _said(capsys)
    assert "The queue is empty" in text or "the queue is empty" in text
    assert "01234567 bf16 plain" in text
    assert "20%" in text


def test_without_a_device_it_says_why(shop: PlanShop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.report = msgspec.structs.replace(shop.report, software=None)
    assert "There is no plan: waits until the hardware has been looked at." in _said(capsys)


def test_what_would_be_is_read_from_a_file(
    shop: PlanShop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = shop.add()
    file = tmp_path / "what-if.toml"
    file.write_text(f'devices = [{{ name = "A10", count = 2 }}]\njobs = [{{ like = {job} }}]\n')
    text = _said(capsys, "--what-if", str(file))
    assert "extra 1.2 (A10" in text
    assert len(shop.stores.jobs.queued()) == 1


def test_the_file_says_all_that_the_api_takes(tmp_path: Path) -> None:
    file = tmp_path / "what-if.toml"
    file.write_text(WHAT_IF)
    asked = plan_command.read_what_if(file)
    assert asked.devices == (
        ExtraDevice(name="RTX 3090"),
        ExtraDevice(like="cuda:0", memory_gb=12, count=2),
    )
    assert asked.jobs == (ExtraJobs(like=3, count=20, rank=64, rows=5000),)
    assert asked.windows is not None
    assert asked.windows[0].text() == "mon,tue 23:00-07:00"


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        (None, "DATA-NOT-FOUND", "No such file"),
        ("devices = [", "DAEMON-REQUEST-INVALID", "what-if.toml"),
        ("device = []", "DAEMON-REQUEST-INVALID", "device"),
        ("[[devices]]\nname = 'GTX 480'", "DAEMON-REQUEST-INVALID", "memory_gb"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_the_daemon_is_asked(
    tmp_path: Path, text: str | None, code: str, named: str
) -> None:
    file = tmp_path / "what-if.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SlidepackError, match=named) as told:
        plan_command.read_what_if(file)
    assert told.value.report.code == code


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "what-if.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SlidepackError, match="UTF-8"):
        plan_command.read_what_if(file)


def test_without_a_daemon_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path))
    assert run(["plan"]) == 72
    assert capsys.readouterr().err.startswith("DAEMON-NOT-RUNNING")


def test_a_bar_is_where_its_time_is_and_many_jobs_are_counted() -> None:
    empty = make_plan((), (), 0.0, Options())
    spans = [
        LaneSpan(task="job 1", devices=("a",), begin=0.0, end=25.0, ends=False),
        LaneSpan(task="job 1", devices=("a",), begin=75.0, end=100.0, ends=True),
        LaneSpan(task="job 2", devices=("b",), begin=50.0, end=75.0, ends=True),
    ]
    plan = msgspec.structs.replace(empty, spans=tuple(spans))
    (line,) = gantt(plan, {"job 1": "nightly"}, "a", 8)
    assert line.split("|")[1] == "==    =="
    (line,) = gantt(plan, {}, "b", 8)
    assert line.split("|")[1] == "    ==  "
    many = [
        LaneSpan(task=f"job {number}", devices=("a",), begin=0.0, end=1.0, ends=True)
        for number in range(50)
    ]
    lines = list(gantt(msgspec.structs.replace(empty, spans=tuple(many)), {}, "a", 8))
    assert lines[-1] == "  and 20 more"
    assert len(lines) == 31


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12.4, "12 s"), (200, "3 min"), (7500, "2 h 05 min"), (273_600, "3 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
