"""Answers against transformers and PEFT, alone and beside others."""

from pathlib import Path

import pytest
from support.chats import PROMPTS, Chat, base_judge, chat_model, peft_adapter
from support.families import FAMILY_NAMES

from slidepack.engine.chat.contract import Ask, Message
from slidepack.engine.chat.events import VoiceLoaded, Warned
from slidepack.engine.contract.errors import SlidepackError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def adapters(model: Path) -> dict[str, Path]:
    """Three adapters that answer otherwise than the base and than each other."""
    folders = {name: model.parent / name for name in ("one", "two", "three")}
    peft_adapter(model, folders["one"], rank=4, seed=1)
    peft_adapter(model, folders["two"], rank=9, seed=2, targets=("q_proj", "up_proj"), size=0.4)
    peft_adapter(model, folders["three"], rank=2, seed=3)
    return folders


def test_all_voices_at_once_answer_as_transformers_and_peft_do(tmp_path: Path) -> None:
    _compare_with_peft(tmp_path, "llama")


@pytest.mark.parametrize("family", [name for name in FAMILY_NAMES if name != "llama"])
def test_every_family_answers_as_transformers_and_peft_do(tmp_path: Path, family: str) -> None:
    _compare_with_peft(tmp_path, family)


def _compare_with_peft(tmp_path: Path, family: str) -> None:
    model = chat_model(tmp_path / "model", family)
    judges = {"base": base_judge(model)}
    judges["tuned"] = peft_adapter(model, tmp_path / "tuned")
    chat = Chat(model, {"tuned": tmp_path / "tuned"})
    for prompt in PROMPTS:
        chat.ask(prompt, prompt, ("base", "tuned"))
    chat.run()
    told = {(p, voice): chat.text(p, voice) for p in PROMPTS for voice in judges}
    assert told == {
        (p, voice): chat.expected(judge, p) for p in PROMPTS for voice, judge in judges.items()
    }
    assert any(told[p, "base"] != told[p, "tuned"] for p in PROMPTS)


