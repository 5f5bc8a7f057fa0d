"""Where a chat goes: the first device with room, and why there is none."""

from pathlib import Path

import pytest
from support.chat_shop import GIB, card, cpu

from slidepack.daemon.chat.placing import Taken, place
from slidepack.daemon.chat.subjects import Subject
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.memory_chat import chat_need
from slidepack.engine.shape import read_shape

_TRAINS = Taken("job 7 trains there", "Pause it (`slidepack jobs pause 7`)")


@pytest.fixture
def subject(model: Path) -> Subject:
    return Subject(
        model="tiny",
        title="job 12",
        path=model,
        content_hash="",
        shape=read_shape(model),
        precision="auto",
        adapters=(),
    )


def test_a_free_card_goes_before_the_cpu(subject: Subject) -> None:
    found = place(subject, "auto", [card(0), card(1), cpu()], {"cuda:0": _TRAINS})
    assert (found.device.key, found.replaces) == ("cuda:1", "")


def test_a_free_cpu_goes_before_the_card_of_an_idle_chat(subject: Subject) -> None:
    idle = Taken("a chat runs there", "", session="abc")
    assert place(subject, "auto", [card(0), cpu()], {"cuda:0": idle}).device.key == "cpu"
    held = place(subject, "cuda:0", [card(0), cpu()], {"cuda:0": idle})
    assert (held.device.key, held.replaces) == ("cuda:0", "abc")


def test_a_card_that_is_too_small_leaves_it_to_the_cpu(subject: Subject) -> None:
    assert place(subject, "auto", [card(0, free=GIB // 2), cpu()], {}).device.key == "cpu"


def test_the_cap_leaves_room_for_everything_beside_it(subject: Subject) -> None:
    found = place(subject, "auto", [card(0, free=4 * GIB)], {})
    need = chat_need(subject.shape, device="cuda:0", precision="auto", adapter_params=0)
    beside = need.device["driver context"]
    assert need.device_bytes - beside < found.cap_bytes <= 4 * GIB - beside
    assert found.cap_bytes + beside < 4 * GIB


def test_what_an_idle_chat_gives_back_counts(subject: Subject) -> None:
    full = card(0, free=GIB // 2)
    taken = {"cuda:0": Taken("a chat runs there", "", session="abc", gives_bytes=8 * GIB)}
    assert place(subject, "auto", [full], taken).replaces == "abc"


def test_a_refusal_says_who_is_where_and_what_helps(subject: Subject) -> None:
    with pytest.raises(SlidepackError) as caught:
        place(subject, "auto", [card(0), cpu(free=GIB // 8)], {"cuda:0": _TRAINS})
    report = caught.value.report
    assert report.code == "CHAT-BUSY"
    assert "cuda:0: job 7 trains there" in report.why
    assert "cpu: 0.4 GiB of RAM are needed, 0.1 GiB are free" in report.why
    assert report.fix == "Pause it (`slidepack jobs pause 7`), or ask again when it has ended."


def test_no_memory_anywhere_is_told_with_the_figures(subject: Subject) -> None:
    with pytest.raises(SlidepackError) as caught:
        place(subject, "auto", [card(0, free=GIB // 4), cpu(free=GIB // 8)], {})
    assert caught.value.report.code == "CHAT-NO-ROOM"
    assert "0.9 GiB of VRAM are needed, 0.2 GiB are free" in caught.value.report.why


def test_a_device_that_is_not_there_is_named(subject: Subject) -> None:
    with pytest.raises(SlidepackError, match="there are: cuda:0, cpu") as caught:
        place(subject, "cuda:3", [card(0), cpu()], {})
    assert caught.value.report.code == "CHAT-REQUEST-INVALID"
