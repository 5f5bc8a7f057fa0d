"""Whatever the columns of a file are called, its check is answered."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.daemons import DaemonProcess

_UPLOADS = "/api/v1/datasets/uploads"
_NAMES = ("frage\ud83d", "\udce9", "a\0b", "", "x" * 200_000, "a\nb", "<b>")
_ROWS: dict[str, Any] = {
    "column": lambda name: {name: "m1", "antwort": "a"},
    "part": lambda name: {"frage": {name: "m1"}, "antwort": "a"},
    "object": lambda name: {name: {name: {name: 1}}, "antwort": "a"},
    "preference": lambda name: {"prompt": "p", "chosen": "a", "rejected": "b", name: "c"},
    "preference-part": lambda name: {"chosen": {name: "a"}, "rejected": "b"},
    "judged": lambda name: {"prompt": "p", "completion": "c", "label": True, name: 1},
    "beside": lambda name: {"prompt": "p", "completion": "", name: "c"},
    "turn": lambda name: {"messages": [{"role": "user", "content": "c", name: "c"}]},
    "role": lambda name: {"messages": [{"role": name, "content": "c"}]},
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that these tests share; none of them trains."""
    process = DaemonProcess(tmp_path_factory.mktemp("columns") / "home")
    try:
        yield process.start()
    finally:
        process.clean_up()


def _draft(client: httpx.Client, data: bytes) -> str:
    files = [{"name": "rows.jsonl", "bytes": len(data)}]
    draft: str = client.post(_UPLOADS, json={"files": files}).json()["id"]
    assert client.put(f"{_UPLOADS}/{draft}/files/0", content=data).status_code == 200
    return draft


@pytest.mark.parametrize("shape", _ROWS)
@pytest.mark.parametrize("name", _NAMES, ids=lambda name: ascii(name)[:20])
def test_a_column_of_any_name_is_answered(host: DaemonProcess, name: str, shape: str) -> None:
    data = json.dumps(_ROWS[shape](name)).encode() + b"\n"
    with host.http() as client:
        draft = _draft(client, data * 2)
        for options in ({}, {"form": "chat"}, {"form": "qa"}):
            answer = client.post(f"{_UPLOADS}/{draft}/check", json=options)
            assert answer.status_code == 200, answer.text[:400]
            assert answer.json()["report"]["error"]["code"].startswith("DATA-")
            for column in answer.json()["columns"]:
                assert 0 < len(column["name"]) <= 1000
