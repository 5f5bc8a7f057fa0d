"""Uploads in pieces: they go on from where they broke off, and leave no half file in the list."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemons import DaemonProcess
from support.tiny import chat_rows, write_jsonl
from support.waiting import PATIENCE, wait_until

UPLOADS = "/api/v1/datasets/uploads"


def _rows(word: str, count: int = 3) -> bytes:
    rows = ({"prompt": f"{word} {i}", "completion": "yes"} for i in range(count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _begin(client: httpx.Client, **files: int) -> dict[str, Any]:
    announced = [{"name": name.replace("__", "."), "bytes": size} for name, size in files.items()]
    answer = client.post(UPLOADS, json={"files": announced})
    assert answer.status_code == 201, answer.text
    value: dict[str, Any] = answer.json()
    return value


def _send(client: httpx.Client, draft: str, data: bytes, number: int = 0, offset: int = 0) -> Any:
    path = f"{UPLOADS}/{draft}/files/{number}"
    return client.put(path, params={"offset": offset}, content=data)


def _check(client: httpx.Client, draft: str, **options: Any) -> Any:
    return client.post(f"{UPLOADS}/{draft}/check", json=options).json()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that these tests share; none of them trains."""
    process = DaemonProcess(tmp_path_factory.mktemp("drafts") / "home")
    try:
        yield process.start()
    finally:
        process.clean_up()


@pytest.fixture
def client(host: DaemonProcess) -> Iterator[httpx.Client]:
    """A client of the shared daemon."""
    with host.http() as found:
        yield found


def test_a_file_comes_in_pieces_and_becomes_a_dataset(client: httpx.Client) -> None:
    data = _rows("pieces", 50)
    draft = _begin(client, pieces__jsonl=len(data))
    assert draft["files"] == [
        {"name": "pieces.jsonl", "bytes": len(data), "received": 0, "given": 0}
    ]
    first = _send(client, draft["id"], data[:700])
    assert first.json()["files"][0]["received"] == 700
    early = _check(client, draft["id"])
    assert (early["code"], "700 of" in early["why"]) == ("DATA-UPLOAD-CUT", True)
    # From the wrong place nothing is written, and the answer says where it is.
    wrong = _send(client, draft["id"], data, offset=0)
    assert (wrong.status_code, wrong.json()["code"]) == (409, "DATA-UPLOAD-OFFSET")
    assert "700 bytes are here" in wrong.json()["why"]
    too_much = _send(client, draft["id"], data[700:] + b"more", offset=700)
    assert too_much.json()["code"] == "DATA-REFUSED"
    here = client.get(f"{UPLOADS}/{draft['id']}").json()["files"][0]["received"]
    assert _send(client, draft["id"], data[here:], offset=here).status_code == 200
    checked = _check(client, draft["id"])
    assert checked["draft"] is None
    assert checked["dataset"]["report"]["accepted"] == 50
    assert checked["rows"][0]["parts"][0] == {
        "role": "prompt",
        "text": "pieces 0",
        "learned": False,
    }
    assert client.get(f"{UPLOADS}/{draft['id']}").status_code == 404


@pytest.mark.full
def test_a_cut_connection_keeps_what_came_and_no_dataset(host: DaemonProcess) -> None:
    daemon = host
    listed = daemon.api("GET", "/datasets")
    data = _rows("cut connection", 400_000)
    with daemon.http() as client:
        draft = _begin(client, cut__jsonl=len(data))
        url = daemon.address.url.removeprefix("http://")
        address, _, port = url.partition(":")
        head = (
            f"PUT {UPLOADS}/{draft['id']}/files/0?offset=0 HTTP/1.1\r\nhost: {url}\r\n"
            f"authorization: Bearer {daemon.address.token}\r\ncontent-length: {len(data)}\r\n\r\n"
        )

        def received() -> int:
            found = client.get(f"{UPLOADS}/{draft['id']}").json()
            return int(found["files"][0]["received"])

        with socket.create_connection((address, int(port))) as connection:
            connection.sendall(head.encode() + data[: 9 << 20])
            wait_until(lambda: received() >= 8 << 20, what="most of it has come")
        wait_until(lambda: received() == 9 << 20, what="what came is kept")
        assert daemon.api("GET", "/datasets") == listed
        offset = received()

        def sent() -> bool:
            # The daemon may not have seen yet that the first connection is gone.
            return bool(_send(client, draft["id"], data[offset:], offset=offset).status_code == 200)

        wait_until(sent, what="it goes on")
        assert _check(client, draft["id"])["dataset"]["report"]["accepted"] == 400_000


