"""Data on its way to a new job: what was chosen last counts, and nothing is sent twice or lost."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from e2e.browsing import REFUSALS, OpenVisitor, wait_for
from e2e.conftest import Studio
from playwright.sync_api import Error, Page, Request, Route, expect
from support.tiny import chat_rows, write_jsonl

_CHECKS = "**/new/drafts/*/check"
_PIECES = "**/files/*"


class Held:
    """Requests that the network keeps back until they are let go."""

    def __init__(self, page: Page, pattern: str, method: str = "") -> None:
        """Hold what is asked of an address from now on."""
        self.page = page
        self.pattern = pattern
        self.method = method
        self.routes: list[Route] = []
        self.over = False
        page.route(pattern, self._hold)

    def _hold(self, route: Route) -> None:
        if self.over or (self.method and route.request.method != self.method):
            route.continue_()
        else:
            self.routes.append(route)

    def first(self) -> Route:
        """Return the first one, once it is asked."""
        # The event of its request comes before it is held.
        wait_for(self.page, lambda: self.routes, f"{self.pattern} is asked")
        return self.routes[0]

    def let_all_pass(self) -> None:
        """Hold nothing any more, nor what was asked since the first."""
        self.over = True
        for route in self.routes[1:]:
            # The page may have given it up.
            with suppress(Error):
                route.continue_()


def new_page(open_visitor: OpenVisitor, studio: Studio, path: str = "/new") -> Page:
    allowed = (REFUSALS, "Failed to load resource")
    return open_visitor(studio.daemon, allowed=allowed).go(path)


def drop(page: Page, path: Path) -> None:
    """Drop a file that is as old as itself: one that is dropped twice is the same one."""
    transfer = page.evaluate_handle(
        """([name, text]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([text], name, { lastModified: 1 }));
            return transfer;
        }""",
        [path.name, path.read_text()],
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


def rows(folder: Path, name: str, count: int) -> Path:
    return write_jsonl(folder / name, chat_rows(count))


def asked(page: Page) -> list[str]:
    """Return the uploads' requests from now on, as they come."""
    found: list[str] = []

    def note(request: Request) -> None:
        if "/datasets/uploads" in request.url and request.method != "GET":
            found.append(f"{request.method} {request.url.partition('/uploads')[2]}")

    page.on("request", note)
    return found


def choose_earlier(page: Page, studio: Studio) -> None:
    page.locator("#dataset").select_option(str(studio.dataset))
    expect(page.locator("#verdict")).to_contain_text("words.jsonl, read as chat")


def still_chosen(page: Page, studio: Studio) -> None:
    expect(page.locator("#dataset")).to_have_value(str(studio.dataset))
    expect(page.locator("#verdict")).to_contain_text("words.jsonl, read as chat")


