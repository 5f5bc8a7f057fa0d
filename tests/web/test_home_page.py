"""The first page: what its views say, and that its templates show it, escaped."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import get_args
from zoneinfo import ZoneInfo

import msgspec
import pytest
from support.job_records import job_record
from support.notices import NOTHING_MEASURED

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.notices.digest import compose
from slidepack.daemon.notices.night import FailedJob, Night
from slidepack.daemon.planner.answer import LaneSpan, Plan
from slidepack.daemon.policy.holding import Hold
from slidepack.daemon.policy.rules import Policy, parse_window
from slidepack.daemon.policy.state import policy_state
from slidepack.daemon.policy.windows import WindowState, open_spans
from slidepack.daemon.probe.amd import AmdInfo
from slidepack.daemon.probe.cpu import CpuInfo
from slidepack.daemon.probe.drives import Drive, Drives
from slidepack.daemon.probe.endurance import DriveWear
from slidepack.daemon.probe.gpu import Gpu, GpuProcess
from slidepack.daemon.probe.memory import MemoryInfo
from slidepack.daemon.probe.nvidia import NvidiaInfo
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.tier import Tier
from slidepack.daemon.probe.wsl import WslInfo
from slidepack.daemon.states import LIVE, TERMINAL, JobState
from slidepack.engine.memory_parts import NvmeRoom
from slidepack.web.app import template_engine
from slidepack.web.contexts import HomePage
from slidepack.web.day_strip import WIDTH, DayStrip, day_strip, strip_end
from slidepack.web.hardware_view import HardwareCard, HardwareView, hardware_view
from slidepack.web.queue_view import SPARK_HEIGHT, LiveJob, QueueView, queue_view, spark

_GIB = 1 << 30
_PROBLEM = ProbeProblem(item="any", what="It could not be read.", why="denied", fix="Look.")
_BERLIN = ZoneInfo("Europe/Berlin")


def render(name: str, **context: object) -> str:
    return template_engine().get_template(name).render(**context)


def gpu(**changes: object) -> Gpu:
    card = Gpu(
        vendor="nvidia",
        index=0,
        uuid="GPU-0",
        name="A <card>",
        pci_address="0000:01:00.0",
        architecture="sm_89",
        driver_version="570.1",
        vram_total_bytes=16 * _GIB,
        vram_free_bytes=5 * _GIB,
    )
    return msgspec.structs.replace(card, **changes)


def report(*cards: Gpu, **changes: object) -> HardwareReport:
    drive = Drive(
        mount="/",
        device="/dev/nvme0n1",
        fs_type="ext4",
        kind="nvme",
        total_bytes=1 << 40,
        free_bytes=1 << 39,
        read_only=False,
        holds_data_dir=True,
        holds_home=True,
    )
    whole = HardwareReport(
        nvidia=NvidiaInfo(driver_version="570.1", cuda_version="12.8", cards_on_bus=(), gpus=cards),
        amd=AmdInfo(gpus=(), kfd_access="missing", missing_groups=()),
        cpu=CpuInfo(
            model="A processor",
            physical_cores=8,
            logical_cores=16,
            allowed_cores=16,
            quota_cores=None,
            extensions=("avx2",),
        ),
        memory=MemoryInfo(
            total_bytes=32 * _GIB,
            available_bytes=16 * _GIB,
            swap_total_bytes=0,
            swap_free_bytes=0,
            cgroup_limit_bytes=24 * _GIB,
            memlock_bytes=None,
        ),
        drives=Drives(drives=(drive, msgspec.structs.replace(drive, holds_data_dir=False))),
        wsl=WslInfo(version="no", kernel="6.1"),
        software=None,
    )
    return msgspec.structs.replace(whole, **changes)


def view(found: HardwareReport, **changes: object) -> HardwareView:
    values: dict[str, object] = {
        "problems": (),
        "holders": {},
        "planned_ram_bytes": 0,
        "load": 4.0,
    }
    return hardware_view(found, **(values | changes))  # type: ignore[arg-type]  # by name


def card(found: HardwareView, title: str) -> HardwareCard:
    (one,) = (card for card in found.cards if card.title == title)
    return one


def test_a_card_says_how_much_is_ours_how_much_is_others_and_who_they_are() -> None:
    processes = (
        GpuProcess(pid=1, name="game", used_bytes=2 * _GIB),
        GpuProcess(pid=2, name="python", used_bytes=8 * _GIB),
        GpuProcess(pid=3, name="", used_bytes=None),
    )
    busy = gpu(processes=processes, temperature_celsius=61, power_watts=180.4)
    found = card(view(report(busy), holders={2: "2 jobs"}), "A <card>")
    assert (found.head, found.rest) == ("5.0 GiB free", "of 16.0 GiB VRAM")
    assert found.level is not None
    # 11 of 16 GiB are in use, of which 8 are ours: the driver's own share counts as others'.
    assert (found.level.ours, found.level.others, found.level.high) == (500, 188, False)
    assert found.level.words == "8.0 GiB ours, 3.0 GiB others, 5.0 GiB free"
    assert found.lines[:3] == (
        "8.0 GiB ours, 3.0 GiB others",
        "61 °C · 180 W",
        "used by 2 jobs (8.0 GiB), game (2.0 GiB), process 3",
    )


def test_a_driver_that_does_not_say_who_holds_what_is_not_guessed_at() -> None:
    silent = gpu(processes=(GpuProcess(pid=2, name="python", used_bytes=None),))
    found = card(view(report(silent), holders={2: "job 4"}), "A <card>")
    assert found.level is not None
    assert found.level.words == "11.0 GiB in use, 5.0 GiB free"
    assert "ours" not in " ".join(found.lines)
    assert "used by job 4" in found.lines
    unknown = card(view(report(gpu(vram_free_bytes=None))), "A <card>")
    assert (unknown.head, unknown.level) == ("16.0 GiB VRAM", None)


def test_a_machine_without_a_card_says_what_that_means_and_a_broken_driver_that() -> None:
    assert card(view(report()), "No GPU").head == "Training runs on the CPU."
    broken = card(view(report(nvidia=_PROBLEM)), "GPU")
    assert (broken.head, broken.lines) == ("It could not be read.", ("Look.",))


def test_memory_counts_the_control_group_and_the_plans_of_runs() -> None:
    found = card(view(report(), planned_ram_bytes=2 * _GIB), "RAM")
    assert (found.head, found.rest) == ("16.0 GiB free", "of 24.0 GiB")
    assert found.level is not None
    assert (found.level.ours, found.level.others) == (83, 250)
    assert "pinned memory: no limit" in found.lines
    # What runs have planned and not yet taken is not in use.
    much = card(view(report(), planned_ram_bytes=20 * _GIB), "RAM")
    assert much.level is not None
    assert (much.level.ours, much.level.others) == (333, 0)


def test_the_drive_of_the_data_directory_shows_its_wear() -> None:
    wear = DriveWear(
        disk="nvme0n1",
        model="",
        size_bytes=None,
        written_bytes=90 * 10**12,
        used_share=0.12,
        rated_write_bytes=None,
        rated_source="",
        problem="",
    )
    secret = msgspec.structs.replace(wear, used_share=None, problem="root alone may read it")
    known, unknown = (card(view(report(), wear=(one,)), "NVMe") for one in (wear, secret))
    assert known.lines == ("ext4 at /", "endurance used: 12%, 90.0 TB written")
    assert unknown.lines[1] == ("endurance used: unknown (root alone may read it), 90.0 TB written")
    rated = msgspec.structs.replace(secret, rated_write_bytes=600e12)
    silent = msgspec.structs.replace(secret, written_bytes=None, problem="")
    of_rating, nothing = (card(view(report(), wear=(one,)), "NVMe") for one in (rated, silent))
    assert of_rating.lines[1] == "endurance used: about 15% of 600 TB, 90.0 TB written"
    assert nothing.lines[1] == "endurance used: unknown (the drive does not tell)"


def test_drives_for_training_state_that_are_others_have_a_card_too() -> None:
    wear = DriveWear(
        disk="nvme1n1",
        model="",
        size_bytes=None,
        written_bytes=None,
        used_share=0.4,
        rated_write_bytes=600e12,
        rated_source="",
        problem="",
    )
    room = NvmeRoom(
        folders=("/fast/state",),
        free_bytes=200 * _GIB,
        linked=False,
        read_bytes_per_second=3e9,
        write_bytes_per_second=2e9,
        measured=True,
    )
    found = view(report(tier=Tier(room=room, wear=(wear,))))
    state = card(found, "Drives for training state")
    assert state.head == "200.0 GiB free"
    assert state.lines == ("/fast/state", "nvme1n1: endurance used: 40%")
    assert "/fast/state" in render("parts/hardware.html", view=found)
    here = msgspec.structs.replace(room, linked=True)
    same = view(report(tier=Tier(room=here, wear=(wear,))))
    assert [one.title for one in same.cards] == [one.title for one in view(report()).cards]


def local(text: str, zone: ZoneInfo = _BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def strip(now: str, policy: Policy, plan: Plan | None = None) -> DayStrip:
    instant = local(now)
    spans = open_spans(policy, instant, strip_end(instant, _BERLIN))
    return day_strip(instant, _BERLIN, spans, plan)


def nights(hours: str) -> Policy:
    return Policy(windows=(parse_window("daily", hours),), time_zone="Europe/Berlin")


def plan_until(end: float, begin: float) -> Plan:
    return Plan(
        now=begin,
        spans=(
            LaneSpan(task="job 1", devices=("cpu",), begin=begin, end=end, ends=True),
            LaneSpan(task="job 2", devices=("cpu",), begin=begin, end=end - 60, ends=True),
        ),
        tasks=(),
        makespan_seconds=end - begin,
        open_seconds=end - begin,
        bound_seconds=0.0,
        bound_kind="work",
        gap=0.0,
        one_by_one_seconds=0.0,
        packing_gain=1.0,
        packing_pays=False,
        verdict="",
        solver_bound_seconds=None,
        method="greedy",
        max_lanes={},
        simulated=1,
    )


def test_the_strip_shows_tonight_and_when_the_queue_is_done() -> None:
    begin, done = local("2026-03-10T23:00"), local("2026-03-11T03:00")
    found = strip("2026-03-10T18:30", nights("23:00-07:00"), plan_until(done, begin))
    assert (found.open[0].x, found.open[0].width) == (5 * 40, 8 * 40)
    (busy,) = found.busy
    assert (busy.x, busy.width) == (5 * 40, 4 * 40)
    assert (found.now, found.done) == (20, 9 * 40)
    assert [mark.text for mark in found.marks] == ["21", "00", "03", "06", "09", "12", "15"]
    assert found.words == (
        "Training may run 23:00 to Wed 07:00.",
        "By the plan the queue is done Wed 03:00.",
    )


@pytest.mark.parametrize(
    ("now", "hours", "marks"),
    [
        # In spring the night is an hour shorter: from 23:00 to 07:00 are seven hours.
        ("2026-03-28T18:00", 7, ["21", "00", "06", "09", "12", "15", "18"]),
        ("2026-10-24T18:00", 9, ["21", "00", "03", "06", "09", "12", "15"]),
    ],
)
def test_the_strip_is_true_on_a_day_that_loses_or_repeats_an_hour(
    now: str, hours: int, marks: list[str]
) -> None:
    found = strip(now, nights("23:00-07:00"))
    assert (found.open[0].x, found.open[0].width) == (5 * 40, hours * 40)
    shown = [mark.text for mark in found.marks]
    assert shown[:2] == marks[:2]
    # Three in the morning is where the clock shows it; in spring the wall goes from 01:59 to 03:00.
    three = next(mark.percent for mark in found.marks if mark.text == "03")
    assert three == pytest.approx(100 * {7: 8, 9: 10}[hours] / 24, abs=0.01)


def test_the_strip_in_words_without_windows_and_in_the_middle_of_one() -> None:
    assert strip("2026-03-10T18:30", Policy()).words == ("Training may run at any hour.",)
    inside = strip("2026-03-10T02:10", nights("23:00-07:00"))
    assert inside.words == ("Training may run until 07:00, from 23:00 on.",)
    never = day_strip(local("2026-03-10T18:30"), _BERLIN, (), None)
    assert never.words == ("No window opens in the next 24 hours.",)
    late = plan_until(local("2026-03-14T03:00"), local("2026-03-10T23:00"))
    beyond = strip("2026-03-10T18:30", nights("23:00-07:00"), late)
    assert beyond.done is None
    assert beyond.busy[0].x + beyond.busy[0].width == WIDTH
    assert beyond.words[-1] == "By the plan the queue is done Sat 03:00."


def test_a_spark_keeps_its_gaps_and_its_range() -> None:
    assert spark([]) is spark([1.0]) is spark([None, 2.0]) is None
    found = spark([4.0, None, 3.0, 2.0])
    assert found is not None
    assert found.points == f"0.0,1.0 80.0,{1 + (SPARK_HEIGHT - 2) / 2:.1f} 120.0,23.0"
    assert found.words == "Training loss from 4.000 to 2.000"
    flat = spark([1.0, 1.0])
    assert flat is not None
    assert flat.points == "0.0,1.0 120.0,1.0"


def queue(*, full: bool) -> QueueView:
    states: tuple[JobState, ...] = get_args(JobState) if full else ()
    jobs = [
        job_record(state, begun=begun, reason="waits for <something>")
        for state in states
        for begun in (True, False)
    ]
    return queue_view(
        live=[
            LiveJob(job=job, spark=spark([2.0, 1.0]), device="A <card>", done="03:14")
            for job in jobs
            if job.state in LIVE
        ],
        waiting=[job for job in jobs if job.state not in LIVE | TERMINAL],
        ended=[job for job in jobs if job.state in TERMINAL],
        counts=dict.fromkeys(states, 5),
        planned=None,
        now=100.0,
        zone=UTC,
    )


def test_the_lists_say_how_many_jobs_they_leave_out() -> None:
    found = queue(full=True)
    assert (found.more_live, found.more_next, found.more_ended) == (15, 9, 9)
    text = render("parts/queue.html", view=found)
    for shown in ("and 15 more", "and 9 more wait", "loss 1.500", "12 s left, done 03:14"):
        assert shown in text
    assert "Waits for &lt;something&gt;." in text
    assert "No job yet." in render("parts/queue.html", view=queue(full=False))


_OPEN = WindowState(open=True, since=None, until=None)
_FREE = policy_state(None, _OPEN, 0.0, UTC, ())
_HELD = policy_state(
    Hold(code="paused", reason="you paused the queue <b>", since=1.0),
    _OPEN,
    0.0,
    UTC,
    ("Windows <programs> are not seen",),
)


def pages() -> Iterator[HomePage]:
    failed = FailedJob(id=1, name="A <job>", code="RUN-FAILED", why="of <that>")
    quiet = Night(since=0.0, until=1.0, energy=NOTHING_MEASURED)
    night = msgspec.structs.replace(quiet, failed=(failed,))
    found = Finding(level="problem", title="A <problem>", evidence="seen", fix="Mend it.")
    broken = HardwareReport(**dict.fromkeys(HardwareReport.__struct_fields__, _PROBLEM))
    for full, hardware in ((True, report(gpu(), gpu())), (False, broken)):
        yield HomePage(
            csrf_token="token",
            hardware=view(hardware, problems=(found,) if full else ()),
            policy=_HELD if full else _FREE,
            queue=queue(full=full),
            tonight=strip("2026-03-10T18:30", nights("23:00-07:00") if full else Policy()),
            digest=compose(night if full else quiet),
            begun=full,
        )


def test_the_page_shows_everything_escaped() -> None:
    whole, bare = (render("home.html", page=page) for page in pages())
    for text in (whole, bare):
        for markup in ("<job>", "<problem>", "<card>", "<something>", "<that>", "<b>", "<failed>"):
            assert markup not in text
    assert "A &lt;problem&gt;" in whole
    assert "Failed: 1 A &lt;job&gt;: RUN-FAILED: of &lt;that&gt;" in whole
    assert bare.count("It could not be read.") == 4
    assert "Nothing ran since yesterday morning." in bare
    assert '<a href="/" aria-current="page">Home</a>' in whole
    assert 'href="/models">choose one to train' in bare
    assert "choose one to train" not in whole


def test_the_page_offers_what_fits_how_the_policy_stands() -> None:
    held, free = (render("parts/policy.html", view=state) for state in (_HELD, _FREE))
    assert "You paused the queue &lt;b&gt;." in held
    assert 'hx-post="/queue/resume"' in held
    assert "Windows &lt;programs&gt; are not seen" in held
    assert "Training may run at any time." in free
    assert 'hx-post="/queue/pause"' in free
