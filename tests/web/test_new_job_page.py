"""The page of a new job: what two tabs do to each other, and its words."""

import json
import re

import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm

from slidepack.daemon.fits import METHODS, Fit, Method
from slidepack.engine.memory import Machine
from slidepack.web.new_job_view import fit_sizes

_GIB = 1 << 30


@pytest.mark.full
def test_a_dataset_is_read_again_in_two_tabs(daemon: DaemonProcess) -> None:
    rows = b"".join(
        json.dumps({"frage": f"how {i}", "antwort": f"so {i}"}).encode() + b"\n" for i in range(4)
    )
    columns = {"format": "qa", "qa.question": "frage", "qa.answer": "antwort"}
    turned = {"format": "qa", "qa.question": "antwort", "qa.answer": "frage"}
    with daemon.http() as client:
        query = {"name": "both.jsonl", "map": ["question=frage", "answer=antwort"]}
        made = client.put("/api/v1/datasets", params=query, content=rows).json()
        drafts = [
            client.post(f"/api/v1/datasets/{made['id']}/reread").json()["id"] for _ in range(2)
        ]
        for draft, fields in zip(drafts, (turned, columns | {"format": "text"}), strict=True):
            answer = client.post(
                f"/new/drafts/{draft}/check",
                data=fields | {"replaces": str(made["id"]), "text.text": "frage"},
            )
            assert answer.status_code == 200, answer.text
            assert "4 of 4 rows can be used" in answer.text
            assert "DATA-NOT-FOUND" not in answer.text
        kept = [one["id"] for one in client.get("/api/v1/datasets").json()]
        assert made["id"] not in kept
        assert len(kept) == 2


def _fit(method: Method, device_bytes: int, host_bytes: int) -> Fit:
    return Fit(
        method=method,
        fits=True,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        why="",
        remedies=(),
        needs="",
    )


@pytest.mark.parametrize(
    ("need", "there", "said"),
    [
        (700 << 20, 900 << 20, "700.0 of 900.0 MiB of RAM"),
        (700 << 20, 2 * _GIB, "0.7 of 2.0 GiB of RAM"),
        (12 * _GIB, 64 * _GIB, "12.0 of 64.0 GiB of RAM"),
    ],
)
def test_what_is_needed_and_what_is_there_are_in_one_unit(need: int, there: int, said: str) -> None:
    machine = Machine(device="cpu", device_free_bytes=0, ram_available_bytes=there, cpu_threads=1)
    assert fit_sizes(_fit("lora", 0, need), machine) == said


def test_each_way_to_train_is_explained_and_one_is_the_usual_choice(served_farm: Farm) -> None:
    with served_farm.daemon.http() as client:
        page = client.get("/new").text
    for method, title in METHODS.items():
        assert f'<div id="about-{method}"><dt>{title}</dt> <dd>' in page
        assert f'aria-describedby="about-{method}"' in page
    assert page.count("usual choice") == 1
    (usual,) = re.findall(r"<strong>(\w+)</strong> <span class=\"usual\">", page)
    assert usual == "LoRA"