def test_a_late_check_does_not_undo_a_later_choice(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    checks = Held(page, _CHECKS)
    drop(page, rows(tmp_path, "slow check.jsonl", 21))
    late = checks.first()
    choose_earlier(page, studio)
    late.continue_()
    # It is listed, to be chosen by who wants it.
    expect(page.locator("#dataset option", has_text="slow check.jsonl")).to_have_count(1)
    still_chosen(page, studio)


def test_a_late_refusal_does_not_undo_a_later_choice(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    checks = Held(page, _CHECKS)
    for number, end in enumerate((Route.abort, lambda route: route.fulfill(status=500, body="x"))):
        drop(page, rows(tmp_path, f"refused {number}.jsonl", 22 + number))
        late = checks.first()
        checks.routes.clear()
        choose_earlier(page, studio)
        with page.expect_event(
            "requestfinished" if number else "requestfailed", lambda one: "drafts" in one.url
        ):
            end(late)
        still_chosen(page, studio)
        expect(page.get_by_role("alert")).to_be_empty()


def test_an_upload_that_ends_after_a_later_choice_does_not_undo_it(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    pieces = Held(page, _PIECES)
    drop(page, rows(tmp_path, "slow upload.jsonl", 24))
    late = pieces.first()
    choose_earlier(page, studio)
    late.continue_()
    expect(page.locator("#dataset option", has_text="slow upload.jsonl")).to_have_count(1)
    still_chosen(page, studio)


def test_a_file_whose_check_broke_off_is_not_sent_again(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    sent = asked(page)
    checks = Held(page, _CHECKS)
    path = rows(tmp_path, "once.jsonl", 25)
    drop(page, path)
    # The daemon restarts.
    checks.first().abort("connectionreset")
    expect(page.get_by_role("alert")).to_contain_text("DAEMON-NOT-RUNNING")
    checks.let_all_pass()
    page.reload()
    drop(page, path)
    expect(page.locator("#verdict")).to_contain_text("25 of 25 rows can be used")
    assert [one.partition(" ")[0] for one in sent] == ["POST", "PUT"]


def test_files_that_are_dropped_beside_an_upload_are_asked_about(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    sent = asked(page)
    first, second = rows(tmp_path, "first.jsonl", 26), rows(tmp_path, "second.jsonl", 27)
    question = page.get_by_role("dialog", name="Send the new files first?")
    pieces = Held(page, _PIECES)
    drop(page, first)
    piece = pieces.first()
    drop(page, first)
    expect(question).to_be_hidden()
    drop(page, second)
    expect(question).to_contain_text("first.jsonl is still being sent")
    question.get_by_role("button", name="Leave it").click()
    piece.continue_()
    expect(page.locator("#verdict")).to_contain_text("26 of 26 rows can be used")
    assert [one.partition(" ")[0] for one in sent] == ["POST", "PUT"]


def test_an_upload_that_gives_way_is_kept_and_goes_on(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    sent = asked(page)
    first, second = rows(tmp_path, "gives way.jsonl", 28), rows(tmp_path, "goes first.jsonl", 29)
    pieces = Held(page, _PIECES)
    drop(page, first)
    begun = pieces.first().request.url
    drop(page, second)
    page.get_by_role("button", name="Send the new ones").click()
    pieces.let_all_pass()
    expect(page.locator("#verdict")).to_contain_text("29 of 29 rows can be used")
    with page.expect_request(begun):
        drop(page, first)
    expect(page.locator("#verdict")).to_contain_text("28 of 28 rows can be used")
    assert not [one for one in sent if one.startswith("DELETE")]
    assert sum(one.startswith("POST") for one in sent) == 2


def test_a_job_is_queued_once_however_long_that_takes(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    page = new_page(open_visitor, studio, f"/new?dataset={studio.dataset}")
    start = page.get_by_role("button", name=re.compile("^Start"))
    page.locator(f"#pick-{studio.model_id}-lora").check()
    page.get_by_role("radio", name="At a time").check()
    page.get_by_label("Not before").fill("2037-03-01T22:00")
    expect(start).to_be_enabled()
    before = len(studio.daemon.api("GET", "/jobs"))
    starts = Held(page, "**/new", "POST")
    start.click()
    queuing = starts.first()

    def look() -> Any:
        return page.expect_response("**/new/look")

    with look() as looked:
        page.locator("#f-name").fill("Queued once")
    assert looked.value.ok
    expect(page.locator("#outlook")).to_contain_text("steps")
    expect(start).to_be_disabled()
    # What is refused may be tried again.
    queuing.fulfill(status=409, json={"code": "RUN-STATE", "what": "No.", "why": "", "fix": ""})
    expect(start).to_be_enabled()
    starts.let_all_pass()
    start.click()
    expect(page).to_have_url(re.compile(r"/jobs/\d+$"))
    assert len(studio.daemon.api("GET", "/jobs")) == before + 1
    studio.daemon.api("POST", f"/jobs/{page.url.rpartition('/')[2]}/cancel")


def test_of_a_verdict_only_its_sentence_is_announced(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    odd: list[dict[str, object]] = [{"frage": f"{i}?", "antwort": f"{i}."} for i in range(6)]
    drop(page, write_jsonl(tmp_path / "announced.jsonl", odd))
    said = page.locator("#verdict-said")
    expect(said).to_have_role("status")
    expect(said).to_have_text(page.locator("#verdict .error strong").inner_text())
    told = said.text_content()
    page.get_by_role("radio", name="Question and answer").check()
    page.locator("select[name='qa.question']").select_option("frage")
    page.locator("select[name='qa.answer']").select_option("antwort")
    expect(page.locator(".preview .learned").first).to_contain_text("0.")
    assert said.text_content() == told
    assert page.evaluate(
        """() => document.querySelector("#verdict .preview")
            .closest("[aria-live]:not([aria-live=off]), [role=status], [role=alert]") === null"""
    )
    page.get_by_role("button", name="Check again").click()
    expect(said).to_have_text("6 of 6 rows can be used")


def test_each_way_to_train_says_when_to_take_it(open_visitor: OpenVisitor, studio: Studio) -> None:
    page = new_page(open_visitor, studio)
    for way, words in (
        ("lora", "if you are not sure"),
        ("qlora", "4 bits"),
        ("full", "whole model"),
    ):
        radio = page.locator(f"#pick-{studio.model_id}-{way}")
        expect(radio).to_have_accessible_description(re.compile(words))
    ways = page.get_by_role("group").filter(has=page.locator(f"#pick-{studio.model_id}-lora"))
    usual = ways.locator(".way", has_text="usual choice")
    expect(usual).to_have_count(1)
    expect(usual.locator("strong")).to_have_text("LoRA")
