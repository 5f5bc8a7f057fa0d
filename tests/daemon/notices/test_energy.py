"""Energy: what counters and power add up to, and what is said of what was not measured."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from slidepack.daemon.notices.energy import EnergyMeter, energy_between
from slidepack.daemon.notices.energy_sources import Rapl, read_card_counters
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.store.database import Database

_BEGIN = 1_800_000_000.0
"""A full hour."""


def _gpu(index: int = 0, watts: float | None = None) -> Gpu:
    return Gpu(
        vendor="nvidia",
        index=index,
        uuid=f"GPU-{index}",
        name="RTX",
        pci_address="",
        architecture="sm_89",
        driver_version="1",
        power_watts=watts,
    )


class _Machine:
    """A card's and a processor's counters, a clock, and the meter over them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.counters: dict[str, float] = {}
        self.seconds = 0.0
        self.slept = 0.0
        self.database = Database(folder / "slidepack.db")
        self.meter = self.new_meter()

    def new_meter(self) -> EnergyMeter:
        return EnergyMeter(
            self.database,
            rapl=Rapl(self.root),
            card_counters=self._read,
            clock=lambda: _BEGIN + self.seconds + self.slept,
        )

    def _read(self, gpus: Sequence[Gpu]) -> dict[str, float]:
        return {gpu.uuid: self.counters[gpu.uuid] for gpu in gpus if gpu.uuid in self.counters}

    def zone(self, number: str, name: str, joules: float, wraps_at: float = 262_143.0) -> Path:
        folder = self.root / "sys/class/powercap" / number
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
        (folder / "max_energy_range_uj").write_text(f"{round(wraps_at * 1e6)}\n")
        return folder

    def sample(self, *gpus: Gpu, after: float = 5.0, job: int = 1, attempt: int = 1) -> None:
        self.seconds += after
        self.meter.sample(self.seconds, job, attempt, gpus)


@pytest.fixture
def machine(tmp_path: Path) -> _Machine:
    return _Machine(tmp_path)


def test_a_lane_is_charged_with_its_part(machine: _Machine) -> None:
    for _ in range(3):
        machine.seconds += 5.0
        gpu = _gpu(watts=100.0)
        machine.meter.sample(machine.seconds, 1, 1, [gpu], share=0.25, cpu_share=0.1)
        machine.meter.sample(machine.seconds, 2, 1, [gpu], share=0.75, cpu_share=0.9)
    one, all_of_it = machine.meter.of_job(1), machine.meter.total()
    assert (one.card_joules, one.seconds) == (250.0, 2.5)
    assert (all_of_it.card_joules, all_of_it.seconds) == (1000.0, 10.0)


def test_nothing_measured_is_none_and_says_why(machine: _Machine) -> None:
    assert machine.meter.of_job(1).joules is None
    for _ in range(3):
        machine.sample(_gpu())
    report = machine.meter.of_job(1)
    assert (report.joules, report.card_joules, report.cpu_joules) == (None, None, None)
    assert (report.source, report.seconds) == ("not measured", 10.0)
    assert report.note == (
        "no card reports its power; this machine shows no energy counter of its CPU"
    )
    machine.sample(job=2)
    machine.sample(job=2)
    assert machine.meter.of_job(2).note == "this machine shows no energy counter of its CPU"


def test_power_is_integrated_by_its_mean(machine: _Machine) -> None:
    for watts in (100.0, 300.0, 300.0):
        machine.sample(_gpu(watts=watts))
    report = machine.meter.of_job(1)
    assert report.joules == report.card_joules == 200 * 5 + 300 * 5
    assert (report.source, report.card_seconds) == ("card only", 10.0)


def test_the_cards_counter_is_better_than_its_power(machine: _Machine) -> None:
    for joules in (1000.0, 1750.0):
        machine.counters["GPU-0"] = joules
        machine.sample(_gpu(watts=100.0))
    assert machine.meter.of_job(1).joules == 750.0
    # The driver was loaded again: the counter starts from 0, and the power stands in.
    machine.counters["GPU-0"] = 3.0
    machine.sample(_gpu(watts=100.0))
    assert machine.meter.of_job(1).joules == 750.0 + 500.0


def test_cards_and_packages_are_added_up(machine: _Machine) -> None:
    for step in range(3):
        machine.counters |= {"GPU-0": step * 500.0, "GPU-1": step * 250.0}
        machine.zone("intel-rapl:0", "package-0", 100.0 + step * 40)
        machine.zone("intel-rapl:1", "package-1", 7.0 + step * 60)
        # Parts of a package, what holds it, and the same one again.
        machine.zone("intel-rapl:0:0", "core", step * 1000.0)
        machine.zone("intel-rapl:2", "psys", step * 1000.0)
        machine.zone("intel-rapl-mmio:0", "package-0", step * 1000.0)
        machine.sample(_gpu(0), _gpu(1))
    report = machine.meter.of_job(1)
    assert report.card_joules == 1500.0
    assert report.cpu_joules == pytest.approx(200.0)
    assert report.joules == pytest.approx(1700.0)
    assert (report.source, report.note) == ("card + CPU package", "")


