"""From a dropped file to an adapter that PEFT loads, and what the form refuses."""

import json
import re
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psutil
import pytest
import torch
from e2e.browsing import REFUSALS, OpenVisitor, chart_points, drop_file, wait_for
from e2e.conftest import Studio
from peft import PeftModel
from playwright.sync_api import Locator, Page, Route, expect
from safetensors.torch import load_file
from support.held import held
from support.tiny import chat_rows, write_jsonl
from support.waiting import wait_until
from transformers import AutoModelForCausalLM

STEPS = 400


def fill_settings(page: Page, **values: object) -> None:
    page.get_by_text("All settings").click()
    for name, value in values.items():
        page.locator(f'[name="{name}"]').fill(str(value))


def choose_model(page: Page, studio: Studio, way: str = "lora") -> None:
    page.locator(f"#pick-{studio.model_id}-{way}").check()


def start_button(page: Page) -> Locator:
    return page.get_by_role("button", name=re.compile("^Start"))


def new_page(open_visitor: OpenVisitor, studio: Studio, path: str = "/new", **options: Any) -> Page:
    return open_visitor(studio.daemon, allowed=(REFUSALS,), **options).go(path)


def drop_files(page: Page, *files: Path) -> None:
    transfer = page.evaluate_handle(
        """(files) => {
            const transfer = new DataTransfer();
            for (const [name, text] of files) transfer.items.add(new File([text], name));
            return transfer;
        }""",
        [[path.name, path.read_text()] for path in files],
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


def logits_of_merged_weights(model_path: Path, adapter: Path, ids: torch.Tensor) -> torch.Tensor:
    """Add B·A to the base's weights by hand and return the logits."""
    model = AutoModelForCausalLM.from_pretrained(model_path)
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    scale = config["lora_alpha"] / config["r"]
    with torch.no_grad():
        for name, first in tensors.items():
            if not name.endswith("lora_A.weight"):
                continue
            second = tensors[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            model.get_submodule(module).weight += scale * (second @ first)
        logits: torch.Tensor = model(ids).logits
    return logits


@pytest.mark.quick
def test_dropped_file_becomes_an_adapter_that_peft_loads(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = open_visitor(studio.daemon).go("/new")
    no_answer: dict[str, object] = {"messages": [{"role": "user", "content": "and then?"}]}
    path = write_jsonl(tmp_path / "stones.jsonl", [*chat_rows(40), no_answer])
    with path.open("a") as file:
        file.write("{broken\n")

    drop_file(page, path)
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text("40 of 42 rows can be used")
    expect(verdict).to_contain_text("stones.jsonl, read as chat")
    expect(verdict.get_by_role("row", name=re.compile("^41 no-answer"))).to_be_visible()
    expect(verdict.get_by_role("row", name=re.compile("^42 not-json"))).to_be_visible()

    choose_model(page, studio)
    fill_settings(
        page,
        steps=STEPS,
        lr=0.01,
        rank=4,
        alpha=8,
        batch_size=4,
        max_seq_len=128,
        sample_prompts="Name stone number 1\nName river number 2",
    )
    start_button(page).click()

    expect(page).to_have_url(re.compile(r"/jobs/\d+$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("stones on")
    job = int(page.url.rpartition("/")[2])
    wait_until(lambda: studio.daemon.job(job)["step"] >= 1, what="it trains")
    # It stands still until the page has been seen in the middle of it.
    with held(psutil.Process(studio.daemon.attempts(job)[-1]["pid"])):
        expect(page.locator("#job-state")).to_have_text("running")
        expect(page.locator("#chart")).to_have_attribute("data-points", re.compile(r"[1-9]"))
        wait_until(lambda: chart_points(page) == studio.daemon.job(job)["step"])
        seen = chart_points(page)
    assert seen < STEPS, "the run was over before the chart was seen to move"
    wait_until(lambda: chart_points(page) > seen, what="the chart moves")
    expect(page.locator("#job-state")).to_have_text("completed")
    expect(page.locator("#chart")).to_have_attribute("data-points", str(STEPS))
    expect(page.locator("#job-step")).to_have_text(f"{STEPS} of {STEPS}")

    # Cards below may move down once, when the answers come; nothing jumps to and fro.
    assert page.evaluate("shifts.reduce((sum, one) => sum + one, 0)") < 0.1

    for question in ("Name stone number 1", "Name river number 2"):
        sample = page.locator(".sample", has_text=question)
        expect(sample.locator(".answer").first.locator("p")).not_to_be_empty()
        expect(sample.locator(".answer.after")).not_to_contain_text("when the run has ended")

    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download adapter").click()
    saved = tmp_path / "adapter.zip"
    downloading.value.save_as(saved)
    with zipfile.ZipFile(saved) as archive:
        archive.extractall(tmp_path / "unzipped")
    adapter = tmp_path / "unzipped" / "adapter"

    ids = torch.arange(3, 40).unsqueeze(0)
    base = AutoModelForCausalLM.from_pretrained(studio.model_path)
    with torch.no_grad():
        untouched = base(ids).logits
        tuned = PeftModel.from_pretrained(base, str(adapter))(ids).logits
    assert torch.isfinite(tuned).all()
    assert (tuned - untouched).abs().max() > 0.1
    expected = logits_of_merged_weights(studio.model_path, adapter, ids)
    torch.testing.assert_close(tuned, expected, atol=1e-4, rtol=1e-4)


def test_chosen_file_and_an_earlier_one(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    expect(start_button(page)).to_be_disabled()
    expect(page.locator("#start-hint")).to_have_text("Drop a file first.")
    page.locator("#file").set_input_files(write_jsonl(tmp_path / "chosen.jsonl", chat_rows(12)))
    expect(page.locator("#verdict")).to_contain_text("12 of 12 rows can be used")
    expect(page.locator("#start-hint")).to_have_text("Choose a model.")
    choose_model(page, studio)
    expect(start_button(page)).to_be_enabled()
    expect(page.locator("#outlook")).to_contain_text("steps, about")

    page.goto(f"{studio.daemon.address.url}/new?dataset={studio.dataset}")
    expect(page.locator("#dataset")).to_have_value(str(studio.dataset))
    expect(page.locator("#verdict")).to_contain_text("words.jsonl, read as chat")
    choose_model(page, studio)
    expect(start_button(page)).to_be_enabled()


def test_a_dropped_file_on_any_page_with_a_zone_opens_the_new_job_with_it(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    """Home imports the same module; this is its contract, over a page of its own."""
    page = new_page(open_visitor, studio)
    page.evaluate(
        """async () => {
            const { acceptDrops } = await import("/static/drop.js");
            const zone = document.createElement("label");
            document.body.replaceChildren(zone);
            document.body.insertAdjacentHTML("beforeend", "<input id=file type=file>");
            zone.id = "drop";
            acceptDrops({ onDone: (made) => { document.body.dataset.made = made.id; } });
        }"""
    )
    drop_files(page, write_jsonl(tmp_path / "home.jsonl", chat_rows(9)))
    expect(page.locator("body")).to_have_attribute("data-made", re.compile(r"\d+"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "DATA-EMPTY"),
        ('[{"text": "cut"}, {"te', "DATA-NOT-JSON"),
        ('{"word": "no form"}\n', "DATA-FORMAT-UNKNOWN"),
        ('{"prompt": "", "completion": ""}\n', "DATA-NO-USABLE-ROWS"),
    ],
)
def test_bad_file_is_a_coded_error_and_starts_nothing(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path, text: str, code: str
) -> None:
    page = new_page(open_visitor, studio)
    choose_model(page, studio)
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    drop_files(page, path)
    expect(page.locator("#verdict")).to_contain_text(code)
    expect(start_button(page)).to_be_disabled()
    # A good one afterwards takes the error away.
    drop_files(page, write_jsonl(tmp_path / "good.jsonl", chat_rows(11)))
    expect(page.locator("#verdict")).to_contain_text("11 of 11")
    expect(page.locator("#verdict .error")).to_have_count(0)
    expect(start_button(page)).to_be_enabled()


def test_ambiguous_file_is_read_as_the_user_says(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    pairs: list[dict[str, object]] = [{"prompt": f"{i}, ", "completion": "go"} for i in range(3)]
    drop_files(page, write_jsonl(tmp_path / "both.jsonl", [*chat_rows(13), *pairs]))
    expect(page.locator("#verdict")).to_contain_text("DATA-AMBIGUOUS")
    page.get_by_role("radio", name="Conversations fits 13 rows").check()
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#verdict")).to_contain_text("13 of 16 rows can be used")


def test_a_file_of_which_much_is_left_out_is_taken_if_the_user_says_so(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    bad: list[dict[str, object]] = [{"messages": []}] * 9
    drop_files(page, write_jsonl(tmp_path / "half.jsonl", [*chat_rows(14), *bad]))
    expect(page.locator("#verdict")).to_contain_text("DATA-TOO-MANY-REJECTED")
    page.get_by_role("button", name="Use the others").click()
    expect(page.locator("#verdict")).to_contain_text("14 of 23 rows can be used")
    expect(page.locator("#verdict")).to_contain_text("no-messages")


def test_unknown_columns_are_mapped_with_a_preview_and_nothing_is_sent_again(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    rows: list[dict[str, object]] = [
        {"frage": f"<img src=x onerror=alert({i})> {i}?", "antwort": f"{i}."} for i in range(6)
    ]
    drop_files(page, write_jsonl(tmp_path / "fragen.jsonl", rows))
    expect(page.locator("#verdict")).to_contain_text("DATA-FORMAT-UNKNOWN")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method + request.url))
    page.get_by_role("radio", name="Question and answer").check()
    page.locator("select[name='qa.question']").select_option("frage")
    page.locator("select[name='qa.answer']").select_option("antwort")
    preview = page.locator(".preview")
    expect(preview).to_contain_text("<img src=x onerror=alert(0)> 0?")
    expect(preview.locator(".learned").first).to_contain_text("0.")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#verdict")).to_contain_text("6 of 6 rows can be used")
    assert not [one for one in sent if one.startswith("PUT")]

    # Read wrongly: once more, and the earlier reading, which no job uses, goes.
    page.get_by_role("button", name="Read it differently").click()
    page.locator("select[name='qa.question']").select_option("antwort")
    page.locator("select[name='qa.answer']").select_option("frage")
    expect(preview.locator(".learned").first).to_contain_text("<img src=x")
    before = page.locator("#dataset option").count()
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#verdict")).to_contain_text("6 of 6 rows can be used")
    expect(page.locator("#dataset option")).to_have_count(before)


def test_several_files_become_one_dataset_and_different_kinds_are_named(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = new_page(open_visitor, studio)
    table = tmp_path / "table.csv"
    table.write_text("prompt,completion\nOne,two\n")
    first = write_jsonl(tmp_path / "part 2.jsonl", chat_rows(5))
    drop_files(page, table, first)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("table.csv is a table")
    expect(alert).to_contain_text("part 2.jsonl is JSON")
    drop_files(page, write_jsonl(tmp_path / "part 10.jsonl", chat_rows(7)), first)
    expect(page.locator("#verdict")).to_contain_text("12 of 12 rows can be used")
    files = page.locator("#verdict tbody tr")
    expect(files.nth(0)).to_contain_text("part 2.jsonl")
    expect(files.nth(1)).to_contain_text("part 10.jsonl")
    expect(alert).to_be_empty()


def test_an_upload_goes_on_after_the_connection_broke(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    visitor = open_visitor(studio.daemon, allowed=(REFUSALS, "Failed to load resource"))
    page = visitor.go("/new")
    broken: list[Route] = []

    def break_off(route: Route) -> None:
        broken.append(route)
        route.abort("connectionreset")

    # Each time anew, until it has been told.
    page.route("**/files/*", break_off)
    drop_files(page, write_jsonl(tmp_path / "again.jsonl", chat_rows(15)))
    expect(page.locator("#uploads")).to_contain_text("the connection broke; goes on by itself")
    wait_for(page, lambda: len(broken) >= 2, "it is tried again")
    page.unroute("**/files/*")
    expect(page.locator("#verdict")).to_contain_text("15 of 15 rows can be used")


def test_a_path_of_the_machine(open_visitor: OpenVisitor, studio: Studio, tmp_path: Path) -> None:
    page = new_page(open_visitor, studio)
    page.get_by_text("A file on the daemon's machine").click()
    field = page.get_by_label("Path of a file, or of a folder of data files")
    field.fill("/proc/self/environ")
    page.get_by_role("button", name="Read it", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("DATA-PATH-REFUSED")
    field.fill(str(write_jsonl(tmp_path / "here.jsonl", chat_rows(8))))
    page.get_by_role("button", name="Read it", exact=True).click()
    expect(page.locator("#verdict")).to_contain_text("8 of 8 rows can be used")
    expect(page.get_by_role("alert")).to_be_empty()


def test_wrong_settings_are_said_beside_their_fields_and_start_nothing(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    page = new_page(open_visitor, studio, f"/new?dataset={studio.dataset}")
    before = len(studio.daemon.api("GET", "/jobs"))
    choose_model(page, studio)
    expect(start_button(page)).to_be_enabled()
    page.get_by_text("All settings").click()
    for name, wrong, why in (
        ("rank", "0", "rank is 0"),
        ("rank", "many", "rank is many; use a whole number"),
        ("lr", "0,001", "lr is 0,001; write a dot"),
        ("epochs", "-1", "epochs is -1"),
        ("epochs", "inf", "epochs is inf"),
        ("seed", "1e400", "seed"),
    ):
        field = page.locator(f"[name='{name}']")
        field.fill(wrong)
        expect(page.locator(f"#{name}-error")).to_contain_text(why)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(start_button(page)).to_be_disabled()
        field.fill("")
        expect(page.locator(f"#{name}-error")).to_be_hidden()
        expect(start_button(page)).to_be_enabled()
    assert len(studio.daemon.api("GET", "/jobs")) == before


def test_a_check_before_the_start_says_what_it_would_come_to(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    page = new_page(open_visitor, studio, f"/new?dataset={studio.dataset}")
    choose_model(page, studio)
    expect(page.locator(".way:has(:checked)")).to_contain_text(re.compile(r"fits: [\d.]+ of"))
    page.get_by_role("button", name="Check first").click()
    found = page.locator("#preflight")
    expect(found).to_contain_text("It can run")
    for word in ("Rows", "Tokens", "RAM", "Disk", "Time"):
        expect(found.get_by_text(word, exact=True)).to_be_visible()
    found.get_by_text("The first rows as the model sees them").click()
    expect(found.locator("mark").first).to_be_visible()


def test_several_values_make_a_sweep(open_visitor: OpenVisitor, studio: Studio) -> None:
    page = new_page(open_visitor, studio, f"/new?dataset={studio.dataset}")
    choose_model(page, studio)
    fill_settings(page, steps=4, batch_size=4, max_seq_len=128)
    page.locator("[name=lr]").fill("0.001, 0.01")
    page.locator("[name=rank]").fill("2..8 x3")
    expect(page.locator("#outlook")).to_contain_text("6 lanes in one pack")
    expect(page.locator("#outlook")).to_contain_text("the time of one")
    page.locator("#f-priority").select_option("after the others")
    page.get_by_role("button", name="Start 6 jobs").click()
    expect(page).to_have_url(re.compile(r"/sweeps/\d+$"))
    sweep = int(page.url.rpartition("/")[2])
    members = studio.daemon.api("GET", f"/sweeps/{sweep}")["members"]
    assert len(members) == 6
    studio.daemon.api("POST", f"/sweeps/{sweep}/cancel")


def test_a_job_waits_for_its_time_and_keeps_its_wishes(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    page = new_page(
        open_visitor, studio, f"/new?dataset={studio.dataset}", timezone_id="Asia/Tokyo"
    )
    choose_model(page, studio, "full")
    page.get_by_role("radio", name="At a time").check()
    expect(page.locator("#at-error")).to_have_text("choose a day and a time")
    page.get_by_label("Not before").fill("2037-03-01T22:00")
    page.get_by_label("Done by (if it matters)").fill("2037-03-01T21:00")
    expect(page.locator("#deadline-error")).to_contain_text("before the time")
    page.get_by_label("Done by (if it matters)").fill("2037-03-02T07:00")
    page.locator("#f-priority").select_option("before the others")
    expect(start_button(page)).to_be_enabled()
    start_button(page).click()
    expect(page).to_have_url(re.compile(r"/jobs/\d+$"))
    job = studio.daemon.job(int(page.url.rpartition("/")[2]))
    begin = datetime(2037, 3, 1, 22, tzinfo=ZoneInfo("Asia/Tokyo")).timestamp()
    assert (job["not_before"], job["deadline"]) == (begin, begin + 9 * 3600)
    assert job["priority"] == 10
    studio.daemon.api("POST", f"/jobs/{job['id']}/cancel")


def test_datasets_are_listed_shown_and_deleted(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [*chat_rows(20)]
    rows.extend({"messages": []} for _ in range(4))
    rows.append({"messages": [{"role": "user", "content": "<b>alone</b>"}]})
    made = studio.daemon.upload(write_jsonl(tmp_path / "shown.jsonl", rows))
    page = new_page(open_visitor, studio, "/datasets")
    page.get_by_role("link", name="shown.jsonl", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("shown.jsonl")
    expect(page.locator("#rejects")).to_contain_text("no-messages")
    expect(page.locator(".histogram")).to_be_visible()
    page.get_by_role("button", name="Show tokens").click()
    expect(page.locator("#rendered mark").first).to_be_visible()
    expect(page.locator("#rendered")).to_contain_text("tokens of")
    page.get_by_role("link", name="Delete").click()
    expect(page.get_by_role("heading", level=2)).to_contain_text("It frees")
    page.get_by_role("button", name="Delete it for good").click()
    expect(page).to_have_url(re.compile("/datasets$"))
    assert made not in [one["id"] for one in studio.daemon.api("GET", "/datasets")]

    job = studio.start(not_before=4e9)
    page.goto(f"{studio.daemon.address.url}/datasets/{studio.dataset}/delete")
    expect(page.locator("main")).to_contain_text("DATA-IN-USE")
    expect(page.get_by_role("button", name="Delete it for good")).to_have_count(0)
    studio.daemon.api("POST", f"/jobs/{job}/cancel")
    page.goto(f"{studio.daemon.address.url}/jobs/{job}/delete")
    page.get_by_role("button", name="Delete it for good").click()
    expect(page).to_have_url(re.compile("/queue$"))
    assert job not in [one["id"] for one in studio.daemon.api("GET", "/jobs")]
