"""The chat on the page: two answers stream side by side, survive a reload, can be stopped."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.browsing import REFUSALS, OpenVisitor
from playwright.sync_api import Page, expect
from support.chat_farm import CHAT, chat_farm
from support.held import child, held
from support.queueing import Farm


@pytest.fixture(scope="module")
def farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with chat_farm(tiny_model, tmp_path_factory.mktemp("chat")) as made:
        yield made


def _set(page: Page, **values: str) -> None:
    details = page.locator("details")
    if details.get_attribute("open") is None:
        page.locator("summary", has_text="Settings").click()
    for name, value in values.items():
        page.locator(f'[name="{name}"]').fill(value)


def _answers(page: Page) -> list[str]:
    return [
        page.locator(f'.exchange:last-child [data-voice="{voice}"] p').first.inner_text()
        for voice in ("base", "job-1")
    ]


def _ask(page: Page, question: str) -> None:
    page.get_by_label("Question").fill(question)
    page.keyboard.press("Enter")
    expect(page.locator(".exchange:last-child .question")).to_have_text(question)
    expect(page.get_by_role("button", name="Ask")).to_be_enabled()


def test_two_answers_stream_and_survive_a_reload(open_visitor: OpenVisitor, farm: Farm) -> None:
    visitor = open_visitor(farm.daemon)
    page = visitor.go("/jobs/1")
    page.get_by_role("link", name="Try it").click()
    expect(page.locator("#chat-state")).to_have_text("ready")
    expect(page.locator("#differences")).to_contain_text(
        "changes the answers: mean logit difference"
    )
    _set(page, seed="7", max_tokens="20", temperature="0.8")
    _ask(page, "Name stone number 1 <b>now</b>")
    for voice in ("base", "job-1"):
        card = page.locator(f'[data-voice="{voice}"]')
        expect(card).to_contain_text(re.compile(r"\d+ tokens, [\d.]+ a second"))
    first = _answers(page)
    assert all(first)
    page.reload()
    expect(page.locator(".question")).to_have_text("Name stone number 1 <b>now</b>")
    assert _answers(page) == first
    expect(page.locator('[name="seed"]')).to_have_value("7")
    expect(page.locator("#chat-state")).to_have_text("ready")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".exchange")).to_have_count(0)
    _ask(page, "Name stone number 1 <b>now</b>")
    assert _answers(page) == first


def test_an_answer_is_stopped_and_the_chat_is_ended_and_begins_anew(
    open_visitor: OpenVisitor, farm: Farm
) -> None:
    page = open_visitor(farm.daemon).go("/jobs/1/chat")
    expect(page.locator("#chat-state")).to_have_text("ready")
    _set(page, max_tokens="240", temperature="2")
    page.get_by_label("Question").fill("Go on")
    # A tiny model would be done before the browser has found the button.
    with held(child(farm.daemon, CHAT)):
        page.get_by_role("button", name="Ask").click()
        with page.expect_response(lambda response: response.request.method == "DELETE") as told:
            page.get_by_role("button", name="Stop").click()
        assert told.value.status == 204
    expect(page.get_by_role("button", name="Ask")).to_be_enabled()
    stopped = re.compile(r"^\d+ tokens, [\d.]+ a second, stopped$")
    expect(page.locator(".exchange .muted")).to_have_text([stopped, stopped])
    page.get_by_role("button", name="End chat").click()
    expect(page.locator("#chat-state")).to_have_text("ended")
    expect(page.locator("#chat-note")).to_contain_text("it was ended")
    _set(page, max_tokens="4")
    _ask(page, "Again")
    expect(page.locator("#chat-state")).to_have_text("ready")


def test_a_chat_that_may_not_run_says_why(open_visitor: OpenVisitor, farm: Farm) -> None:
    with farm.daemon.paused():
        page = open_visitor(farm.daemon, allowed=(REFUSALS,)).go("/jobs/1/chat")
        expect(page.locator("#chat-state")).to_have_text("cannot run now")
        expect(page.locator("#chat-note")).to_contain_text("No chat can begin now")
