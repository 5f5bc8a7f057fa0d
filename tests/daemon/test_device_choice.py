"""Which cards the setting `device` names, over cards as torch shows them."""

from pathlib import Path

import msgspec
import pytest
from support.doctor_reports import CUDA, HEALTHY, with_torch
from support.plan_shop import cards

from slidepack.daemon.device_choice import chosen_cards
from slidepack.daemon.hardware import Waiting, devices_now
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.software import TorchDevice
from slidepack.daemon.settings import load_settings
from slidepack.engine.contract.errors import SlidepackError


def _card(index: int, name: str) -> TorchDevice:
    return TorchDevice(
        index=index,
        name=name,
        uuid=f"GPU-{index}abc",
        pci_address=f"0000:0{index}:00.0",
        architecture="sm_89",
        total_bytes=1,
        free_bytes=1,
        supported=True,
        problem="",
    )


CARDS = [
    _card(0, "NVIDIA GeForce RTX 4090"),
    _card(1, "NVIDIA GeForce RTX 3090"),
    _card(2, "NVIDIA GeForce RTX 3090"),
    _card(10, "NVIDIA GeForce RTX 3090 Ti"),
]


_WITHOUT = with_torch(HEALTHY, torch=msgspec.structs.replace(CUDA, devices=()))


@pytest.mark.parametrize(
    ("choice", "indices", "unknown"),
    [
        ("auto", [0, 1, 2, 10], ""),
        ("cpu", [], ""),
        ("4090", [0], ""),
        ("rtx 3090", [1, 2, 10], ""),
        ("3090 ti", [10], ""),
        ("cuda:1", [1], ""),
        ("cuda:2, 4090", [0, 2], ""),
        ("4090,cuda:0,", [0], ""),
        ("0000:02:00.0", [2], ""),
        ("gpu-10ABC", [10], ""),
        ("4090, RX 7900", [], "RX 7900"),
        ("cuda:3", [], "cuda:3"),
    ],
)
def test_a_choice_names_cards(choice: str, indices: list[int], unknown: str) -> None:
    found, missing = chosen_cards(choice, CARDS)
    assert ([card.index for card in found], missing) == (indices, unknown)


@pytest.mark.parametrize("choice", ["", " , ", "0", "GPU, 1"])
def test_a_choice_that_names_nothing_is_refused(tmp_path: Path, choice: str) -> None:
    with pytest.raises(SlidepackError) as refused:
        load_settings({"SLIDEPACK_HOME": str(tmp_path), "SLIDEPACK_DEVICE": choice})
    assert refused.value.report.code == "DAEMON-SETTINGS"
    assert "RTX 3090" in refused.value.report.why


def test_only_the_chosen_cards_train() -> None:
    found = devices_now(cards(3), whole=True, device="cuda:1")
    assert not isinstance(found, Waiting)
    assert [device.key for device in found] == ["cuda:1"]


@pytest.mark.parametrize("report", [cards(2), _WITHOUT], ids=["others", "none"])
def test_a_card_that_is_not_there_is_never_replaced_by_the_cpu(report: HardwareReport) -> None:
    waiting = devices_now(report, whole=False, device="RX 7900")
    assert isinstance(waiting, Waiting)