@pytest.mark.full
def test_a_connection_that_vanished_does_not_hold_its_file(host: DaemonProcess) -> None:
    data = _rows("vanished connection", 300_000)
    with host.http() as client:
        draft = _begin(client, vanished__jsonl=len(data))["id"]
        url = host.address.url.removeprefix("http://")
        address, _, port = url.partition(":")
        head = (
            f"PUT {UPLOADS}/{draft}/files/0?offset=0 HTTP/1.1\r\nhost: {url}\r\n"
            f"authorization: Bearer {host.address.token}\r\ncontent-length: {len(data)}\r\n\r\n"
        )

        def received() -> int:
            return int(client.get(f"{UPLOADS}/{draft}").json()["files"][0]["received"])

        def goes_on() -> bool:
            # In the middle of a write more may come: it is asked again, as the page does.
            offset = received()
            answer = _send(client, draft, data[offset:], offset=offset)
            assert answer.status_code == 200 or answer.json()["code"] == "DATA-UPLOAD-OFFSET"
            return bool(answer.status_code == 200)

        # It stays open and sends nothing: so a cut looks that nobody was told of.
        with socket.create_connection((address, int(port)), timeout=PATIENCE) as vanished:
            vanished.sendall(head.encode() + data[: 9 << 20])
            wait_until(lambda: received() >= 8 << 20, what="it has begun")
            wait_until(goes_on, what="the newer connection has sent the rest")
            assert b"DATA-IN-USE" in _answer(vanished)
        assert (host.home / "uploads" / draft / "000.jsonl").read_bytes() == data
        assert _check(client, draft)["dataset"]["report"]["accepted"] == 300_000


def _answer(connection: socket.socket) -> bytes:
    said = b""
    while b'"code"' not in said and (more := connection.recv(65536)):
        said += more
    return said


@pytest.mark.full
def test_an_upload_outlives_the_daemon_for_a_day(daemon: DaemonProcess) -> None:
    data = _rows("restart")
    with daemon.http() as client:
        young = _begin(client, young__jsonl=len(data))["id"]
        old = _begin(client, old__jsonl=len(data))["id"]
        _send(client, young, data[:40])
    daemon.stop()
    yesterday = time.time() - 90_000
    folder = daemon.home / "uploads" / old
    for path in (*folder.iterdir(), folder):
        os.utime(path, (yesterday, yesterday))
    daemon.start()
    with daemon.http() as client:
        assert client.get(f"{UPLOADS}/{old}").status_code == 404
        assert not folder.exists()
        assert _send(client, young, data[40:], offset=40).status_code == 200
        assert _check(client, young)["dataset"]["name"] == "young.jsonl"


