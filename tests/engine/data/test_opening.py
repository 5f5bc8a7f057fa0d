"""Packed files, files that break off, and files that are no data at all."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard
from support.reading import error, read, rows_and_growth, values

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.reading import RawRow, read_rows

ROWS = [{"prompt": f"question {i}", "completion": "answer " * 20} for i in range(500)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def _zstd(data: bytes) -> bytes:
    # Without the size in the header, as a pipe writes it.
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


PACKERS = {".gz": gzip.compress, ".zst": _zstd}


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize(
    ("name", "data", "first"),
    [
        ("f.jsonl", LINES, (1, ROWS[0])),
        ("f.json", json.dumps(ROWS).encode(), (1, ROWS[0])),
        ("f.json", json.dumps({"data": ROWS}, indent=1).encode(), (1, ROWS[0])),
        ("f.csv", b"prompt;completion\na;b\n", (2, {"prompt": "a", "completion": "b"})),
        ("f.txt", "grün\n".encode("utf-16"), (1, {"text": "grün\n"})),
    ],
)
def test_packed_files_are_read_like_what_is_inside(
    tmp_path: Path, suffix: str, name: str, data: bytes, first: tuple[int, object]
) -> None:
    assert values(tmp_path / (name + suffix), PACKERS[suffix](data))[0] == first
    # The name need not tell: bytes do.
    assert values(tmp_path / name, PACKERS[suffix](data))[0] == first


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_files_that_were_joined(tmp_path: Path, suffix: str) -> None:
    half = LINES.index(b"\n", len(LINES) // 2) - 10
    packed = PACKERS[suffix](LINES[:half]) + PACKERS[suffix](b"") + PACKERS[suffix](LINES[half:])
    assert [value for _, value in values(tmp_path / f"f.jsonl{suffix}", packed)] == ROWS


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_packed_file_that_breaks_off_says_how_far_it_goes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"f.jsonl{suffix}"
    packed = PACKERS[suffix](LINES)
    for size in (len(packed) - 1, len(packed) - 5, len(packed) // 2, 11):
        refused = error(path, packed[:size])
        assert refused.code == "DATA-CUT-OFF"
        assert f"f.jsonl{suffix}: " in refused.why
        assert f"byte {size} of {size}" in refused.why


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_packed_file_with_wrong_bytes_is_damaged(tmp_path: Path, suffix: str) -> None:
    packed = bytearray(PACKERS[suffix](LINES))
    packed[len(packed) // 2] ^= 0xFF
    packed[len(packed) // 2 + 1] ^= 0xFF
    assert error(tmp_path / f"f.jsonl{suffix}", bytes(packed)).code in (
        "DATA-CUT-OFF",
        "DATA-NOT-JSON",
    )


def test_errors_call_a_packed_file_by_its_own_name(tmp_path: Path) -> None:
    assert "f.json.gz: line 1" in error(tmp_path / "f.json.gz", gzip.compress(b"[1,,]")).why


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    for suffix in ("", *PACKERS):
        told: list[int] = []
        path = tmp_path / f"f.jsonl{suffix}"
        packed = PACKERS[suffix](LINES) if suffix else LINES
        read(path, packed, on_bytes=told.append)
        assert told == sorted(set(told))
        assert told[-1] == path.stat().st_size


@pytest.mark.parametrize("name", ["f.csv", "f.json"])
def test_progress_is_told_while_rows_come_and_not_before(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    lines = [f"question {i},{'answer ' * 100}\n" for i in range(20_000)]
    data = {"data": [{"text": line} for line in lines]}
    path.write_text(
        json.dumps(data) if name == "f.json" else f"prompt,completion\n{''.join(lines)}"
    )
    told: list[int] = []
    rows = read_rows(path, on_bytes=told.append)
    next(rows)
    assert max(told) < path.stat().st_size / 2
    assert sum(1 for _ in rows) == 19_999
    assert max(told) == path.stat().st_size


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"PK\x03\x04xxxx", "a zip archive or a spreadsheet"),
        (b"%PDF-1.7", "a PDF"),
        (b"\x89PNG\r\n", "a picture"),
        (b"GGUF\x03", "a GGUF model"),
        (b"BZh91AY", "a bzip2 archive"),
        (b"\xfd7zXZ\x00", "an xz archive"),
        (b"PARE1234", "an encrypted Parquet file"),
        (b"FEA1", "a Feather file of version 1"),
        (b"SQLite format 3\0", "a SQLite database"),
        (gzip.compress(b"PAR1", mtime=0), "a Parquet file"),
        (gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0), "a gzip archive"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, data: bytes, what: str) -> None:
    refused = error(tmp_path / "f", data)
    assert refused.code == "DATA-FORMAT-UNKNOWN"
    assert what in refused.what
    assert refused.fix


def test_a_packed_archive_of_files_is_refused_by_name(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("a.jsonl")
        info.size = len(LINES)
        archive.addfile(info, io.BytesIO(LINES))
    assert "a tar archive" in error(tmp_path / "f.tar.gz", buffer.getvalue()).what


def test_a_name_that_promises_parquet_is_held_to_it(tmp_path: Path) -> None:
    assert error(tmp_path / "f.parquet", LINES).code == "DATA-FORMAT-UNKNOWN"


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(SlidepackError) as caught:
        list(read_rows(tmp_path / "a\0b"))
    assert caught.value.report.code == "DATA-NOT-FOUND"


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_small_file_that_unpacks_to_a_huge_one_is_bounded(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bomb.jsonl{suffix}"
    bomb = PACKERS[suffix](b" " * (150 << 20))
    path.write_bytes(PACKERS[suffix](b'{"a": "1"}\n') + bomb + PACKERS[suffix](b'\n{"a": "2"}\n'))
    assert path.stat().st_size < 1 << 20
    count, grown_mib = rows_and_growth(path)
    assert count == 3
    assert grown_mib < 150


def test_rows_before_a_break_are_given(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.gz"
    path.write_bytes(gzip.compress(LINES * 40)[:-8])
    rows = read_rows(path)
    assert next(rows) == RawRow(1, ROWS[0])
    with pytest.raises(SlidepackError, match="breaks off"):
        list(rows)
