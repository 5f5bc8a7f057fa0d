"""Whole models written as Hugging Face folders: `transformers` and the loader read them back."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.families import FAMILY_NAMES, family_config, tiny_family
from support.tiny import save_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.folder import decoder_tensors, write_model_folder
from slidepack.engine.importer.folder import check_folder
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.shape import read_shape

CPU = torch.device("cpu")
IDS = torch.tensor([[5, 80, 211, 7, 7, 300, 12, 45, 99, 3]])


def _base(folder: Path, name: str, dtype: torch.dtype, *, tied: bool = False) -> Path:
    tiny_family(folder, name, dtype=dtype, tied=tied)
    save_tokenizer(folder)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_model_comes_back_bit_for_bit(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    base = _base(tmp_path / "base", name, dtype, tied=name in ("llama", "gemma3"))
    decoder = load_decoder(base, CPU, dtype)
    target = tmp_path / "written"
    write_model_folder(base, decoder_tensors(decoder), dtype, target)
    again = load_decoder(target, CPU, dtype)
    assert again.shape == decoder.shape
    pairs = zip(decoder_tensors(decoder), decoder_tensors(again), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
    assert check_folder(target).shape == decoder.shape

    before = AutoModelForCausalLM.from_pretrained(base, dtype="auto").eval()
    after = AutoModelForCausalLM.from_pretrained(target, dtype="auto").eval()
    assert after.dtype == dtype
    with torch.no_grad():
        assert torch.equal(before(IDS).logits, after(IDS).logits)
    assert AutoTokenizer.from_pretrained(target).chat_template
    assert (target / "generation_config.json").read_bytes() == (
        base / "generation_config.json"
    ).read_bytes()


def test_shards_are_bounded_and_named_by_an_index(tmp_path: Path) -> None:
    base = _base(tmp_path / "base", "qwen2", torch.float32)
    decoder = load_decoder(base, CPU, torch.float32)
    target = tmp_path / "written"
    backwards = reversed(list(decoder_tensors(decoder)))
    write_model_folder(base, backwards, torch.bfloat16, target, max_shard_bytes=20_000)
    shards = sorted(target.glob("*.safetensors"))
    assert len(shards) > 3
    assert shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * decoder.shape.total_params
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            names = list(file.keys())
            size = sum(2 * file.get_tensor(name).numel() for name in names)
        assert size <= 20_000 or len(names) == 1
        assert all(index["weight_map"][name] == shard.name for name in names)
    model = AutoModelForCausalLM.from_pretrained(target, dtype="auto").eval()
    assert model.dtype == torch.bfloat16
    rounded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, rounded(IDS).logits)


def test_a_tied_head_is_written_once(tmp_path: Path) -> None:
    base = _base(tmp_path / "base", "gemma2", torch.float32, tied=True)
    decoder = load_decoder(base, CPU, torch.float32)
    target = tmp_path / "written"
    write_model_folder(base, decoder_tensors(decoder), torch.float32, target)
    with safe_open(target / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(decoder.shape.tensor_shapes())
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - not a mapping


@pytest.mark.parametrize(
    ("field", "expected"),
    [("dtype", {"dtype"}), ("torch_dtype", {"torch_dtype"}), (None, {"torch_dtype"})],
)
def test_the_config_says_the_new_dtype(
    tmp_path: Path, field: str | None, expected: set[str]
) -> None:
    base = _base(tmp_path / "base", "llama", torch.float32)
    config = json.loads((base / "config.json").read_text())
    config = {key: value for key, value in config.items() if key != "dtype"}
    if field:
        config[field] = "float32"
    (base / "config.json").write_text(json.dumps(config))
    tensors = decoder_tensors(load_decoder(base, CPU, torch.float32))
    write_model_folder(base, tensors, torch.bfloat16, tmp_path / "written")
    written = json.loads((tmp_path / "written" / "config.json").read_text())
    assert {key for key in written if key.endswith("dtype")} == expected
    assert written == config | dict.fromkeys(expected, "bfloat16")


def test_no_more_than_two_tensors_live_at_once(tmp_path: Path) -> None:
    base = _base(tmp_path / "base", "qwen3", torch.float32)
    most = 0

    def made() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal most
        live: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        for name, size in read_shape(base).tensor_shapes().items():
            tensor = torch.ones(size)
            live.add(tensor)
            most = max(most, len(live))
            yield name, tensor

    write_model_folder(base, made(), torch.float32, tmp_path / "written", max_shard_bytes=20_000)
    assert most <= 2


@pytest.mark.parametrize("fault", ["missing", "twice", "unknown", "shape", "stopped", "dtype"])
def test_a_fault_leaves_nothing_behind(tmp_path: Path, fault: str) -> None:
    base = _base(tmp_path / "base", "llama", torch.float32)
    decoder = load_decoder(base, CPU, torch.float32)
    dtype = torch.int8 if fault == "dtype" else torch.float32

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for index, (name, tensor) in enumerate(decoder_tensors(decoder)):
            if fault == "missing" and index == 4:
                continue
            if fault == "stopped" and index == 4:
                raise InterruptedError
            yield name, tensor.T if fault == "shape" else tensor
            if fault == "twice" and index == 4:
                yield name, tensor
        if fault == "unknown":
            yield "lm_head.bias", decoder.final_norm

    with pytest.raises(InterruptedError if fault == "stopped" else ValueError):
        write_model_folder(base, tensors(), dtype, tmp_path / "written", max_shard_bytes=20_000)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    base = _base(tmp_path / "base", "llama", torch.float32)
    tensors = decoder_tensors(load_decoder(base, CPU, torch.float32))
    with pytest.raises(SlidepackError) as caught:
        write_model_folder(base, tensors, torch.float32, base)
    assert caught.value.report.code == "DISK-UNWRITABLE"
    assert read_shape(base).vocab == family_config("llama").vocab_size