def test_several_files_become_one_dataset_in_the_order_of_their_names(
    client: httpx.Client,
) -> None:
    parts = {"part 10.jsonl": _rows("ten", 4), "part 2.jsonl": _rows("two", 3) + b"{broken\n"}
    draft = _begin(client, **{name: len(data) for name, data in parts.items()})
    assert [file["name"] for file in draft["files"]] == ["part 2.jsonl", "part 10.jsonl"]
    for number, file in enumerate(draft["files"]):
        _send(client, draft["id"], parts[file["name"]], number)
    made = _check(client, draft["id"])["dataset"]
    report = made["report"]
    assert made["name"] == "part 2.jsonl and 1 more"
    assert (report["rows"], report["accepted"], report["rejected"]) == (8, 7, 1)
    assert [(f["name"], f["accepted"], f["rejected"]) for f in report["files"]] == [
        ("part 2.jsonl", 3, 1),
        ("part 10.jsonl", 4, 0),
    ]
    assert [question.split()[0] for question in report["first_questions"]] == ["two"] * 3
    (reject,) = client.get(f"/api/v1/datasets/{made['id']}/rejects").json()["rejects"]
    assert (reject["line"], reject["reason"]) == (4, "not-json")


@pytest.mark.parametrize(
    ("names", "bodies", "said"),
    [
        (("a.csv", "b.jsonl"), None, ("a.csv is a table", "b.jsonl is JSON")),
        (
            ("a.jsonl", "b.jsonl"),
            (_rows("kinds"), b'{"text": "a plain text"}\n'),
            ("a.jsonl is read as completion", "b.jsonl is read as text"),
        ),
    ],
)
def test_files_of_different_kinds_are_named(
    client: httpx.Client,
    names: tuple[str, ...],
    bodies: tuple[bytes, ...] | None,
    said: tuple[str, ...],
) -> None:
    sizes = [len(body) for body in bodies] if bodies else [1] * len(names)
    files = [{"name": n, "bytes": size} for n, size in zip(names, sizes, strict=True)]
    answer = client.post(UPLOADS, json={"files": files})
    if bodies:
        for number, body in enumerate(bodies):
            _send(client, answer.json()["id"], body, number)
        answer = client.post(f"{UPLOADS}/{answer.json()['id']}/check", json={})
    assert (answer.status_code, answer.json()["code"]) == (422, "DATA-REFUSED")
    assert all(part in answer.json()["why"] for part in said)


def test_a_file_is_read_in_another_way_without_being_sent_again(client: httpx.Client) -> None:
    data = b'{"frage": "how", "antwort": "<i>so</i>"}\n' * 4
    draft = _begin(client, odd__jsonl=len(data))["id"]
    _send(client, draft, data)
    asked = _check(client, draft)
    assert asked["draft"] == draft
    assert asked["report"]["error"]["code"] == "DATA-FORMAT-UNKNOWN"
    assert asked["columns"] == [
        {"name": "frage", "example": "how"},
        {"name": "antwort", "example": "<i>so</i>"},
    ]
    columns = {"question": "frage", "answer": "antwort"}
    made = _check(client, draft, form="qa", columns=columns)["dataset"]
    assert made["report"]["accepted"] == 4
    # And from the dataset again: its file is kept.
    again = client.post(f"/api/v1/datasets/{made['id']}/reread").json()
    other = _check(
        client, again["id"], form="qa", columns={"question": "antwort", "answer": "frage"}
    )
    assert other["dataset"]["id"] != made["id"]
    assert other["rows"][0]["parts"][0]["text"] == "<i>so</i>"
    same = client.post(f"/api/v1/datasets/{made['id']}/reread").json()
    assert _check(client, same["id"], form="qa", columns=columns)["dataset"]["id"] == made["id"]


