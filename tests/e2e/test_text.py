"""Text from files, rows and models is shown as text, whatever it looks like."""

import contextlib
import sqlite3
from pathlib import Path

from e2e.browsing import OpenVisitor, drop_file
from e2e.conftest import Studio
from playwright.sync_api import Page, expect
from support.tiny import chat_rows, write_jsonl

EVIL = "<img src=x onerror=alert(1)><b>bold</b>"


def expect_no_markup(page: Page) -> None:
    # Pages have a `b` of their own; that of the data says "bold".
    expect(page.locator("main img, main script, main b:text-is('bold')")).to_have_count(0)


def test_html_in_file_name_rows_and_answers_is_shown_as_text(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    visitor = open_visitor(studio.daemon)
    page = visitor.page
    path = tmp_path / f"{EVIL.replace('/', '')}.jsonl"
    rows: list[dict[str, object]] = [
        {"messages": [{"role": "user", "content": EVIL}, {"role": "assistant", "content": EVIL}]},
        {"messages": EVIL},
        *(row | {EVIL: 1} for row in chat_rows(10)),
    ]
    drop_file(page, write_jsonl(path, rows))
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text(path.name)
    expect(verdict).to_contain_text(f"Ignored columns: {EVIL}")
    expect(verdict).to_contain_text(EVIL)
    expect(verdict.get_by_role("row")).to_have_count(2)
    expect_no_markup(page)

    dataset = int(page.locator("#dataset").input_value())
    job_id = studio.start(name="", dataset=dataset, sample_prompts=[EVIL], steps=5000)
    studio.daemon.api("POST", f"/jobs/{job_id}/cancel")
    studio.daemon.wait_for(job_id, "cancelled")
    # No small model can be made to answer so; the page reads answers from here.
    with contextlib.closing(sqlite3.connect(studio.daemon.home / "slidepack.db")) as database:
        database.execute("INSERT OR REPLACE INTO samples VALUES (?, 0, ?, ?)", (job_id, EVIL, EVIL))
        database.execute("INSERT OR REPLACE INTO samples VALUES (?, 9, ?, ?)", (job_id, EVIL, EVIL))
        database.commit()

    visitor.go("/")
    expect(page.locator("#queue")).to_contain_text(path.stem)
    expect_no_markup(page)
    visitor.go("/datasets")
    expect(page.locator("main")).to_contain_text(path.name)
    expect_no_markup(page)
    visitor.go(f"/jobs/{job_id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(path.stem)
    expect(page.locator(".sample h3")).to_have_text(EVIL)
    expect(page.locator(".answer p")).to_have_text([EVIL, EVIL])
    expect_no_markup(page)