def test_a_counter_that_wraps_is_followed_and_one_that_was_reset_is_not(
    machine: _Machine,
) -> None:
    machine.zone("intel-rapl:0", "package-0", 950.0, wraps_at=1000.0)
    machine.sample()
    machine.zone("intel-rapl:0", "package-0", 25.0, wraps_at=1000.0)
    machine.sample()
    report = machine.meter.of_job(1)
    assert report.joules == pytest.approx(75.0)
    assert report.source == "CPU package only"
    # With the usual range, a reset would read as 262 kJ in five seconds.
    machine.zone("intel-rapl:0", "package-0", 500.0)
    machine.sample(job=2)
    machine.zone("intel-rapl:0", "package-0", 20.0)
    machine.sample(job=2)
    assert machine.meter.of_job(2).joules is None


def test_gaps_and_sleep_are_not_integrated(machine: _Machine) -> None:
    for after in (5.0, 5.0, 31.0, 30.0):
        machine.sample(_gpu(watts=100.0), after=after)
    assert machine.meter.of_job(1).joules == 500.0 + 3000.0
    # The monotonic clock stood still while the machine slept.
    machine.slept += 8 * 3600
    machine.sample(_gpu(watts=100.0))
    assert machine.meter.of_job(1).seconds == 35.0
    machine.sample(_gpu(watts=100.0))
    assert machine.meter.of_job(1).seconds == 40.0
    machine.slept -= 3600
    machine.sample(_gpu(watts=100.0))
    assert machine.meter.of_job(1).seconds == 45.0, "a clock that was set back is no sleep"


def test_a_restarted_daemon_loses_one_interval(machine: _Machine) -> None:
    for _ in range(3):
        machine.sample(_gpu(watts=100.0))
    machine.meter = machine.new_meter()
    for _ in range(3):
        machine.sample(_gpu(watts=100.0))
    machine.sample(_gpu(watts=100.0), attempt=2)
    machine.sample(_gpu(watts=100.0), attempt=2)
    assert machine.meter.of_job(1).joules == 2 * 1000.0 + 500.0
    rows = machine.database.query("SELECT attempt, card_joules FROM energy ORDER BY attempt")
    assert [(row["attempt"], row["card_joules"]) for row in rows] == [(1, 2000.0), (2, 500.0)]


def test_a_card_that_is_silent_for_a_while_is_told_of(machine: _Machine) -> None:
    for number in range(20):
        machine.sample(_gpu(watts=None if number < 10 else 100.0))
    report = machine.meter.of_job(1)
    assert report.joules == 9 * 500.0
    assert "cards measured for 47% of the time" in report.note
    # Of two cards, one alone would pass for both.
    for _ in range(3):
        machine.sample(_gpu(0, 100.0), _gpu(1), job=2)
    assert machine.meter.of_job(2).joules is None


def test_two_runs_side_by_side_are_apart(machine: _Machine) -> None:
    for _ in range(3):
        machine.sample(_gpu(0, 100.0), job=1)
        machine.sample(_gpu(1, 200.0), job=2, after=0.0)
    assert machine.meter.of_job(1).joules == 1000.0
    assert machine.meter.of_job(2).joules == 2000.0
    assert machine.meter.total().joules == 3000.0


def test_energy_between_two_moments_counts_each_quarter_once(machine: _Machine) -> None:
    for _ in range(361):
        machine.sample(_gpu(watts=100.0), after=10.0)
    total = machine.meter.total().joules
    assert total == 360 * 1000.0
    quarters = [
        energy_between(machine.database, _BEGIN + n * 900, _BEGIN + (n + 1) * 900).joules
        for n in range(5)
    ]
    assert sum(value for value in quarters if value is not None) == total
    assert quarters[1:4] == [90_000.0] * 3
    now = energy_between(machine.database, _BEGIN, _BEGIN + 60.0).joules
    assert now == quarters[0], "a quarter that has begun is told"
    assert energy_between(machine.database, _BEGIN - 900, _BEGIN).joules is None


def test_a_counter_for_root_only_is_named(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = machine.zone("intel-rapl:0", "package-0", 1.0)
    (zone / "energy_uj").chmod(0)
    real = Path.read_text

    def refusing(path: Path, *arguments: str) -> str:
        # Tests may run as root, whom no mode stops.
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments)

    monkeypatch.setattr(Path, "read_text", refusing)
    machine.sample(_gpu(watts=100.0))
    machine.sample(_gpu(watts=100.0))
    report = machine.meter.of_job(1)
    assert (report.cpu_joules, report.source) == (None, "card only")
    assert report.note.startswith("only root may read the CPU's counter")
    assert str(zone / "energy_uj") in report.note


def test_the_driver_is_asked_for_millijoules() -> None:
    ended = []

    def handle(uuid: str) -> str:
        if uuid == "GPU-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return uuid

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: ended.append(1),
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetTotalEnergyConsumption=lambda _handle: 123_456,
    )
    assert read_card_counters([_gpu(0), _gpu(1)], nvml) == {"GPU-0": 123.456}
    assert ended == [1]
    assert read_card_counters([], nvml) == {}

    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    nvml.nvmlInit = missing
    assert read_card_counters([_gpu(0)], nvml) == {}
