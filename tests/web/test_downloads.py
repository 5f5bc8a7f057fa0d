"""A download is the bytes of its files, whole or from any byte on; tar reads the tar."""

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, Request, get
from litestar.response import Response
from litestar.testing import TestClient

from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.downloads import Body, answer, file_body, tar_body

_SIZES = (0, 1, 511, 512, 513, (1 << 20) + 7)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {}
    for size in _SIZES:
        path = tmp_path / f"file-{size}"
        path.write_bytes(os.urandom(size))
        paths[f"model/{path.name}"] = path
    long = tmp_path / "long"
    long.write_bytes(b"long")
    paths[f"model/{'n' * 150}.gguf"] = long
    return paths


def _whole(body: Body) -> bytes:
    return b"".join(body.chunks(0, body.num_bytes))


def test_a_tar_is_read_by_pythons_own_and_is_as_long_as_was_said(files: dict[str, Path]) -> None:
    body = tar_body(files, 1_700_000_000.7)
    data = _whole(body)
    assert len(data) == body.num_bytes
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        assert archive.getnames() == list(files)
        for name, path in files.items():
            member = archive.extractfile(name)
            assert member is not None and member.read() == path.read_bytes()
            about = archive.getmember(name)
            assert (about.mtime, about.mode, about.uid) == (1_700_000_000, 0o644, 0)
    assert _whole(tar_body(files, 1_700_000_000.7)) == data, "a resumed download fits its start"


def test_any_part_of_a_tar_is_that_part_of_the_whole(files: dict[str, Path]) -> None:
    whole = _whole(tar_body(files, 0.0))
    edges = [0, 1, 511, 512, 513, 1024, len(whole) - 1025, len(whole) - 1, len(whole)]
    for start in edges:
        for end in edges:
            if start < end:
                body = tar_body(files, 0.0)
                assert b"".join(body.chunks(start, end)) == whole[start:end], (start, end)


def test_a_file_that_is_deleted_or_cut_while_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * (3 << 20))
    body = file_body(path)
    path.unlink()
    assert len(_whole(body)) == 3 << 20
    path.write_bytes(b"x" * (3 << 20))
    chunks = file_body(path).chunks(0, 3 << 20)
    next(chunks)
    os.truncate(path, 1 << 20)
    with pytest.raises(OSError, match="became shorter"):
        list(chunks)


def test_links_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe", "nothing"):
        with pytest.raises(SlidepackError) as refused:
            file_body(tmp_path / name)
        assert refused.value.report.code == "EXPORT-FILE-NOT-FOUND"
        with pytest.raises(SlidepackError):
            tar_body({"a": tmp_path / "secret", "b": tmp_path / name}, 0.0)


@pytest.mark.parametrize(
    ("headers", "status", "start", "end"),
    [
        ({}, 200, 0, 1000),
        ({"range": "bytes=0-"}, 206, 0, 1000),
        ({"range": "bytes=0-0"}, 206, 0, 1),
        ({"range": "bytes=600-"}, 206, 600, 1000),
        ({"range": "bytes=600-5000"}, 206, 600, 1000),
        ({"range": "bytes=-100"}, 206, 900, 1000),
        ({"range": "bytes=-5000"}, 206, 0, 1000),
        ({"range": "bytes=600-", "if-range": '"tag"'}, 206, 600, 1000),
        ({"range": "bytes=600-", "if-range": '"other"'}, 200, 0, 1000),
        ({"range": "bytes=0-1,5-6"}, 200, 0, 1000),
        ({"range": "bytes=-"}, 200, 0, 1000),
        ({"range": "bytes=9-3"}, 200, 0, 1000),
        ({"range": "lines=1-2"}, 200, 0, 1000),
        ({"range": "bytes=1000-"}, 416, 0, 0),
        ({"range": "bytes=-0"}, 416, 0, 0),
    ],
)
def test_ranges(tmp_path: Path, headers: dict[str, str], status: int, start: int, end: int) -> None:
    data = os.urandom(1000)
    path = tmp_path / "weights"
    path.write_bytes(data)

    @get("/")
    async def download(request: Request[Any, Any, Any]) -> Response[Any]:
        return answer(
            request,
            file_body(path),
            filename="weights",
            etag='"tag"',
            media_type="application/octet-stream",
        )

    with TestClient(Litestar([download])) as client:
        response = client.get("/", headers=headers)
    assert response.status_code == status
    if status == 416:
        assert response.headers["content-range"] == "bytes */1000"
        assert response.json()["code"] == "EXPORT-RANGE"
        return
    assert response.content == data[start:end]
    assert response.headers["content-length"] == str(end - start)
    assert response.headers["accept-ranges"] == "bytes"
    assert response.headers["content-disposition"] == 'attachment; filename="weights"'
    found = response.headers.get("content-range")
    assert found == (f"bytes {start}-{end - 1}/1000" if status == 206 else None)
