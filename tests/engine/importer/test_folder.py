"""Every way in which a folder can fail to be a model has its code and its evidence."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.fingerprint import content_hash, quick_stamp
from slidepack.engine.importer.folder import check_folder
from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_model import read_model_shape, write_model
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer

Change = Callable[[Path], object]


@pytest.fixture
def model(tmp_path: Path, tiny_gguf: Callable[..., Path]) -> Path:
    """A sound tiny model folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    gguf = GgufFile(tiny_gguf(tmp_path / "m.gguf"))
    shape = read_model_shape(gguf)
    write_tokenizer(gguf, folder, shape.vocab)
    write_model(gguf, shape, folder, lambda _: None)
    return folder


def edit(name: str, **values: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | values))

    return change


def weights(change: Callable[[dict[str, np.ndarray]], object]) -> Change:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return apply


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text)


def cut(name: str, size: int) -> Change:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - size)


def pickled(name: str) -> Change:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / name)

    return apply


def index(places: object) -> Change:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        text = json.dumps({"weight_map": places})
        (folder / "model.safetensors.index.json").write_text(text)

    return apply


def adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


LAST = "model.layers.1.mlp.down_proj.weight"

FAULTS: list[tuple[Change, str, str]] = [
    (shutil.rmtree, "MODEL-NOT-FOUND", "model"),
    (remove("config.json"), "MODEL-NOT-A-MODEL", "config.json"),
    (write("config.json", "{"), "MODEL-NOT-A-MODEL", "config.json"),
    (adapter, "MODEL-NOT-A-MODEL", "adapter_config.json"),
    (edit("config.json", architectures=["GPT2LMHeadModel"]), "MODEL-UNSUPPORTED", "GPT2LMHead"),
    (edit("config.json", auto_map={"AutoModel": "x.Y"}), "MODEL-UNSUPPORTED", "auto_map"),
    (edit("tokenizer_config.json", auto_map={"A": "x.Y"}), "MODEL-UNSUPPORTED", "auto_map"),
    (edit("config.json", quantization_config={"bits": 4}), "MODEL-UNSUPPORTED", "quantised"),
    (edit("config.json", num_hidden_layers=3), "MODEL-BROKEN", "model.layers.2"),
    (edit("config.json", num_hidden_layers=10**12), "MODEL-NOT-A-MODEL", "1000000000000"),
    (edit("config.json", num_hidden_layers=1), "MODEL-UNSUPPORTED", "model.layers.1"),
    (edit("config.json", intermediate_size=128), "MODEL-BROKEN", "(96, 64)"),
    (remove("tokenizer.json"), "MODEL-NOT-A-MODEL", "tokenizer.json"),
    (write("tokenizer.json", "[]"), "MODEL-BROKEN", "tokenizer.json"),
    (write("tokenizer_config.json", "[1]"), "MODEL-BROKEN", "tokenizer_config.json"),
    (remove("model.safetensors"), "MODEL-NOT-A-MODEL", "model.safetensors"),
    (pickled("pytorch_model.bin"), "MODEL-PICKLE", "pytorch_model.bin"),
    (pickled("model.pt"), "MODEL-PICKLE", "model.pt"),
    (pickled("model.pth"), "MODEL-PICKLE", "model.pth"),
    (pickled("model.ckpt"), "MODEL-PICKLE", "model.ckpt"),
    (pickled("other.safetensors"), "MODEL-NOT-A-MODEL", "other.safetensors"),
    (cut("model.safetensors", 1), "MODEL-BROKEN", "model.safetensors"),
    (write("model.safetensors", ""), "MODEL-BROKEN", "(0 bytes)"),
    (weights(lambda t: t.pop(LAST)), "MODEL-BROKEN", LAST),
    (weights(lambda t: t.update({LAST: t[LAST].T.copy()})), "MODEL-BROKEN", "(96, 64)"),
    (weights(lambda t: t.update({LAST: t[LAST].astype(np.int8)})), "MODEL-UNSUPPORTED", "I8"),
    (weights(lambda t: t.update({"x.bias": t[LAST]})), "MODEL-UNSUPPORTED", "x.bias"),
    (index({LAST: "model-00002-of-00002.safetensors"}), "MODEL-BROKEN", "model-00002"),
    (index({LAST: "../model-00001-of-00002.safetensors"}), "MODEL-BROKEN", "../model"),
    (index({}), "MODEL-BROKEN", "weight_map"),
    (index([1]), "MODEL-BROKEN", "weight_map"),
]


@pytest.mark.parametrize(("change", "code", "word"), FAULTS)
def test_faults(model: Path, change: Change, code: str, word: str) -> None:
    change(model)
    with pytest.raises(SlidepackError) as caught:
        check_folder(model)
    assert caught.value.report.code == code
    assert word in caught.value.report.why
    assert caught.value.report.fix


def test_a_sound_folder(model: Path) -> None:
    (model / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Hi\n")
    report = check_folder(model)
    assert report.license == "apache-2.0"
    assert report.weights == (model / "model.safetensors",)
    assert report.weight_bytes == (model / "model.safetensors").stat().st_size
    assert report.shape.num_layers == 2


def test_an_index_and_half_precision_are_fine(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    places = {name: names[number % 2] for number, name in enumerate(tensors)}
    for file in names:
        part = {n: t.astype(np.float16) for n, t in tensors.items() if places[n] == file}
        save_file(part, model / file)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (model / "model.safetensors").unlink()
    assert [path.name for path in check_folder(model).weights] == names


def test_a_tied_model_may_carry_its_head_or_not(model: Path) -> None:
    edit("config.json", tie_word_embeddings=True)(model)
    check_folder(model)
    weights(lambda t: t.pop("lm_head.weight"))(model)
    check_folder(model)
    weights(lambda t: t.update({"lm_head.weight": np.ones((2, 2), np.float32)}))(model)
    with pytest.raises(SlidepackError, match="MODEL-BROKEN"):
        check_folder(model)


def test_the_hash_follows_content_and_the_stamp_follows_the_files(model: Path) -> None:
    digest, stamp = content_hash(model), quick_stamp(model)
    assert len(digest) == len(stamp) == 64
    (model / "README.md").write_text("not part of the model")
    os.utime(model / "config.json", (1, 1))
    assert content_hash(model) == digest
    assert quick_stamp(model) != stamp
    copy = model.with_name("copy")
    shutil.copytree(model, copy)
    assert content_hash(copy) == digest
    (copy / "tokenizer_config.json").rename(copy / "added_tokens.json")
    assert content_hash(copy) != digest
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    assert content_hash(model) != digest


def test_the_hash_reports_every_byte(model: Path) -> None:
    counts: list[int] = []
    content_hash(model, counts.append)
    assert sum(counts) == sum(path.stat().st_size for path in model.iterdir())


@pytest.mark.parametrize("special", [True, False])
def test_a_special_token_may_lie_behind_the_last_row(model: Path, special: bool) -> None:
    path = model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    rows = check_folder(model).shape.vocab
    fill = [f"<fill {i}>" for i in range(tokenizer.get_vocab_size(), rows)]
    tokenizer.add_tokens(fill)
    tokenizer.add_tokens([AddedToken("<image>", special=special)])
    assert tokenizer.token_to_id("<image>") == rows
    tokenizer.save(str(path))
    if special:
        assert check_folder(model).shape.vocab == rows
        return
    with pytest.raises(SlidepackError, match=f"id {rows} of {rows}"):
        check_folder(model)
