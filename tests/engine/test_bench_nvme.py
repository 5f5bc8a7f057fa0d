"""`bench nvme` measures the bare drives and the tier on the same files, and leaves nothing."""

from pathlib import Path
from typing import Any

import pytest

from slidepack.engine.bench_nvme.options import NvmeOptions
from slidepack.engine.bench_nvme.raw import Raw
from slidepack.engine.bench_nvme.run import bench_nvme
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.files import TierFile


def _options(*folders: Path, **changes: Any) -> NvmeOptions:
    values: dict[str, Any] = {
        "folders": folders,
        "gigabytes": 0.02,
        "chunk_megabytes": 4,
        "rounds": 1,
        "threads": 2,
        "transport": "",
        "device": "cpu",
    }
    return NvmeOptions(**(values | changes))


@pytest.mark.parametrize("drives", [1, 2])
def test_a_measurement_is_whole_and_its_files_are_gone(drives: int, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(drives)]
    found = bench_nvme(_options(*folders))
    for way in ("write", "read", "both"):
        assert found[way]["raw_gb_s"] > 0
        assert found[way]["share"] == pytest.approx(
            found[way]["tier_gb_s"] / found[way]["raw_gb_s"]
        )
    assert 0.0 <= found["overlap"]["hidden_share"] <= 1.0
    assert found["overlap"]["together_seconds"] > 0
    assert found["file_bytes"] == 4 * (4 << 20)
    assert found["transport"] == "ring"
    assert all(not list(folder.iterdir()) for folder in folders)


def test_the_bare_drives_read_and_write_every_byte(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    size = 6 * (4 << 20)
    file = TierFile.create(paths, size)
    bare = Raw(request_bytes=4 << 20, threads=3, pin=False)
    assert bare.seconds(None, file) > 0
    content = b"".join(path.read_bytes() for path in paths)
    assert len(content) == size
    # Each thread writes its own noise: no page was left out.
    assert all(any(content[at : at + 4096]) for at in range(0, size, 4096))
    assert bare.seconds(file, None) > 0
    file.close()


@pytest.mark.parametrize(
    "wrong", [{"gigabytes": 0.001}, {"rounds": 0}, {"transport": "carrier pigeon"}]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"use|take|are"):
        _options(tmp_path, **wrong)


def test_a_transport_that_is_not_installed_is_told(tmp_path: Path) -> None:
    with pytest.raises(SlidepackError, match=r"RUN-SPEC-INVALID.*kvikio"):
        bench_nvme(_options(tmp_path, transport="kvikio"))
    assert not list(tmp_path.iterdir())
