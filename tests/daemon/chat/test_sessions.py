"""Chats with a real process: they answer as transformers does, and let the device go."""

import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.chat_shop import GIB, ChatShop, cpu
from support.chats import PROMPTS, Chat, base_judge, peft_adapter
from support.held import held
from support.waiting import PATIENCE, wait_until

from slidepack.daemon.chat.process import start_chat
from slidepack.daemon.hardware import Waiting
from slidepack.engine.chat.contract import ChatRequest, Message
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.memory_chat import chat_need
from slidepack.engine.shape import read_shape

_LONG: Any = {"prompt": PROMPTS[2], "max_tokens": 190}
_ENDLESS: Any = {"prompt": PROMPTS[2], "max_tokens": 20_000}
"""Of a patient model: as long as a test needs it."""


def _pid(shop: ChatShop) -> int:
    (pid,) = shop.chats.pids()
    return pid


def test_base_and_job_answer_as_transformers_and_peft_do(
    shop: ChatShop, model: Path, tmp_path: Path
) -> None:
    judge = peft_adapter(model, tmp_path / "tuned")
    base = shop.add_model(model)
    job = shop.add_job(base, tmp_path / "tuned")
    voice = f"job-{job}"
    view = shop.open(jobs=(job,))
    asked = shop.ask(view.id, voice, "base", prompt=PROMPTS[2], max_tokens=24).wait()
    judged = Chat(model)
    assert asked.text(voice) == judged.expected(judge, PROMPTS[2])
    assert asked.text("base") == judged.expected(base_judge(model), PROMPTS[2])
    assert asked.text(voice) != asked.text("base")
    assert {one.id for one in asked.answers if hasattr(one, "id")} == {asked.id}
    (_, tuned) = shop.chats.get(view.id).voices
    assert tuned.mean_difference is not None
    assert tuned.mean_difference > 0.01
    shape = read_shape(model)
    params = sum(v.numel() for n, v in judge.named_parameters() if "lora_" in n)
    need = chat_need(shape, device="cpu", precision="auto", adapter_params=params)
    # The adapters' place is rounded up a little.
    estimate = need.host["weights"] + need.host["adapters"]
    assert estimate == pytest.approx(shop.chats.get(view.id).weight_bytes, rel=0.05)


def test_each_voice_may_have_a_conversation_of_its_own(
    shop: ChatShop, model: Path, tuned: Path
) -> None:
    job = shop.add_job(shop.add_model(model), tuned)
    view = shop.open(jobs=(job,))

    def said(*texts: str) -> tuple[Message, ...]:
        return tuple(Message(role="user", content=text) for text in texts)

    own = {"base": said("A", "B"), f"job-{job}": said("C")}
    both = shop.ask(view.id, "base", f"job-{job}", messages=(), own=own, max_tokens=8).wait()
    alone = [shop.ask(view.id, voice, messages=own[voice], max_tokens=8).wait() for voice in own]
    assert [both.text(voice) for voice in own] == [
        one.text(voice) for one, voice in zip(alone, own, strict=True)
    ]
    assert both.done("base").prompt_tokens > both.done(f"job-{job}").prompt_tokens


def test_a_second_job_is_loaded_into_the_chat_that_there_is(
    shop: ChatShop, model: Path, tuned: Path
) -> None:
    base = shop.add_model(model)
    first, second = shop.add_job(base, tuned), shop.add_job(base, tuned)
    view = shop.open(jobs=(first,))
    again = shop.want(jobs=(second,)).result(0)
    assert again.id == view.id
    one = shop.ask(view.id, f"job-{first}", max_tokens=8).wait()
    other = shop.ask(view.id, f"job-{second}", max_tokens=8).wait()
    assert one.text(f"job-{first}") == other.text(f"job-{second}") != ""


@pytest.mark.full
def test_several_who_want_the_same_voices_at_once_all_get_them(
    shop: ChatShop, model: Path, tuned: Path
) -> None:
    base = shop.add_model(model)
    first, *others = jobs = [shop.add_job(base, tuned) for _ in range(6)]
    view = shop.open(jobs=(first,))
    rarely = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: shop.want(jobs=tuple(others)).result(0), range(64)))
    finally:
        sys.setswitchinterval(rarely)
    assert {one.id for one in found} == {view.id}
    voices = [f"job-{job}" for job in jobs]
    asked = shop.ask(view.id, *voices, max_tokens=4).wait()
    assert {asked.text(voice) for voice in voices} == {asked.text(voices[0])}
    assert [one.error for one in shop.chats.get(view.id).voices] == [None] * 7


