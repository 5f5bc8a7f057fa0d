"""Sweep files of every editor."""

import codecs
from pathlib import Path

import pytest

from slidepack.cli.sweep_file import read_plan
from slidepack.engine.contract.errors import SlidepackError

_TEXT = 'name = "stönes"\n[grid]\nlr = [1e-4]\n'


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_byte_order_mark_is_no_part_of_the_text(mark: bytes, end: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_bytes(mark + _TEXT.replace("\n", end).encode())
    plan = read_plan(path)
    assert (plan.name, plan.grid) == ("stönes", {"lr": [1e-4]})


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-32"])
def test_a_file_that_is_not_utf8_is_refused(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_bytes(_TEXT.encode(encoding))
    with pytest.raises(SlidepackError, match="cannot be read"):
        read_plan(path)
