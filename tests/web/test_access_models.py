"""What a token needs to add a model: for a path of this machine more than for a name elsewhere."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemons import DaemonProcess
from support.waiting import PATIENCE


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("models")
    # Nothing listens there, so that nothing is fetched.
    with DaemonProcess(folder / "home", model_endpoint="http://127.0.0.1:9") as process:
        yield process


def _script(daemon: DaemonProcess, *scopes: str) -> httpx.Client:
    made = daemon.api("POST", "/tokens", json={"name": "script", "scopes": scopes})
    return httpx.Client(
        base_url=f"{daemon.address.url}/api/v1",
        headers={"authorization": f"Bearer {made['token']}"},
        trust_env=False,
        timeout=PATIENCE,
    )


def _add(script: httpx.Client, source: object) -> tuple[int, Any]:
    answer = script.post("/models", json={"source": source})
    return answer.status_code, answer.json()


def test_a_path_needs_admin_and_a_name_elsewhere_does_not(
    daemon: DaemonProcess, tiny_model: Path, tmp_path: Path
) -> None:
    here = os.path.relpath(tiny_model)
    (tmp_path / "some.txt").write_text("no model")
    paths = [
        str(tiny_model),
        f"  {tiny_model}",
        here,
        f"{tiny_model.parent}/../{tiny_model.parent.name}/{tiny_model.name}",
        str(tmp_path / "some.txt"),
        str(tmp_path / "nothing-here"),
        "~",
        ".",
        "src/slidepack",
        "/etc/shadow",
        "",
        "x" * 5000,
        "a\x00b",
    ]
    with _script(daemon, "jobs", "read") as script:
        said = set()
        for path in paths:
            status, report = _add(script, path)
            assert (status, report["code"]) == (403, "DAEMON-FORBIDDEN"), path
            said.add(json.dumps(report))
        assert len(said) == 1, "it does not tell which files there are"
        status, record = _add(script, "nobody/nothing")
        assert (status, record["kind"]) == (201, "hub")
        status, report = _add(script, "ollama:no-such-model")
        assert (status, report["code"]) == (404, "MODEL-NOT-FOUND")
        status, report = _add(script, f"ollama:{tiny_model}")
        assert (status, report["code"]) == (404, "MODEL-NOT-FOUND"), "no path either"
    with _script(daemon, "admin") as script:
        status, record = _add(script, str(tiny_model))
        assert (status, record["kind"]) == (201, "folder")
    with _script(daemon, "read") as script:
        assert _add(script, "nobody/nothing")[0] == 403


@pytest.mark.parametrize(
    "body", ["", "null", "[]", "{", '{"source": 1}', '{"name": "x"}', '"/etc"']
)
def test_what_is_no_request_at_all_is_refused_by_the_route(
    daemon: DaemonProcess, body: str
) -> None:
    with _script(daemon, "jobs") as script:
        answer = script.post("/models", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "DAEMON-REQUEST-INVALID")


def test_the_source_that_counts_is_the_one_that_is_taken(
    daemon: DaemonProcess, tiny_model: Path
) -> None:
    twice = f'{{"source": "nobody/nothing", "source": {json.dumps(str(tiny_model))}}}'
    with _script(daemon, "jobs") as script:
        assert script.post("/models", content=twice).status_code == 403