def test_a_whole_model_answers_under_its_jobs_name(shop: ChatShop, model: Path) -> None:
    job = shop.add_job(shop.add_model(model), model, full=True)
    view = shop.open(jobs=(job,))
    asked = shop.ask(view.id, f"job-{job}", prompt=PROMPTS[0], max_tokens=8).wait()
    assert asked.text(f"job-{job}") == Chat(model).expected(base_judge(model), PROMPTS[0], 8)
    with pytest.raises(SlidepackError, match="CHAT-VOICE-UNKNOWN"):
        shop.ask(view.id, "base")


def test_an_idle_chat_ends_and_gives_its_device_back(shop: ChatShop, model: Path) -> None:
    view = shop.open(model=shop.add_model(model))
    assert shop.chats.held() == {
        "cpu": "a chat with tiny uses cpu; it ends 10 minutes after its last answer"
    }
    shop.clock += 599.0
    shop.tick()
    shop.ask(view.id, "base", max_tokens=2).wait()
    shop.clock += 599.0
    shop.tick()
    assert shop.chats.get(view.id).state == "ready"
    shop.clock += 1.0
    ended = shop.reach(view.id, "ended")
    assert (ended.why, ended.error) == ("nobody asked anything for 10 minutes", None)
    assert (shop.chats.held(), shop.chats.pids()) == ({}, [])
    assert list(shop.root.iterdir()) == []
    with pytest.raises(SlidepackError, match="nobody asked anything") as caught:
        shop.ask(view.id, "base")
    assert caught.value.report.code == "CHAT-ENDED"


def test_who_needs_the_machine_gets_it_and_the_answer_says_so(
    shop: ChatShop, patient_model: Path
) -> None:
    view = shop.open(model=shop.add_model(patient_model))
    asked = shop.ask(view.id, "base", **_ENDLESS)
    wait_until(lambda: asked.answers, what="the answer begins")
    shop.hold = "the game chess runs"
    ended = shop.reach(view.id, "ended")
    assert (ended.why, ended.error) == ("the game chess runs", None)
    asked.wait()
    done = asked.done("base")
    assert done.finish_reason == "error"
    assert done.error is not None
    assert (done.error.code, done.error.why) == ("CHAT-ENDED", "the game chess runs")


def test_none_begins_while_somebody_needs_the_machine(shop: ChatShop, model: Path) -> None:
    base = shop.add_model(model)
    shop.hold = "you paused the queue"
    future = shop.want(model=base)
    shop.tick()
    with pytest.raises(SlidepackError, match="you paused the queue") as caught:
        future.result(0)
    assert caught.value.report.code == "CHAT-HELD"
    assert shop.chats.pids() == []


def test_one_begins_only_once_somebody_has_looked(shop: ChatShop, model: Path) -> None:
    shop.chats.looked()
    shop.clock += 1.0
    future = shop.want(model=shop.add_model(model))
    assert shop.chats.wants_look()
    shop.chats.tick(0.0)
    assert not future.done()
    shop.tick()
    assert future.done()
    assert not shop.chats.wants_look()


def test_hardware_that_is_not_known_yet_is_waited_for_and_not_for_ever(
    shop: ChatShop, model: Path
) -> None:
    shop.devices = Waiting("waits until the hardware has been looked at")
    future = shop.want(model=shop.add_model(model))
    shop.tick()
    assert not future.done()
    shop.clock += 31.0
    shop.tick()
    with pytest.raises(SlidepackError, match="CHAT-HELD"):
        future.result(0)


def test_a_chat_that_is_no_longer_wanted_is_not_started(shop: ChatShop, model: Path) -> None:
    shop.want(model=shop.add_model(model)).cancel()
    shop.tick()
    assert (shop.chats.pids(), shop.chats.wants_look()) == ([], False)


def test_a_job_that_trains_keeps_chats_away(shop: ChatShop, model: Path) -> None:
    base = shop.add_model(model)
    job = shop.stores.jobs.add(shop.stores.jobs.spec(shop.add_job(base, model)), 0.0).id
    shop.stores.add_attempt(job)
    future = shop.want(model=base)
    shop.tick()
    with pytest.raises(SlidepackError, match=f"job {job} trains there") as caught:
        future.result(0)
    assert f"slidepack jobs pause {job}" in caught.value.report.fix


