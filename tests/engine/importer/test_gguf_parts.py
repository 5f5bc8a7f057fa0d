"""Files that are not one whole model: parts, blobs, adapters, eyes, other architectures."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.gguf_files import add_value, finish

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_model import read_model_shape, write_model
from slidepack.engine.importer.gguf_reader import QuickReader
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer

MakeGguf = Callable[..., Path]
PARTS = 3


def split(whole: Path, folder: Path, *, number: bool = True) -> list[Path]:
    """Split a file as `llama-gguf-split` does: the metadata in the first part alone."""
    reader = gguf.GGUFReader(whole)
    folder.mkdir()
    paths: list[Path] = []
    for index in range(PARTS):
        path = folder / f"tiny-{index + 1:05d}-of-{PARTS:05d}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if index == 0:
            for key, field in reader.fields.items():
                if not key.startswith(("GGUF.", "general.architecture")):
                    add_value(writer, key, field.contents())
        writer.add_uint16("split.no", index if number else 0)
        writer.add_uint16("split.count", PARTS)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[index::PARTS]:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        finish(writer)
        paths.append(path)
    return paths


def folder_of(path: Path, target: Path) -> dict[str, bytes]:
    target.mkdir()
    model = GgufFile(path)
    shape = read_model_shape(model)
    write_tokenizer(model, target, shape.vocab)
    write_model(model, shape, target, lambda _count: None)
    return {made.name: made.read_bytes() for made in target.iterdir()}


def refusal(path: Path) -> tuple[str, str]:
    with pytest.raises(SlidepackError) as caught:
        read_model_shape(GgufFile(path))
    report = caught.value.report
    return report.code, f"{report.what} {report.why} {report.fix}"


def test_the_parts_of_a_model_are_read_as_one(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    whole = tiny_gguf(tmp_path / "tiny.gguf")
    expected = folder_of(whole, tmp_path / "whole")
    parts = split(whole, tmp_path / "parts")
    for index, part in enumerate(parts):
        assert folder_of(part, tmp_path / str(index)) == expected


def test_a_missing_part_is_named(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    parts = split(tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "parts")
    parts[1].unlink()
    code, text = refusal(parts[0])
    assert code == "MODEL-BROKEN"
    assert "tiny-00002-of-00003.gguf is not in" in text and "all parts in one folder" in text
    os.truncate(parts[2], parts[2].stat().st_size - 100)
    parts[2].rename(parts[1])
    parts[0].with_name("tiny-00003-of-00003.gguf").write_bytes(b"GGUF")
    assert refusal(parts[0])[0] == "MODEL-BROKEN"


def test_parts_that_do_not_belong_together(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    whole = tiny_gguf(tmp_path / "tiny.gguf")
    parts = split(whole, tmp_path / "parts", number=False)
    assert "does not call it part 2 of 3" in refusal(parts[0])[1]
    renamed = tmp_path / "renamed.gguf"
    parts[0].rename(renamed)
    code, text = refusal(renamed)
    assert code == "MODEL-UNSUPPORTED" and "one of 3 parts" in text


def test_a_blob_of_ollama_is_known_by_its_first_bytes(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    whole = tiny_gguf(tmp_path / "tiny.gguf")
    expected = folder_of(whole, tmp_path / "whole")
    blob = tmp_path / f"sha256-{'0f' * 32}"
    whole.rename(blob)
    assert folder_of(blob, tmp_path / "blob") == expected


@pytest.mark.parametrize(
    "architecture", ["phi3", "qwen2moe", "gemma3n", "gemma", "llama4", "mistral3", "bert"]
)
def test_other_architectures_are_named_with_those_that_are_read(
    tmp_path: Path, tiny_gguf: MakeGguf, architecture: str
) -> None:
    code, text = refusal(tiny_gguf(tmp_path / "m.gguf", architecture=architecture))
    assert code == "MODEL-UNSUPPORTED"
    assert f"its architecture is {architecture}" in text
    assert "llama, qwen2, qwen3, gemma2, gemma3." in text


@pytest.mark.parametrize(
    ("architecture", "extra", "word"),
    [
        ("llama", {"general.type": "adapter"}, "LoRA adapter"),
        ("llama", {"adapter.type": "lora"}, "LoRA adapter"),
        ("clip", {"general.type": "mmproj"}, "sees images"),
        ("clip", {}, "sees images"),
        ("llama", {"general.type": "imatrix"}, "statistics"),
        ("llama", {"general.type": "poem"}, "of the type poem"),
    ],
)
def test_other_files_say_what_they_are(
    tmp_path: Path, tiny_gguf: MakeGguf, architecture: str, extra: dict[str, Any], word: str
) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", architecture=architecture, extra=extra)
    code, text = refusal(path)
    assert code == "MODEL-NOT-A-MODEL" and word in text


def test_a_model_with_eyes_is_refused(
    tmp_path: Path, tiny_gguf: MakeGguf, tiny_tensors: Callable[..., dict[str, np.ndarray]]
) -> None:
    seeing = {"v.blk.0.attn_q.weight": np.ones(4, np.float32), "mm.w": np.ones(4, np.float32)}
    path = tiny_gguf(tmp_path / "m.gguf", tensors=tiny_tensors() | seeing)
    code, text = refusal(path)
    assert code == "MODEL-UNSUPPORTED" and "2 of its tensors see images" in text


def test_a_mixture_of_experts_is_refused(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    code, text = refusal(tiny_gguf(tmp_path / "m.gguf", extra={"llama.expert_count": 8}))
    assert code == "MODEL-UNSUPPORTED" and "expert_count is 8" in text


def test_the_quick_reader_finds_what_the_packages_does(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {
        "texts": ["", "a", "naïve 日本", "\x00x", ""],
        "flags": [True, False, True],
        "integers": [-1, 0, 7],
        "numbers": [0.5, -2.0],
    }
    for name, value in values.items():
        writer.add_array(f"some.{name}", value)
    writer.add_tensor("x", np.arange(32, dtype=np.float32))
    finish(writer)
    theirs, ours = gguf.GGUFReader(path), QuickReader(path)
    for name, value in values.items():
        field = ours.fields[f"some.{name}"]
        assert field.contents() == value == theirs.fields[f"some.{name}"].contents()
        assert field.types == theirs.fields[f"some.{name}"].types
    assert np.array_equal(ours.tensors[0].data, theirs.tensors[0].data)
    assert ours.tensors[0].data_offset == theirs.tensors[0].data_offset
