"""`/metrics`: read back by a strict parser of the format, true to the rows, and quick."""

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.notice_app import NoticeDaemon, notice_service, serving_notices
from support.stores import open_stores, plain_spec

from slidepack.daemon.notices.energy import EnergyReport
from slidepack.daemon.notices.settings import Outlook
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.states import JOB_STATES
from slidepack.daemon.store.jobs import JobRecord
from slidepack.web.metrics import Standing, read_standing, render

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_VALUE = re.compile(r"[+-]?(\d+(\.\d+)?([eE][+-]?\d+)?|Inf)|NaN")

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class _Parsed:
    """A page of metrics."""

    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    values: dict[Key, float] = field(default_factory=dict)

    def value(self, name: str, /, **labels: str) -> float:
        (found,) = [
            value
            for (metric, pairs), value in self.values.items()
            if metric == name and labels.items() <= dict(pairs).items()
        ]
        return found

    def names(self) -> set[str]:
        return {name for name, _ in self.values}


def _parse(text: str) -> _Parsed:
    """Parse the text format, version 0.0.4, and refuse whatever it does not allow."""
    assert text.endswith("\n")
    page = _Parsed()
    current = ""
    for line in text.removesuffix("\n").split("\n"):
        header = re.fullmatch(r"# (HELP|TYPE) (\S+) (.+)", line)
        if header:
            kind, name, rest = header.groups()
            assert _NAME.fullmatch(name)
            seen = page.helps if kind == "HELP" else page.types
            assert name not in seen, f"two {kind} lines of {name}"
            seen[name] = rest
            if kind == "TYPE":
                assert rest in ("counter", "gauge", "histogram", "summary", "untyped")
                current = name
            continue
        name, pairs, value = _sample(line)
        assert name == current, f"{line!r} is not under its own TYPE line"
        assert (name, pairs) not in page.values, f"twice: {line!r}"
        page.values[name, pairs] = value
    assert set(page.helps) == set(page.types) == page.names()
    return page


def _sample(line: str) -> tuple[str, tuple[tuple[str, str], ...], float]:
    found = _NAME.match(line)
    assert found, line
    rest = line[found.end() :]
    pairs: list[tuple[str, str]] = []
    if rest.startswith("{"):
        rest = rest[1:]
        while not rest.startswith("}"):
            label = _LABEL.match(rest)
            assert label, rest
            assert rest[label.end() : label.end() + 2] == '="', rest
            text, rest = _quoted(rest[label.end() + 2 :])
            assert label[0] not in dict(pairs), "a label twice"
            pairs.append((label[0], text))
            if not rest.startswith("}"):
                assert rest.startswith(","), rest
                rest = rest[1:]
        rest = rest[1:]
    assert rest.startswith(" "), line
    assert _VALUE.fullmatch(rest[1:]), line
    return found[0], tuple(pairs), float(rest[1:])


def _quoted(text: str) -> tuple[str, str]:
    """Return a label's value and what follows its closing quote."""
    value, at = "", 0
    while text[at] != '"':
        if text[at] == "\\":
            value += {"\\": "\\", '"': '"', "n": "\n"}[text[at + 1]]
            at += 1
        else:
            value += text[at]
        at += 1
    return value, text[at + 1 :]


def _energy(card: float | None, cpu: float | None) -> EnergyReport:
    return EnergyReport(
        joules=None,
        card_joules=card,
        cpu_joules=cpu,
        source="",
        seconds=1.0,
        card_seconds=1.0,
        cpu_seconds=1.0,
        note="",
    )


def _job(number: int, name: str, loss: float | None, eta: float | None) -> JobRecord:
    return JobRecord(
        id=number,
        name=name,
        state="running",
        reason="",
        model_id="m",
        dataset_id=1,
        step=7,
        total_steps=10,
        phase="training",
        loss=loss,
        eta_seconds=eta,
        tokens_per_second=123.5,
        result=None,
        error=None,
        wanted=None,
        wanted_at=None,
        created_at=0.0,
        started_at=0.0,
        ended_at=None,
    )


_ODD = 'a "quoted" \\ name\nwith {braces}, = and 🎉'


def _standing() -> Standing:
    card = Gpu(
        vendor="nvidia",
        index=0,
        uuid="GPU-1",
        name='RTX "4090"',
        pci_address="",
        architecture="",
        driver_version="",
        vram_total_bytes=24 << 30,
        vram_free_bytes=4 << 30,
        temperature_celsius=61,
        utilisation_percent=97,
        power_watts=312.5,
    )
    silent = Gpu(
        vendor="amd",
        index=1,
        uuid="",
        name="RX",
        pci_address="",
        architecture="",
        driver_version="",
    )
    return Standing(
        jobs_by_state={"running": 2, "queued": 3, "completed": 10_000},
        live=[_job(4, _ODD, float("inf"), None), _job(5, "b", 1e-9, 1e7)],
        outlook=Outlook(window_open=False, holds=("paused", "hot", "hot")),
        gpus=(card, silent),
        disk_free_bytes=10**12,
        energy=_energy(1234.5, None),
        notices={"pending": 1, "failed": 2},
        started_at=1.8e9,
        rss_bytes=90 << 20,
    )


