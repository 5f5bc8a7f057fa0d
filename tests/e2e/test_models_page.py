"""The pages of models in a real browser: one is added, one fails, both go again."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.browsing import REFUSALS, OpenVisitor
from playwright.sync_api import expect
from support.daemons import DaemonProcess
from support.tiny import chat_rows, write_jsonl


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that holds nothing, and reaches no hub."""
    daemon = DaemonProcess(
        tmp_path_factory.mktemp("models") / "home", model_endpoint="http://127.0.0.1:9"
    )
    daemon.start()
    yield daemon
    daemon.clean_up()


def test_a_folder_becomes_a_model_with_a_page_of_its_own(
    own: DaemonProcess, open_visitor: OpenVisitor, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stones"
    shutil.copytree(tiny_model, folder)
    (folder / "LICENSE.txt").write_text("You may <use> it.")
    visitor = open_visitor(own)
    page = visitor.go("/models")
    expect(page.locator("#models")).to_contain_text("No model yet.")
    page.get_by_label("Add a hub id").fill(str(folder))
    page.get_by_role("button", name="Add").click()
    row = page.locator("#model-stones")
    expect(row).to_contain_text("parameters")
    expect(page.get_by_label("Add a hub id")).to_have_value("")
    expect(row.locator(".ways-here .fits")).to_have_count(3)
    row.get_by_role("link", name="stones", exact=True).click()
    expect(page.locator("#needs td.fits").first).to_contain_text("of RAM")
    expect(page.locator("dl", has_text="Architecture")).to_contain_text("LlamaForCausalLM")
    expect(page.locator("dl", has_text="Tokenizer")).to_contain_text("259 tokens")
    page.get_by_text("Chat template").click()
    expect(page.locator("pre", has_text="add_generation_prompt")).to_be_visible()
    page.get_by_text("LICENSE.txt").first.click()
    expect(page.get_by_text("You may <use> it.")).to_be_visible()
    dataset = own.upload(write_jsonl(tmp_path / "rows.jsonl", chat_rows(20)))
    request = {"model": "stones", "dataset": dataset, "steps": 2, "not_before": 4e9, "name": "Mine"}
    job = own.api("POST", "/jobs", json=request)["id"]
    expect(page.locator("#jobs")).to_contain_text("Mine")
    # While a job needs it, it stays, and the page says who does.
    page.get_by_role("link", name="Delete").click()
    expect(page.locator("main")).to_contain_text(f"job {job} has not ended")
    own.api("POST", f"/jobs/{job}/cancel")
    page.reload()
    page.get_by_role("button", name="Delete it for good").click()
    expect(page.locator("#models")).to_contain_text("No model yet.")
    assert (folder / "config.json").exists(), "the user's own folder stays"


def test_what_cannot_be_added_says_why_and_what_helps(
    own: DaemonProcess, open_visitor: OpenVisitor, tmp_path: Path
) -> None:
    page = open_visitor(own, allowed=(REFUSALS,)).go("/models")
    for source, code in (
        ("/nowhere/at/all", "MODEL-NOT-FOUND"),
        ("ollama:no-such-model", "MODEL-NOT-FOUND"),
        (str(tmp_path), "MODEL-NOT-A-MODEL"),
    ):
        page.get_by_label("Add a hub id").fill(source)
        page.get_by_role("button", name="Add").click()
        expect(page.locator("#errors .error code")).to_have_text(code)
        expect(page.get_by_label("Add a hub id")).to_have_value(source)
    assert own.api("GET", "/models") == []


def test_an_import_that_fails_can_be_tried_again_and_removed(
    own: DaemonProcess, open_visitor: OpenVisitor, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_model, folder)
    tokenizer = folder / "tokenizer.json"
    whole = tokenizer.read_text()
    tokenizer.write_text("{}")
    page = open_visitor(own).go("/models")
    page.get_by_label("Add a hub id").fill(str(folder))
    page.get_by_role("button", name="Add").click()
    row = page.locator("#model-broken")
    expect(row.locator(".error")).to_contain_text("MODEL-BROKEN")
    tokenizer.write_text(whole)
    row.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="What training takes here")).to_be_visible()
    assert [model["state"] for model in own.api("GET", "/models")] == ["ready"]
    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name="Delete it for good").click()
    expect(page.locator("#models")).to_contain_text("No model yet.")


def test_a_suggestion_is_one_click_and_a_hub_that_is_away_an_error(
    own: DaemonProcess, open_visitor: OpenVisitor
) -> None:
    page = open_visitor(own).go("/models")
    offer = page.get_by_role("button", name=re.compile("Download.*SmolLM2-135M-Instruct"))
    expect(offer).to_be_visible()
    expect(page.locator("#suggestions .ways-here .fits").first).to_contain_text("of RAM")
    offer.click()
    row = page.locator("#models li", has_text="SmolLM2-135M-Instruct").first
    expect(row).to_be_visible()
    expect(offer).to_have_count(0)
    expect(row.locator(".error")).to_contain_text("MODEL-UNREACHABLE")
    (model,) = own.api("GET", "/models")
    assert json.dumps(model["error"]).count("MODEL-UNREACHABLE") == 1
    own.api("DELETE", f"/models/{model['id']}")
    expect(page.locator("#models")).to_contain_text("No model yet.")
    expect(offer).to_be_visible()