def test_memory_that_a_chat_has_just_left_may_still_look_taken(shop: ChatShop, model: Path) -> None:
    base = shop.add_model(model)
    view = shop.open(model=base)
    shop.chats.end(view.id)
    shop.reach(view.id, "ended")
    shop.devices = [cpu(free=GIB // 8)]
    future = shop.want(model=base)
    shop.tick()
    assert not future.done()
    shop.clock += 5.0
    shop.tick()
    with pytest.raises(SlidepackError, match="CHAT-NO-ROOM"):
        future.result(0)


@pytest.mark.full
def test_another_model_takes_the_place_of_an_idle_chat_and_of_no_busy_one(
    shop: ChatShop, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "other")
    view = shop.open(model=shop.add_model(model))
    other = shop.add_model(tmp_path / "other", "other")
    with held(psutil.Process(_pid(shop))):
        asked = shop.ask(view.id, "base", **_LONG)
        future = shop.want(model=other)
        shop.tick()
        with pytest.raises(SlidepackError, match="a chat with tiny runs there"):
            future.result(0)
    asked.wait()
    second = shop.open(model=other)
    assert shop.chats.get(view.id).why == "a chat with other takes its place"
    assert [one.id for one in shop.chats.views()] == [second.id]


def test_an_answer_is_stopped_and_the_chat_goes_on(shop: ChatShop, model: Path) -> None:
    view = shop.open(model=shop.add_model(model))
    with held(psutil.Process(_pid(shop))):
        asked = shop.ask(view.id, "base", **_LONG)
        shop.chats.stop_ask(view.id, asked.id)
    assert asked.wait().done("base").finish_reason == "stopped"
    assert shop.ask(view.id, "base", max_tokens=2).wait().done("base").new_tokens == 2


@pytest.mark.full
def test_a_crash_is_told_with_the_logs_last_line_and_the_next_ask_begins_anew(
    shop: ChatShop, model: Path
) -> None:
    base = shop.add_model(model)
    view = shop.open(model=base)
    with held(psutil.Process(_pid(shop))):
        asked = shop.ask(view.id, "base", **_LONG)
        (folder,) = shop.root.iterdir()
        with (folder / "chat.log").open("a") as log:
            log.write("the last words\n\n")
        os.kill(_pid(shop), signal.SIGKILL)
    error = asked.wait().failed().error
    assert error.code == "CHAT-CRASHED"
    assert "signal 9" in error.why
    assert error.why.endswith("the last words")
    assert shop.reach(view.id, "ended").error == error
    again = shop.open(model=base)
    assert again.id != view.id
    assert shop.ask(again.id, "base", max_tokens=2).wait().done("base").new_tokens == 2


def test_a_model_that_cannot_be_loaded_says_why(
    shop: ChatShop, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "changed")
    base = shop.add_model(tmp_path / "changed")
    shop.stores.database.execute("UPDATE models SET content_hash = ?, stamp = ''", "f" * 64)
    future = shop.want(model=base)
    shop.tick()
    view = future.result(0)
    asked = shop.ask(view.id, "base")
    ended = shop.reach(view.id, "ended")
    assert ended.error is not None
    assert ended.error.code == "MODEL-CHANGED"
    assert asked.wait().failed().error == ended.error


def test_an_adapter_that_cannot_be_loaded_leaves_the_base(
    shop: ChatShop, model: Path, tuned: Path
) -> None:
    job = shop.add_job(shop.add_model(model), tuned)
    weights = shop.folder / f"result-{job}" / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    view = shop.open(jobs=(job,))
    base, broken = view.voices
    assert (base.state, broken.state) == ("ready", "failed")
    assert broken.error is not None
    with pytest.raises(SlidepackError, match=broken.error.code):
        shop.ask(view.id, f"job-{job}")
    assert shop.ask(view.id, "base", max_tokens=2).wait().done("base").new_tokens == 2


def test_a_later_daemon_ends_what_an_earlier_one_left(shop: ChatShop, model: Path) -> None:
    # Its input stays open, as of a daemon that hangs: it does not end by itself.
    left = start_chat(shop.root / "left", ChatRequest(model=str(model)), "ab" * 16)
    assert psutil.pid_exists(left.worker.pid)
    shop.make().clean_up()
    assert left.worker.exit_code is None or left.worker.exit_code == -signal.SIGKILL
    left.wait(PATIENCE)
    assert left.worker.exit_code == -signal.SIGKILL
    assert list(shop.root.iterdir()) == []
    left.close()


def test_the_end_of_the_daemon_ends_chats_and_refuses_new_ones(
    shop: ChatShop, patient_model: Path
) -> None:
    base = shop.add_model(patient_model)
    view = shop.open(model=base)
    asked = shop.ask(view.id, "base", **_ENDLESS)
    pid = _pid(shop)
    shop.chats.stop()
    assert not psutil.pid_exists(pid)
    assert [one for one in asked.wait().answers if getattr(one, "error", None)]
    with pytest.raises(SlidepackError, match="the daemon stops"):
        shop.want(model=base)
