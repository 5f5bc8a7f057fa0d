"""What is shown of a file that is not read yet: columns that can be mapped, under their names."""

import json
from pathlib import Path

import msgspec
import pytest

from slidepack.daemon.first_look import columns_seen, preview_rows
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.report import CheckOptions

_UNMAPPABLE = ("frage\ud83d", "\udce9", "a\0b", "", "x" * 5000)
_MAPPABLE = ("frage", "Größe 😀", "a.b", " ", "\u200b", "\x1b[31m", "x" * 300)


@pytest.mark.parametrize("name", [*_UNMAPPABLE, *_MAPPABLE], ids=lambda name: ascii(name)[:20])
@pytest.mark.parametrize("inside", [False, True])
def test_columns_that_cannot_be_mapped_are_left_out(
    tmp_path: Path, name: str, inside: bool
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"known": "k", "outer" if inside else name: {name: "m"}}) + "\n")
    seen = [column.name for column in columns_seen(path, CheckOptions())]
    msgspec.json.encode(seen)
    assert ("outer" in seen) == inside
    assert "known" in seen
    # An empty name has a place behind its object's: `--map answer=outer.`.
    mappable = name in _MAPPABLE or (inside and not name)
    assert ((f"outer.{name}" if inside else name) in seen) == mappable


def test_columns_that_cannot_be_mapped_take_no_place_of_others(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    odd = {f"{number}\ud83d": number for number in range(100)}
    path.write_text(json.dumps(odd | {"known": "k"}) + "\n")
    assert [column.name for column in columns_seen(path, CheckOptions())] == ["known"]


def test_a_preview_names_the_file_as_its_user_does(tmp_path: Path) -> None:
    path = tmp_path / "000.jsonl"
    path.write_text("[[1")
    with pytest.raises(SlidepackError) as caught:
        preview_rows(path, CheckOptions(form="chat"), name="my talks.jsonl")
    assert caught.value.report.why.startswith("my talks.jsonl")