def test_every_line_is_of_the_format_and_true() -> None:
    page = _parse(render(_standing()))
    states = {dict(pairs)["state"] for name, pairs in page.values if name == "slidepack_jobs"}
    assert states == set(JOB_STATES)
    for name, labels, value in (
        ("jobs", {"state": "completed"}, 10_000),
        ("jobs", {"state": "failed"}, 0),
        ("queue_length", {}, 3),
        ("job_step", {"job": "4", "name": _ODD}, 7),
        ("job_steps", {"job": "4"}, 10),
        ("job_loss", {"job": "4"}, float("inf")),
        ("job_loss", {"job": "5"}, 1e-9),
        ("job_eta_seconds", {"job": "5"}, 1e7),
        ("job_tokens_per_second", {"job": "5"}, 123.5),
        ("hold", {"code": "hot"}, 1),
        ("window_open", {}, 0),
        ("gpu_memory_used_bytes", {"gpu": "0", "name": 'RTX "4090"'}, 20 << 30),
        ("gpu_memory_total_bytes", {"uuid": "GPU-1"}, 24 << 30),
        ("gpu_temperature_celsius", {"gpu": "0"}, 61),
        ("gpu_utilisation_ratio", {"gpu": "0"}, 0.97),
        ("gpu_power_watts", {"gpu": "0"}, 312.5),
        ("energy_joules_total", {"source": "card"}, 1234.5),
        ("disk_free_bytes", {}, 10**12),
        ("notice_deliveries", {"state": "pending"}, 1),
        ("notice_deliveries", {"state": "failed"}, 2),
        ("start_time_seconds", {}, 1.8e9),
        ("resident_memory_bytes", {}, 90 << 20),
    ):
        assert page.value(f"slidepack_{name}", **labels) == value, name
    assert page.types["slidepack_energy_joules_total"] == "counter"


def test_what_nobody_knows_has_no_line() -> None:
    text = render(_standing())
    assert 'gpu="1"' not in text
    assert "cpu_package" not in text
    assert len(re.findall(r"^slidepack_job_eta_seconds\{", text, re.M)) == 1
    assert "None" not in text


def test_a_loss_that_is_no_number_is_written_as_the_format_wants() -> None:
    standing = _standing()
    jobs = [_job(1, "n", float("nan"), None), _job(2, "i", float("-inf"), None)]
    written = render(
        Standing(**{name: getattr(standing, name) for name in Standing.__slots__} | {"live": jobs})
    )
    assert 'slidepack_job_loss{job="1",name="n"} NaN\n' in written
    assert 'slidepack_job_loss{job="2",name="i"} -Inf\n' in written
    _parse(written)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[NoticeDaemon]:
    report = SimpleNamespace(gpus=_standing().gpus)
    hardware = SimpleNamespace(report=lambda: report)
    service = notice_service(tmp_path, hardware=hardware)
    with serving_notices(tmp_path, service) as served:
        yield served


def test_it_is_served_to_who_may_see_it(daemon: NoticeDaemon) -> None:
    stores = open_stores(daemon.home)
    job = stores.jobs.add(plain_spec(_ODD.replace("\n", " ")), 1.0)
    stores.jobs.add(plain_spec("second"), 1.0)
    stores.jobs.move(job.id, "starting", "starts", 2.0)
    with daemon.http() as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    page = _parse(answer.text)
    assert page.value("slidepack_queue_length") == 1
    assert page.value("slidepack_jobs", state="starting") == 1
    assert page.value("slidepack_job_step", job=str(job.id)) == 0
    assert page.value("slidepack_window_open") == 1
    assert page.value("slidepack_notice_deliveries", state="pending") == 0
    process = psutil.Process()
    assert page.value("slidepack_start_time_seconds") == pytest.approx(process.create_time())
    assert 0.5 < page.value("slidepack_resident_memory_bytes") / process.memory_info().rss < 2
    with daemon.http(token=False) as stranger:
        refused = stranger.get("/metrics")
    assert refused.status_code == 401
    assert "slidepack_" not in refused.text


def test_it_is_quick_with_ten_thousand_jobs(
    daemon: NoticeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = open_stores(daemon.home)
    first = stores.jobs.add(plain_spec(), 1.0).id
    with stores.database.transaction():
        stores.database.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) "
            "INSERT INTO jobs (name, state, reason, position, spec, model_id, dataset_id, "
            "created_at, ended_at) SELECT name, 'completed', reason, i, spec, model_id, "
            "dataset_id, created_at, i FROM jobs, n WHERE id = ?",
            first,
        )
        stores.database.execute(
            "INSERT INTO energy SELECT id, 1, id, 900, 1, 1e5, 900, NULL, 0 FROM jobs"
        )
    times = []
    for _ in range(30):
        began = time.thread_time()
        render(read_standing(daemon.service, 1.0))
        times.append(time.thread_time() - began)
    quickest, median = min(times) * 1e3, sorted(times)[len(times) // 2] * 1e3
    with capsys.disabled():
        sys.stdout.write(f"\nMetrics of 10,001 jobs: {quickest:.1f} ms, median {median:.1f} ms.\n")
    assert quickest < 20
    assert _parse(render(read_standing(daemon.service, 1.0))).value(
        "slidepack_energy_joules_total", source="card"
    ) == pytest.approx(10_001e5)
