"""The random model of `slidepack bench sweep` is read back as the shape that was asked for."""

import json
from pathlib import Path

import pytest
import torch

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.bench_sweep import random_model
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.shape import ModelShape, read_shape

SMALL = {
    "num_layers": 2,
    "hidden": 64,
    "ffn": 96,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "vocab": 300,
}


@pytest.mark.parametrize("name", ["llama-1b", "llama-3b", "llama-8b"])
def test_its_config_says_the_whole_shape(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(random_model._config(SHAPES[name])))
    assert read_shape(tmp_path) == SHAPES[name]


def test_it_loads_as_any_model_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = _small()
    monkeypatch.setattr(random_model, "shape_named", lambda _name: shape)
    folder = tmp_path / "model"
    told = random_model.write_random_model("small", folder)
    assert told == {"folder": str(folder), "parameters": shape.total_params}
    decoder = load_decoder(folder, torch.device("cpu"), torch.float32)
    assert decoder.shape == shape
    assert 0.015 < decoder.embedding.std() < 0.025
    text = "Grüße, 世界 🎉"
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size <= shape.vocab
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def _small() -> ModelShape:
    values = {name: getattr(SHAPES["llama-1b"], name) for name in ModelShape.__struct_fields__}
    return ModelShape(**(values | SMALL))


def test_another_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlidepackError, match="RUN-SPEC-INVALID"):
        random_model.write_random_model("qwen2.5-14b", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
