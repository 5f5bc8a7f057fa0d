"""A completed job's result is exported, copied and deleted from its page."""

import pytest
from e2e.browsing import OpenVisitor, agree
from e2e.conftest import Studio
from playwright.sync_api import expect
from support.exporting import EXPORTER
from support.held import Births


@pytest.mark.full
def test_a_result_is_exported_used_and_deleted(
    open_visitor: OpenVisitor, studio: Studio, completed_job: int
) -> None:
    visitor = open_visitor(
        studio.daemon,
        permissions=["clipboard-read", "clipboard-write"],
    )
    page = visitor.go(f"/jobs/{completed_job}")
    part = page.locator("#exports")
    make = part.get_by_role("button", name="Make Adapter (PEFT)")
    expect(part.locator("li").first).to_contain_text("at most")
    expect(page.locator("#live")).to_be_hidden()
    # It comes without a reload: what it does, and then what it has become.
    with Births(studio.daemon, EXPORTER) as exporters:
        make.click()
        exporters.next()
        expect(part.get_by_role("button", name="Cancel Adapter (PEFT)")).to_be_visible()
        expect(part.get_by_role("progressbar")).to_be_visible()
    download = part.get_by_role("link", name="Download Adapter (PEFT)")
    expect(download).to_be_visible()
    expect(part.locator("li").first).to_contain_text("Read back by peft and compared")
    expect(part.get_by_role("progressbar")).to_have_count(0)
    # The stream is let go, as its job has ended.
    expect(page.locator("#live")).to_be_hidden()

    with page.expect_download() as begun:
        download.click()
    assert begun.value.suggested_filename == "a-small-run-peft.tar"
    (export,) = studio.daemon.api("GET", f"/jobs/{completed_job}/exports")["exports"]
    part.get_by_text("How to run it").click()
    part.get_by_role("button", name="Copy: With vLLM").click()
    expect(part.get_by_role("button", name="Copy: With vLLM")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("vllm serve ") and copied.endswith(f"a-small-run={export['folder']}")

    part.get_by_role("button", name="Delete Adapter (PEFT)").click()
    agree(page, "Delete this export?")
    expect(make).to_be_visible()
    assert studio.daemon.api("GET", f"/jobs/{completed_job}/exports")["exports"] == []


def test_an_export_that_runs_is_cancelled(
    open_visitor: OpenVisitor, studio: Studio, completed_job: int
) -> None:
    page = open_visitor(studio.daemon).go(f"/jobs/{completed_job}")
    part = page.locator("#exports")
    with Births(studio.daemon, EXPORTER) as exporters:
        part.get_by_role("button", name="Make Merged model (safetensors)").click()
        exporters.next()
        part.get_by_role("button", name="Cancel Merged model (safetensors)").click()
    expect(part.get_by_role("button", name="Make Merged model (safetensors)")).to_be_visible()
    expect(page.locator("#live")).to_be_hidden()