def test_a_path_of_the_machine_is_copied(client: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    write_jsonl(folder / "b.jsonl", chat_rows(3))
    first = write_jsonl(folder / "a.jsonl", chat_rows(2))
    (folder / ".hidden.jsonl").write_text("{")
    (folder / "notes.pdf").write_text("no data")
    draft = client.post("/api/v1/datasets/paths", json={"path": str(folder)}).json()
    assert [file["name"] for file in draft["files"]] == ["a.jsonl", "b.jsonl"]
    first.write_text("changed since")
    assert _check(client, draft["id"])["dataset"]["report"]["accepted"] == 5


def test_paths_that_are_no_data_are_refused(client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "to-proc.jsonl").symlink_to("/proc/self/environ")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "empty").mkdir()
    for path, code in (
        ("/proc/self/environ", "DATA-PATH-REFUSED"),
        (str(tmp_path / "to-proc.jsonl"), "DATA-PATH-REFUSED"),
        ("/dev/zero", "DATA-PATH-REFUSED"),
        (str(tmp_path / "pipe.jsonl"), "DATA-PATH-REFUSED"),
        (str(tmp_path / "empty"), "DATA-PATH-REFUSED"),
        ("relative.jsonl", "DATA-PATH-REFUSED"),
        ("/tmp/a\x00b", "DATA-PATH-REFUSED"),
        ("", "DATA-PATH-REFUSED"),
        (str(tmp_path / "loop"), "DATA-NOT-FOUND"),
        (str(tmp_path / "missing.jsonl"), "DATA-NOT-FOUND"),
    ):
        answer = client.post("/api/v1/datasets/paths", json={"path": path})
        assert answer.json()["code"] == code, (path, answer.text)


@pytest.mark.parametrize("draft", ["0" * 16, "%2e%2e", "x", "A" * 16])
def test_an_upload_that_is_not_there(client: httpx.Client, draft: str) -> None:
    for answer in (
        client.get(f"{UPLOADS}/{draft}"),
        _send(client, draft, b"x"),
        client.post(f"{UPLOADS}/{draft}/check", json={}),
    ):
        assert answer.status_code in (400, 404, 405), answer.text


@pytest.mark.parametrize(
    "name", ["../../x.jsonl", "n" * 249 + ".jsonl", "a\x00b.jsonl", "😀.jsonl"]
)
def test_a_name_of_a_piece_is_only_a_label(host: DaemonProcess, name: str) -> None:
    daemon = host
    data = _rows(f"named {name!r}")
    with daemon.http() as client:
        draft = client.post(UPLOADS, json={"files": [{"name": name, "bytes": len(data)}]}).json()
        here = daemon.home / "uploads" / draft["id"]
        assert {path.name for path in here.iterdir()} == {"draft.json", "000.jsonl"}
        _send(client, draft["id"], data)
        made = _check(client, draft["id"])["dataset"]
    assert len(made["name"]) <= 200
    assert {path.name for path in (daemon.home / "datasets" / str(made["id"])).iterdir()} == {
        "original.jsonl",
        "rows.jsonl",
        "rejects.jsonl",
    }


def _peak_mb(daemon: DaemonProcess) -> float:
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000


def _send_many(daemon: DaemonProcess, total: int) -> float:
    """Send so many bytes in pieces; return by how much the daemon's memory grew, in MB."""
    assert daemon.process is not None
    piece = 32 << 20
    block = (json.dumps({"prompt": "p" * 500, "completion": "c" * 480}) + "\n").encode()
    body = (block * (piece // len(block) + 1))[:piece]
    with daemon.http() as client:
        draft = _begin(client, big__jsonl=total)["id"]
        _send(client, draft, body[:1000])
        Path(f"/proc/{daemon.process.pid}/clear_refs").write_text("5")
        before = _peak_mb(daemon)
        offset = 1000
        while offset < total:
            part = body[: min(piece, total - offset)]
            assert _send(client, draft, part, offset=offset).status_code == 200
            offset += len(part)
        client.delete(f"{UPLOADS}/{draft}")
    assert not (daemon.home / "uploads" / draft).exists()
    return _peak_mb(daemon) - before


@pytest.mark.full
def test_a_large_upload_does_not_fill_the_memory(daemon: DaemonProcess) -> None:
    assert _send_many(daemon, 300 << 20) < 50


@pytest.mark.full
def test_five_gigabytes_do_not_fill_the_memory(daemon: DaemonProcess) -> None:
    assert _send_many(daemon, 5_000_000_000) < 50
