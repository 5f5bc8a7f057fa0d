"""A new job that begins with another one's settings: its form holds them, and asks for the same."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.daemons import DaemonProcess
from support.line_ends import TEXT
from support.queueing import Farm, make_farm
from support.tiny import chat_rows, write_jsonl

from slidepack.daemon.duplicating import settings_of_job
from slidepack.daemon.requests import JobSettings, job_spec
from slidepack.engine.contract.job import DatasetRef, ModelRef

NEVER = 4e9
"""A time until which the jobs of these tests wait."""

ODD: dict[str, Any] = {
    "name": "one, two; <three>",
    "rank": 3,
    "alpha": 7,
    "dropout": 0.125,
    "targets": ["q_proj", "down_proj"],
    "rslora": True,
    "base_precision": "fp32",
    "lr": 0.000123456789,
    "schedule": "linear",
    "warmup_fraction": 0.2,
    "weight_decay": 0.01,
    "clip_norm": 0.5,
    "batch_size": 2,
    "max_seq_len": 96,
    "too_long": "split",
    "epochs": 1.5,
    "selection_fraction": 0.2,
    "test_fraction": 0.1,
    "eval_every_steps": 5,
    "checkpoint_every_steps": 4,
    "checkpoint_minutes": 2.5,
    "sample_prompts": ["\tFirst </textarea>?", f"Second{TEXT}?"],
    "judge_rows": 3,
    "seed": 11,
    "split_seed": 12,
    "priority": 7,
}
"""No setting of which is the usual one."""

REQUESTS: list[dict[str, Any]] = [
    {},
    ODD,
    {"steps": 9, "start": "now", "priority": -10},
    {"base_precision": "nf4"},
    {"method": "full", "moments": "int8", "optimizer_engine": "cpu", "lr": 3e-5},
]


class Fields(HTMLParser):
    """What a browser would send of the form of a page."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.sent: list[tuple[str, str]] = []
        self._select = self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take up what a field holds."""
        found = {name: value or "" for name, value in attrs}
        name = found.get("name", "")
        if tag == "select":
            self._select = name
        elif tag == "textarea":
            self._area = name
            self.sent.append((name, ""))
        elif tag == "option" and "selected" in found:
            self.sent.append((self._select, found["value"]))
        elif tag == "input" and name:
            kind = found.get("type", "text")
            if kind not in ("radio", "checkbox") or "checked" in found:
                self.sent.append((name, found.get("value", "")))

    def handle_endtag(self, tag: str) -> None:
        """Leave a text area."""
        if tag == "textarea":
            self._area = ""

    def handle_data(self, data: str) -> None:
        """Take up the text of a text area; a browser drops the line break before it."""
        if self._area:
            name, text = self.sent.pop()
            self.sent.append((name, text + (data if text else data.removeprefix("\n"))))


@pytest.fixture(scope="module")
def farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon whose jobs wait for ever."""
    folder = tmp_path_factory.mktemp("again")
    daemon = DaemonProcess(folder / "home")
    daemon.start()
    try:
        yield make_farm(daemon, tiny_model, folder)
    finally:
        daemon.clean_up()


def queue(farm: Farm, **fields: Any) -> int:
    """Queue a job with nothing but these settings."""
    fixed = {"model": farm.model, "dataset": farm.dataset, "not_before": NEVER}
    return int(farm.daemon.api("POST", "/jobs", json=fixed | fields)["id"])


def page(farm: Farm, job_id: int) -> str:
    with farm.daemon.http() as client:
        answer = client.get(f"/new?from={job_id}")
    assert answer.is_success, answer.text
    return answer.text


def send(farm: Farm, text: str) -> int:
    """Send the form of a page as it is, for a time that never comes."""
    form = Fields()
    form.feed(text)
    data: dict[str, list[str]] = {}
    for name, value in form.sent:
        data.setdefault(name, []).append(value)
    with farm.daemon.http() as client:
        answer = client.post("/new", data=data)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["go"].rpartition("/")[2])


@pytest.mark.full
@pytest.mark.parametrize("request_of", REQUESTS, ids=["usual", "odd", "now", "qlora", "full"])
def test_the_form_as_it_is_asks_for_the_same_job(farm: Farm, request_of: dict[str, Any]) -> None:
    farm.daemon.api("POST", "/queue/pause")
    first = queue(farm, **request_of)
    second = send(farm, page(farm, first))
    specs = [farm.daemon.api("GET", f"/jobs/{one}")["spec"] for one in (first, second)]
    if prompts := specs[0]["eval"]["sample_prompts"]:
        specs[0]["eval"]["sample_prompts"] = [prompt.strip() for prompt in prompts]
    assert specs[1] == specs[0]
    kept = ("priority", "any_time", "name")
    old, new = (farm.daemon.job(one) for one in (first, second))
    assert {name: new[name] for name in kept} == {name: old[name] for name in kept}
    assert (new["not_before"], new["deadline"]) == (None, None)
    for job in (first, second):
        farm.act(job, "cancel")


@pytest.mark.full
def test_held_out_rows_are_taken_over_and_what_is_gone_is_told(farm: Farm, tmp_path: Path) -> None:
    other = farm.daemon.upload(write_jsonl(tmp_path / "other.jsonl", chat_rows(9)))
    job = queue(farm, held_out=other)
    text = page(farm, job)
    again = send(farm, text)
    spec = farm.daemon.api("GET", f"/jobs/{again}")["spec"]
    assert spec["eval"]["selection"]["dataset_id"] == str(other)
    for one in (job, again):
        farm.act(one, "cancel")
    farm.daemon.api("DELETE", f"/datasets/{other}")
    assert "held-out dataset is not here any more" in page(farm, job)
    gone = farm.daemon.upload(write_jsonl(tmp_path / "gone.jsonl", chat_rows(9)))
    lone = queue(farm, dataset=gone, name="Alone")
    farm.act(lone, "cancel")
    farm.daemon.api("DELETE", f"/datasets/{gone}")
    text = page(farm, lone)
    assert "Its dataset is not here any more" in text
    assert "Drop a file first." in text
    assert "Its model" not in text


def test_a_job_that_is_not_there(farm: Farm) -> None:
    with farm.daemon.http() as client:
        answer = client.get("/new?from=999")
    assert answer.status_code == 404
    assert "RUN-NOT-FOUND" in answer.text


@pytest.mark.parametrize("fields", [{}, ODD, REQUESTS[-1]], ids=["usual", "odd", "full"])
def test_settings_come_back_from_a_specification(fields: dict[str, Any]) -> None:
    given = {name: value for name, value in fields.items() if name != "priority"}
    for name in ("targets", "sample_prompts"):
        if name in given:
            given[name] = tuple(given[name])
    settings = JobSettings(**{"name": "A job"} | given)
    base = ModelRef(model_id="", path="", content_hash="")
    rows = DatasetRef(dataset_id="", path="", content_hash="")
    assert settings_of_job(job_spec(settings, "title", base, rows, None)) == settings