def test_long_prompts_are_read_in_chunks_with_the_same_answer(tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model", "gemma2")
    judge = peft_adapter(model, tmp_path / "tuned")
    chat = Chat(model, {"tuned": tmp_path / "tuned"}, context=700)
    prompt = "Where does the river go? " * 25
    assert len(prompt) > 512
    assert chat.answer("long", prompt, "tuned") == chat.expected(judge, prompt)


def test_prompts_are_cut_where_they_would_be_without_the_cache(model: Path) -> None:
    chat = Chat(model, context=900)
    chat.answer("first", "x" * 300, most=2)
    chat.passes.passed.clear()
    chat.answer("second", "x" * 290 + "y" * 400, most=2)
    assert chat.done("second").cached_tokens == 290
    read = [(piece.start, piece.end) for piece in chat.passes.passed]
    assert read == [(290, 512), (512, 690), (690, 691)]


def test_who_comes_and_goes_changes_nobodys_answer(model: Path, adapters: dict[str, Path]) -> None:
    voices = ("base", *adapters)
    sampled = {"temperature": 1.3, "top_p": 0.95, "seed": 11}
    alone = {}
    for voice in voices:
        chat = Chat(model, adapters)
        alone[voice] = (
            chat.answer("greedy", PROMPTS[2], voice),
            chat.answer("drawn", PROMPTS[0], voice, sampling=sampled),
        )
    chat = Chat(model, adapters, seats=16)
    chat.ask("greedy", PROMPTS[2], voices)
    chat.ask("doomed", PROMPTS[1], ("two", "base"), None)
    for step in range(12):
        chat.engine.step()
        if step == 3:
            chat.ask("drawn", PROMPTS[0], voices, sampling=sampled)
        if step == 7:
            chat.engine.stop("doomed")
    chat.run()
    together = {voice: (chat.text("greedy", voice), chat.text("drawn", voice)) for voice in voices}
    assert together == alone
    assert len(set(alone.values())) == len(voices), "each voice has answers of its own"
    assert {chat.done("doomed", voice).finish_reason for voice in ("two", "base")} == {"stopped"}


def test_a_seed_says_what_is_drawn(model: Path) -> None:
    chat = Chat(model)
    sampled = {"temperature": 1.5, "seed": 5}
    first = chat.answer("a", PROMPTS[0], sampling=sampled)
    assert chat.answer("b", PROMPTS[0], sampling=sampled) == first
    assert chat.answer("c", PROMPTS[0], sampling=sampled | {"seed": 6}) != first
    assert Chat(model).answer("d", PROMPTS[0], sampling=sampled) == first


def test_more_answers_than_seats_wait_for_one(model: Path, adapters: dict[str, Path]) -> None:
    free = Chat(model, adapters)
    tight = Chat(model, adapters, seats=2)
    for chat in (free, tight):
        for prompt in PROMPTS:
            chat.ask(prompt, prompt, ("base", *adapters), 9)
        chat.run()
    for prompt in PROMPTS:
        for voice in ("base", *adapters):
            assert tight.text(prompt, voice) == free.text(prompt, voice)


def test_a_conversation_that_goes_on_reads_only_what_is_new(
    model: Path, adapters: dict[str, Path]
) -> None:
    chat = Chat(model, adapters)
    talk = [Message(role="user", content="Hello there, who are you?")]
    chat.engine.ask(Ask(id="1", voices=("base", "one"), messages=tuple(talk), max_tokens=6))
    chat.run()
    talk += [
        Message(role="assistant", content="A model."),
        Message(role="user", content="And what do you like?"),
    ]
    chat.engine.ask(Ask(id="2", voices=("base", "one"), messages=tuple(talk), max_tokens=12))
    chat.run()
    fresh = Chat(model, adapters)
    fresh.engine.ask(Ask(id="2", voices=("base", "one"), messages=tuple(talk), max_tokens=12))
    fresh.run()
    for voice in ("base", "one"):
        assert chat.text("2", voice) == fresh.text("2", voice)
        assert chat.done("1", voice).prompt_tokens <= chat.done("2", voice).cached_tokens
        assert fresh.done("2", voice).cached_tokens == 0


def test_nothing_is_reused_of_another_voice(model: Path, adapters: dict[str, Path]) -> None:
    chat = Chat(model, adapters)
    chat.answer("a", PROMPTS[2], "one")
    chat.answer("b", PROMPTS[2], "two")
    assert chat.done("b", "two").cached_tokens == 0
    chat.answer("c", PROMPTS[2], "one")
    assert chat.done("c", "one").cached_tokens == chat.done("c", "one").prompt_tokens - 1
    assert chat.text("c", "one") == chat.text("a", "one")


def test_an_adapter_comes_back_under_its_name_without_its_past(
    model: Path, adapters: dict[str, Path]
) -> None:
    chat = Chat(model, adapters)
    first = chat.answer("a", PROMPTS[2], "one")
    chat.ask("b", PROMPTS[2], ("one", "two"), None)
    chat.engine.step()
    chat.engine.unload("one")
    assert chat.done("b", "one").finish_reason == "stopped"
    chat.load("one", adapters["three"])
    chat.run()
    other = chat.answer("c", PROMPTS[2], "one")
    assert chat.done("c", "one").cached_tokens == 0
    assert other == Chat(model, adapters).answer("c", PROMPTS[2], "three") != first
    assert chat.text("b", "two") == Chat(model, adapters).answer("b", PROMPTS[2], "two", None)


def test_the_context_bounds_prompt_and_answer(model: Path) -> None:
    chat = Chat(model, context=40)
    chat.answer("runs", "x" * 30, most=None)
    done = chat.done("runs")
    if done.finish_reason == "length":
        assert done.new_tokens == 10
    chat.answer("fits", "x" * 39, most=None)
    assert chat.done("fits").new_tokens == 1
    chat.answer("full", "x" * 40, most=None)
    error = chat.done("full").error
    assert error is not None and error.code == "CHAT-CONTEXT-FULL"


def test_an_answer_reaches_the_end_of_the_context(model: Path) -> None:
    judge = base_judge(model)
    chat = Chat(model, context=64)
    prompts = [p for p in PROMPTS if len(chat.expected(judge, p, 64)) > 20]
    assert prompts
    for prompt in prompts:
        room = 64 - len(chat.tokenizer.encode(prompt))
        assert chat.answer(prompt, prompt, most=None) == chat.expected(judge, prompt, room)


def test_the_end_token_is_not_told(model: Path) -> None:
    judge = base_judge(model)
    chat = Chat(model)
    for number in range(40):
        prompt = f"{number} times"
        told = chat.answer(prompt, prompt, most=60)
        if chat.done(prompt).finish_reason == "stop":
            assert told == chat.expected(judge, prompt, 60)
            assert "<|end|>" not in told
            return
    raise AssertionError("no answer of the random model ended")


def test_a_stop_string_ends_the_answer_before_itself(model: Path) -> None:
    chat = Chat(model)
    whole = chat.answer("whole", PROMPTS[2], most=40)
    stop = whole[7:10]
    assert chat.answer("cut", PROMPTS[2], most=40, stop=(stop, "never")) == whole.split(stop)[0]
    assert chat.done("cut").finish_reason == "stop"
    assert chat.done("cut").new_tokens < chat.done("whole").new_tokens


def test_the_answer_that_came_last_makes_room(model: Path, adapters: dict[str, Path]) -> None:
    chat = Chat(model, adapters)
    chat.ask("first", PROMPTS[2], ("one",), 30)
    chat.ask("second", PROMPTS[0], ("base",), 30)
    for _ in range(4):
        chat.engine.step()
    chat.passes.most = 1
    chat.run()
    error = chat.done("second").error
    assert error is not None and error.code == "CHAT-NO-ROOM"
    assert chat.text("first", "one") == Chat(model, adapters).answer("a", PROMPTS[2], "one", 30)
    assert chat.answer("third", PROMPTS[1]), "the process goes on"


def test_loading_proves_what_an_adapter_does(model: Path, tmp_path: Path) -> None:
    peft_adapter(model, tmp_path / "tuned")
    peft_adapter(model, tmp_path / "idle", size=0.0)
    chat = Chat(model, {"tuned": tmp_path / "tuned", "idle": tmp_path / "idle"})
    tuned, idle = (event for event in chat.events if isinstance(event, VoiceLoaded))
    assert tuned.max_difference > tuned.mean_difference > 0.01
    assert (idle.mean_difference, idle.max_difference) == (0.0, 0.0)
    (warning,) = (event for event in chat.events if isinstance(event, Warned))
    assert (warning.code, warning.voice) == ("RUN-NOTHING-LEARNED", "idle")


def test_unknown_voices_and_ids_in_use_are_refused(model: Path) -> None:
    chat = Chat(model)
    chat.ask("a", PROMPTS[0], ("nobody", "base"))
    error = chat.done("a", "nobody").error
    assert error is not None and error.code == "CHAT-VOICE-UNKNOWN"
    with pytest.raises(SlidepackError, match="CHAT-NAME-TAKEN"):
        chat.ask("a", PROMPTS[0])
    chat.run()
    assert chat.text("a") == Chat(model).answer("b", PROMPTS[0])
    chat.ask("a", PROMPTS[0])


def test_a_template_that_refuses_is_an_error_of_the_ask(tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model")
    (model / "chat_template.jinja").write_text("{{ raise_exception('no system, please') }}")
    chat = Chat(model)
    chat.engine.ask(Ask(id="a", messages=(Message(role="user", content="x"),)))
    error = chat.done("a").error
    assert error is not None and error.code == "CHAT-PROMPT-INVALID"
    assert "no system, please" in error.why
