"""Data files: whole or not there, whatever their name, content and connection."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm
from support.tiny import chat_rows
from support.waiting import wait_until


def _rows(word: str, count: int = 3) -> bytes:
    rows = ({"prompt": f"{word} {i}", "completion": "yes"} for i in range(count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _stored(daemon: DaemonProcess) -> list[str]:
    """Return the names of everything that uploads have left on the disk."""
    return sorted(
        str(path.relative_to(daemon.home))
        for folder in ("uploads", "datasets")
        for path in (daemon.home / folder).rglob("*")
    )


@pytest.fixture
def untouched(served_farm: Farm) -> Iterator[DaemonProcess]:
    """The shared daemon, whose datasets must be the same before and after."""
    daemon = served_farm.daemon
    before = (_stored(daemon), daemon.api("GET", "/datasets"))
    logged = len(daemon.log)
    yield daemon
    assert (_stored(daemon), daemon.api("GET", "/datasets")) == before
    assert "Traceback" not in daemon.log[logged:]


_BAD = {
    "empty": (b"", "DATA-EMPTY"),
    "blank": (b" \n\n\t\n", "DATA-EMPTY"),
    "cut": (b'[{"text": "a"}, {"text": ', "DATA-NOT-JSON"),
    "binary": (bytes(range(256)) * 40, None),
    "zip": (b"PK\x03\x04" + b"\0" * 500, None),
    "numbers": (b"[1, 2, 3]", "DATA-FORMAT-UNKNOWN"),
    "nested": (b"[" * 100_000, "DATA-NOT-JSON"),
    "no-answers": (b'{"prompt": "p", "completion": ""}\n' * 3, "DATA-NO-USABLE-ROWS"),
    "no-turns": (b'{"messages": []}\n' * 3, "DATA-NO-USABLE-ROWS"),
    "other-fields": (b'{"a": 1}\n' * 3, "DATA-FORMAT-UNKNOWN"),
    "preferences": (b'{"chosen": "a", "rejected": "b"}\n', "DATA-PREFERENCE-UNSUPPORTED"),
    "two-forms": (b'{"prompt": "p", "completion": "c", "instruction": "i", "output": "o"}', None),
    "half-bad": (b'{"prompt": "p", "completion": "c"}\n{"prompt": "p"}\n', None),
}


@pytest.mark.parametrize("name", _BAD)
def test_a_bad_file_gets_a_code_and_leaves_nothing(untouched: DaemonProcess, name: str) -> None:
    content, code = _BAD[name]
    with untouched.http() as client:
        answer = client.put("/api/v1/datasets", params={"name": name}, content=content)
    report = answer.json()
    assert answer.status_code == 422, report
    assert report["code"].startswith("DATA-")
    assert code is None or report["code"] == code
    assert report["fix"]
    assert "\n" not in report["what"] + report["why"] + report["fix"]


def test_an_unknown_format_is_named(untouched: DaemonProcess) -> None:
    with untouched.http() as client:
        answer = client.put("/api/v1/datasets?name=x&format=poem", content=_rows("format"))
    assert answer.json()["code"] == "DATA-FORMAT-UNKNOWN"
    assert "poem" in answer.json()["what"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_cut_connection_leaves_nothing(untouched: DaemonProcess, chunked: bool) -> None:
    address = untouched.address
    host, _, port = address.url.removeprefix("http://").partition(":")
    body = _rows("cut", 400_000)
    length = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    head = (
        f"PUT /api/v1/datasets?name=cut HTTP/1.1\r\nhost: {host}:{port}\r\n"
        f"authorization: Bearer {address.token}\r\n{length}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode())
        part = body[: 9 << 20]
        connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n" if chunked else part)
        uploads = untouched.home / "uploads"
        wait_until(lambda: any(p.stat().st_size for p in uploads.iterdir()), what="it has begun")
    wait_until(lambda: not any(uploads.iterdir()), what="the part is gone")


def test_the_same_bytes_are_kept_once(served_farm: Farm) -> None:
    daemon = served_farm.daemon
    with daemon.http() as client:
        first = client.put("/api/v1/datasets?name=one", content=_rows("same")).json()
        stored = _stored(daemon)
        second = client.put("/api/v1/datasets?name=two", content=_rows("same")).json()
        assert second == first
        assert _stored(daemon) == stored
        # Read as something else it is another dataset, or none at all.
        other = client.put("/api/v1/datasets?name=3&format=chat", content=_rows("same"))
        assert other.json()["code"] == "DATA-NO-USABLE-ROWS"
        assert _stored(daemon) == stored


def test_the_user_says_how_a_file_is_read(served_farm: Farm) -> None:
    daemon = served_farm.daemon
    content = (
        b'{"ask": "how", "say": "so", "or": "or so"}\n{"ask": "why", "say": null, "or": "hence"}\n'
    )

    def put(**query: str | list[str]) -> dict[str, Any]:
        with daemon.http() as client:
            answer = client.put("/api/v1/datasets", params={"name": "x", **query}, content=content)
        value: dict[str, Any] = answer.json()
        return value

    assert put()["code"] == "DATA-FORMAT-UNKNOWN"
    wrong = put(map=["question=ask", "answer=nothing"])
    assert (wrong["code"], "ask, or, say" in wrong["why"]) == ("DATA-MAPPING-INVALID", True)
    assert put(map=["question"])["code"] == "DATA-MAPPING-INVALID"
    assert put(map=["question=ask", "answer=say"])["code"] == "DATA-TOO-MANY-REJECTED"
    one = put(map=["question=ask", "answer=say"], allow_rejects="true")
    other = put(map=["question=ask", "answer=or"])
    assert (one["report"]["accepted"], other["report"]["accepted"]) == (1, 2)
    assert other["report"]["columns"] == {"question": "ask", "answer": "or"}
    assert one["id"] != other["id"]
    # The same bytes read in the same way are the same data set.
    assert put(map=["question=ask", "answer=or"]) == other
    assert put(text_mode="word")["code"] == "DATA-FORMAT-UNKNOWN"


def test_the_ending_of_a_name_tells_a_table_from_a_text(served_farm: Farm) -> None:
    content = b"prompt,completion\nOne,two\nThree,four\n"
    with served_farm.daemon.http() as client:
        families = [
            client.put(f"/api/v1/datasets?name={name}", content=content).json()["report"]["family"]
            for name in ("x.csv", "x.txt", "X.CSV", "x.y.txt")
        ]
    assert families == ["completion", "text", "completion", "text"]


@pytest.mark.parametrize(
    "name",
    [
        "../../escape.jsonl",
        "/etc/passwd",
        "a\x00b.jsonl",
        "n" * 300 + ".jsonl",
        "😀 наклейка.jsonl",
        "<script>alert(1)</script>.jsonl",
        "..",
        "%2e%2e%2fx",
        "line\nbreak\r\nset-cookie: x=1",
        '"; DROP TABLE jobs; --',
    ],
)
def test_a_name_is_only_a_label(served_farm: Farm, name: str) -> None:
    daemon = served_farm.daemon
    logged = len(daemon.log)
    tree = {p for p in daemon.home.parent.rglob("*") if "datasets" not in p.parts}
    with daemon.http() as client:
        record = client.put(
            "/api/v1/datasets", params={"name": name}, content=_rows(f"label {name!r}")
        ).json()
        label = record["name"]
        assert len(label) <= 200
        assert "\n" not in label
        # A job made from it without a name of its own takes a part of the label.
        request = {"model": served_farm.model, "dataset": record["id"], "steps": 5000}
        job = client.post("/api/v1/jobs", json=request).json()
        served_farm.act(job["id"], "cancel")
        page = client.get("/").text
    assert "<script>alert" not in page
    stored = {p.name for p in (daemon.home / "datasets" / str(record["id"])).iterdir()}
    assert stored - {"original", "original.jsonl"} == {"rows.jsonl", "rejects.jsonl"}
    assert len(stored) == 3
    after = {p for p in daemon.home.parent.rglob("*") if "datasets" not in p.parts}
    # The job may have begun before it was cancelled.
    of_runs = {p for p in after if {"jobs", "packs"} & set(p.parts)}
    assert {p for p in after - tree - of_runs if "db" not in p.name} == set()
    assert "Traceback" not in daemon.log[logged:]


def test_a_big_file_does_not_fill_the_memory(daemon: DaemonProcess, tmp_path: Path) -> None:
    row = {"messages": [*chat_rows(1)[0]["messages"], {"role": "user", "content": "x" * 1000}]}  # type: ignore[misc]
    row["messages"].append({"role": "assistant", "content": "y" * 1000})
    line = json.dumps(row).encode() + b"\n"
    big = tmp_path / "big.jsonl"
    with big.open("wb") as file:
        for _ in range(50_000_000 // len(line) + 1):
            file.write(line)
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status")
    Path(f"/proc/{daemon.process.pid}/clear_refs").write_text("5")
    before = _peak_mb(status)
    with daemon.http() as client, big.open("rb") as file:
        headers = {"content-length": str(big.stat().st_size)}
        answer = client.put(
            "/api/v1/datasets?name=big",
            content=iter(lambda: file.read(1 << 20), b""),
            headers=headers,
        )
    assert answer.status_code == 201, answer.text
    grown = _peak_mb(status) - before
    assert grown < 50, "the file is 50 MB"


def _peak_mb(status: Path) -> float:
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000
