"""From a dropped file to an adapter that PEFT loads, and what the form refuses."""

import json
import re
import zipfile
from pathlib import Path

import pytest
import torch
from e2e.browsing import REFUSALS, OpenVisitor, chart_points, drop_file
from e2e.conftest import Studio
from peft import PeftModel
from playwright.sync_api import Page, expect
from safetensors.torch import load_file
from support.tiny import chat_rows, write_jsonl
from support.waiting import wait_until
from transformers import AutoModelForCausalLM

STEPS = 240


def fill_settings(page: Page, **values: object) -> None:
    page.get_by_text("Settings").click()
    for name, value in values.items():
        page.locator(f'[name="{name}"]').fill(str(value))


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


def test_dropped_file_becomes_an_adapter_that_peft_loads(
    page: Page, studio: Studio, tmp_path: Path
) -> None:
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

    page.get_by_role("combobox", name="Model").select_option(studio.model_id)
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
    page.get_by_role("button", name="Start").click()

    expect(page).to_have_url(re.compile(r"/jobs/\d+$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("stones on")
    expect(page.locator("#job-state")).to_have_text("running", timeout=30_000)
    expect(page.locator("#chart")).to_have_attribute(
        "data-points", re.compile(r"[1-9]"), timeout=30_000
    )
    seen = chart_points(page)
    assert seen < STEPS, "the run was over before the chart was seen to move"
    wait_until(lambda: chart_points(page) > seen, what="the chart moves")
    expect(page.locator("#job-state")).to_have_text("completed", timeout=90_000)
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


def test_chosen_file_and_an_earlier_one(page: Page, studio: Studio, tmp_path: Path) -> None:
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    page.locator("#file").set_input_files(write_jsonl(tmp_path / "chosen.jsonl", chat_rows(12)))
    expect(page.locator("#verdict")).to_contain_text("12 of 12 rows can be used")
    expect(page.get_by_role("button", name="Start")).to_be_enabled()

    page.reload()
    page.get_by_role("combobox", name="Data").select_option(str(studio.dataset))
    expect(page.locator("#verdict")).to_contain_text("words.jsonl, read as chat")
    expect(page.get_by_role("button", name="Start")).to_be_enabled()


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
    page = open_visitor(studio.daemon, allowed=(REFUSALS,)).page
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    drop_file(page, path)
    expect(page.get_by_role("alert")).to_contain_text(code)
    expect(page.locator("#verdict")).to_be_empty()
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    # A good one afterwards takes the error away.
    drop_file(page, write_jsonl(tmp_path / "good.jsonl", chat_rows(11)))
    expect(page.locator("#verdict")).to_contain_text("11 of 11")
    expect(page.get_by_role("alert")).to_be_empty()


def test_ambiguous_file_is_read_as_the_user_says(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = open_visitor(studio.daemon, allowed=(REFUSALS,)).page
    pairs: list[dict[str, object]] = [{"prompt": f"{i}, ", "completion": "go"} for i in range(3)]
    drop_file(page, write_jsonl(tmp_path / "both.jsonl", [*chat_rows(13), *pairs]))
    expect(page.get_by_role("alert")).to_contain_text("DATA-AMBIGUOUS")
    page.get_by_role("button", name="Chat", exact=True).click()
    expect(page.locator("#verdict")).to_contain_text("13 of 16 rows can be used")
    expect(page.get_by_role("alert")).to_be_empty()


def test_a_file_of_which_much_is_left_out_is_taken_if_the_user_says_so(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = open_visitor(studio.daemon, allowed=(REFUSALS,)).page
    bad: list[dict[str, object]] = [{"messages": []}] * 9
    drop_file(page, write_jsonl(tmp_path / "half.jsonl", [*chat_rows(14), *bad]))
    expect(page.get_by_role("alert")).to_contain_text("DATA-TOO-MANY-REJECTED")
    page.get_by_role("button", name="Use the others").click()
    expect(page.locator("#verdict")).to_contain_text("14 of 23 rows can be used")
    expect(page.locator("#verdict")).to_contain_text("no-messages")
    expect(page.get_by_role("alert")).to_be_empty()


def test_two_files_at_once_are_refused(page: Page) -> None:
    transfer = page.evaluate_handle(
        """() => {
            const transfer = new DataTransfer();
            for (const name of ["a.jsonl", "b.jsonl"]) transfer.items.add(new File(["{}"], name));
            return transfer;
        }"""
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
    expect(page.get_by_role("alert")).to_contain_text("One file at a time")


def test_wrong_settings_are_a_coded_error_and_start_nothing(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    page = open_visitor(studio.daemon, allowed=(REFUSALS,)).page
    before = len(studio.daemon.api("GET", "/jobs"))
    page.get_by_role("combobox", name="Data").select_option(str(studio.dataset))
    page.get_by_text("Settings").click()
    for name, wrong, why in (
        ("Rank", "0", "rank is 0"),
        ("Rank", "many", "rank is many; use a whole number"),
        ("Learning rate", "0,001", "lr is 0,001; use a number"),
        ("Passes over the data", "-1", "epochs is -1"),
        ("Passes over the data", "inf", "epochs is inf"),
        ("Seed", "1e400", "seed"),
    ):
        field = page.get_by_label(name)
        field.fill(wrong)
        page.get_by_role("button", name="Start").click()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("RUN-SPEC-INVALID")
        expect(alert.locator(".why")).to_contain_text(why)
        expect(alert).to_be_in_viewport()
        expect(page.get_by_role("button", name="Start")).to_be_enabled()
        field.fill("")
    assert len(studio.daemon.api("GET", "/jobs")) == before


def test_bad_model_is_a_coded_error_and_a_good_one_is_known(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = open_visitor(studio.daemon, allowed=(REFUSALS,)).page
    source = page.get_by_label("Add a folder")
    known = page.locator("#library li").count()
    for wrong, code in (
        (tmp_path / "missing", "MODEL-NOT-FOUND"),
        (tmp_path, "MODEL-NOT-A-MODEL"),
    ):
        source.fill(str(wrong))
        page.get_by_role("button", name="Add").click()
        expect(page.get_by_role("alert")).to_contain_text(code)
        expect(source).to_have_value(str(wrong))
    source.fill(str(studio.model_path))
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_role("alert")).to_be_empty()
    expect(source).to_have_value("")
    expect(page.locator("#library li")).to_have_count(known)


def test_failed_import_says_why_and_can_be_removed(
    open_visitor: OpenVisitor, studio: Studio, tmp_path: Path
) -> None:
    page = open_visitor(studio.daemon).page
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    page.get_by_label("Add a folder").fill(str(broken))
    page.get_by_role("button", name="Add").click()
    entry = page.locator("#library li", has_text="broken")
    expect(entry.locator(".error")).to_contain_text("MODEL-", timeout=20_000)
    entry.get_by_role("button", name="Remove from the list").click()
    expect(entry).to_have_count(0)
