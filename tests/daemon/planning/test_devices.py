"""How much of each device plans count on."""

import pytest
from support.doctor_reports import NO_CARD, with_torch
from support.plan_shop import GIB, cards

from slidepack.daemon.hardware import Waiting
from slidepack.daemon.planning.devices import devices_to_plan
from slidepack.daemon.planning.picture import PlannedDevice
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.software import TorchBuild


def _devices(
    report: HardwareReport,
    busy: frozenset[str] = frozenset(),
    reserved: int = 0,
    held: tuple[str, ...] = (),
) -> list[PlannedDevice]:
    found = devices_to_plan(
        report, device="auto", busy=busy, reserved_vram_bytes=reserved, held=held
    )
    assert not isinstance(found, Waiting)
    return found


def test_of_an_idle_card_what_is_free_counts_and_of_a_busy_one_all_of_it() -> None:
    first, second = _devices(cards(2, free_gib=5.0), frozenset({"cuda:1"}))
    assert (first.key, first.machine.device_free_bytes) == ("cuda:0", 5 * GIB)
    assert (second.key, second.machine.device_free_bytes) == ("cuda:1", 24 * GIB)
    assert first.name == second.name == "NVIDIA GeForce RTX 4090"


def test_what_the_policy_keeps_free_is_not_counted() -> None:
    kept = _devices(cards(2, free_gib=5.0), frozenset({"cuda:1"}), reserved=2 * GIB)
    assert [device.machine.device_free_bytes for device in kept] == [3 * GIB, 22 * GIB]
    nothing = _devices(cards(1, free_gib=1.0), reserved=2 * GIB)
    assert nothing[0].machine.device_free_bytes == 0


def test_a_card_that_a_chat_holds_is_left_out_unless_all_are_held() -> None:
    report = cards(2, free_gib=5.0)
    assert [one.key for one in _devices(report, held=("cuda:0",))] == ["cuda:1"]
    both = _devices(report, held=("cuda:0", "cuda:1"))
    assert [one.machine.device_free_bytes for one in both] == [24 * GIB, 24 * GIB]


def test_a_little_more_or_less_memory_is_the_same() -> None:
    assert _devices(cards(1, free_gib=5.01)) == _devices(cards(1, free_gib=5.2))
    assert _devices(cards(1, free_gib=5.01)) != _devices(cards(1, free_gib=5.3))


def test_an_idle_card_is_as_fast_as_its_link_can_be() -> None:
    (device,) = _devices(cards(1))
    assert device.rates.link_bytes == pytest.approx(25e9, rel=0.05)


def test_without_a_card_there_is_the_cpu() -> None:
    (device,) = _devices(NO_CARD)
    assert (device.key, device.name, device.machine.device) == ("cpu", "cpu", "cpu")


def test_why_there_is_no_device_is_passed_on() -> None:
    broken = TorchBuild(
        version="2",
        build="cuda",
        build_version="12.8",
        arch_list=(),
        devices=(),
        warnings=(),
        problem="the driver is too old",
    )
    found = devices_to_plan(
        with_torch(cards(1), torch=broken), device="auto", busy=(), reserved_vram_bytes=0
    )
    assert isinstance(found, Waiting)
    assert "the driver is too old" in found.reason
