"""GGUF files: the importer, the `gguf` package and `transformers` read back what was trained."""

import json
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.torch import load_file, save_file
from support.exports import EXPORTABLE, VOCAB, export, random_adapter, save_exportable
from transformers import AutoModelForCausalLM

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.export.gguf_family import gguf_family
from slidepack.engine.export.gguf_model import gguf_bytes
from slidepack.engine.export.gguf_rows import permuted, unpermuted
from slidepack.engine.families.gguf_rope import rope_factors
from slidepack.engine.families.gguf_table import tensor_name
from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_model import read_model_shape, write_model
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer
from slidepack.engine.model.rope import RopeFrequencies
from slidepack.engine.shape import ModelShape, read_shape, shape_from_config

CPU = torch.device("cpu")


def _whole(tmp_path: Path, name: str, dtype: torch.dtype = torch.float16) -> Path:
    """Make a result of a model that was trained as a whole; fp16 holds what F16 does."""
    save_exportable(tmp_path / "result" / "model", name, dtype=dtype)
    return tmp_path / "result"


def _gguf(result: Path, target: Path, base: Path | None = None, **changes: Any) -> Path:
    done = export(result, base or target, target, "gguf", **changes)
    (name,) = done.files
    return target / name


def _imported(path: Path, target: Path) -> dict[str, torch.Tensor]:
    target.mkdir()
    model = GgufFile(path)
    shape = read_model_shape(model)
    write_tokenizer(model, target, shape.vocab)
    write_model(model, shape, target, lambda _count: None)
    return load_file(target / "model.safetensors")


@pytest.mark.parametrize("name", ["llama", "llama-tied", "mistral"])
def test_the_importer_finds_the_same_weights_bit_for_bit(tmp_path: Path, name: str) -> None:
    result = _whole(tmp_path, name)
    path = _gguf(result, tmp_path / "out")
    found = _imported(path, tmp_path / "again")
    before = load_file(result / "model" / "model.safetensors")
    assert set(found) == set(before)
    for key, value in before.items():
        assert torch.equal(found[key], value.float()), key
    again = read_shape(tmp_path / "again")
    shape = read_shape(result / "model")
    assert again == _named_as(shape, again)


def _named_as(shape: ModelShape, other: ModelShape) -> ModelShape:
    """Return a shape under the name that GGUF files have for Mistral."""
    return msgspec.structs.replace(shape, architecture=other.architecture)


@pytest.mark.parametrize("name", EXPORTABLE)
def test_every_family_is_verified_and_read_by_transformers(tmp_path: Path, name: str) -> None:
    base = save_exportable(tmp_path / "base", name)
    result = random_adapter(base, tmp_path / "result")
    done = export(result, base, tmp_path / "out", "gguf", name=name)
    found = done.verification
    assert found is not None and found.holds
    assert found.loader == "gguf and transformers"
    assert found.positions > 50
    assert found.learned == pytest.approx(1.0, abs=0.05)
    assert bool(done.notes) == (name == "mistral-window")


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen2"])
def test_transformers_needs_nothing_but_the_file(tmp_path: Path, name: str) -> None:
    """Of these families it reads every size from the header; of others it takes some for given."""
    result = _whole(tmp_path, name)
    path = _gguf(result, tmp_path / "out")
    ids = torch.tensor([[5, 80, 211, 7, 7]])
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    ours: Any = AutoModelForCausalLM.from_pretrained(result / "model", dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, rtol=0, atol=1e-4)


def test_q8_0_is_what_the_packages_quantiser_makes(tmp_path: Path) -> None:
    result = _whole(tmp_path, "llama")
    reader = gguf.GGUFReader(_gguf(result, tmp_path / "out", quant="q8_0"))
    before = load_file(result / "model" / "model.safetensors")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert {kinds[name] for name in kinds if "norm" in name} == {"F32"}
    assert {kinds[name] for name in kinds if "norm" not in name} == {"Q8_0"}
    (down,) = [t for t in reader.tensors if t.name == "blk.1.ffn_down.weight"]
    weight = before["model.layers.1.mlp.down_proj.weight"].float().numpy()
    expected = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(np.asarray(down.data).reshape(expected.shape), expected)
    read = gguf.dequantize(down.data, down.tensor_type)
    # Half a step of each block's 127th, and what its fp16 scale is rounded by.
    largest = np.abs(weight.reshape(-1, 32)).max(axis=1, keepdims=True)
    error = np.abs(read.reshape(-1, 32) - weight.reshape(-1, 32))
    assert (error <= largest / 127 * 0.5 + largest * 2**-11).all()


def test_rows_that_do_not_divide_are_kept_as_f16(tmp_path: Path) -> None:
    model = save_exportable(tmp_path / "base", "qwen3")
    reader = gguf.GGUFReader(
        _gguf(random_adapter(model, tmp_path / "r"), tmp_path / "out", model, quant="q8_0")
    )
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    # 96 columns divide into blocks of 32; none of this model's rows does not.
    assert kinds["blk.0.attn_output.weight"] == "Q8_0"
    odd = shape_from_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 60,
            "intermediate_size": 75,
            "num_hidden_layers": 1,
            "num_attention_heads": 6,
            "vocab_size": 10,
        },
        tmp_path,
    )
    assert gguf_bytes(odd, "q8_0") == gguf_bytes(odd, "f16")


HEADERS: dict[str, dict[str, Any]] = {
    "llama": {
        "general.architecture": "llama",
        "general.type": "model",
        "general.file_type": 1,
        "llama.vocab_size": VOCAB,
        "llama.context_length": 256,
        "llama.embedding_length": 64,
        "llama.block_count": 3,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 16,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(1e-6),
        "llama.rope.dimension_count": 16,
        "llama.rope.freq_base": 3000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    },
    "mistral-window": {"general.architecture": "llama", "llama.context_length": 24},
    "gemma2": {
        "gemma2.attention.sliding_window": 7,
        "gemma2.attention.sliding_window_pattern": 2,
        "gemma2.attn_logit_softcapping": 2.0,
        "gemma2.final_logit_softcapping": 3.0,
    },
    "gemma3-linear": {
        "gemma3.attention.sliding_window": 7,
        "gemma3.rope.freq_base": 9000.0,
        "gemma3.rope.freq_base_swa": 10000.0,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    },
}


@pytest.mark.parametrize("name", HEADERS)
def test_the_header_says_what_llama_cpp_needs(tmp_path: Path, name: str) -> None:
    result = _whole(tmp_path, name)
    reader = gguf.GGUFReader(_gguf(result, tmp_path / "out", name="A name", verify=False))
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.name"] == "A name"
    assert {key: fields[key] for key in HEADERS[name]} == HEADERS[name]
    assert "<|start|>" in fields["tokenizer.chat_template"]


@pytest.mark.parametrize("name", EXPORTABLE)
def test_names_are_those_of_the_gguf_package(tmp_path: Path, name: str) -> None:
    shape = read_shape(save_exportable(tmp_path / "base", name))
    family = gguf_family(shape)
    (arch,) = [arch for arch in MODEL_ARCH if MODEL_ARCH_NAMES[arch] == family.name]
    names = get_tensor_name_map(arch, shape.num_layers)
    for key in shape.tensor_shapes():
        assert tensor_name(key, shape) == names.get_name(key, (".weight", ".bias"))


def test_llama_31_frequencies_are_divided_as_the_engine_does(tmp_path: Path) -> None:
    shape = read_shape(save_exportable(tmp_path / "base", "llama3"))
    base = 1.0 / shape.rope.theta ** (np.arange(0, shape.head_dim, 2) / shape.head_dim)
    factors = rope_factors(shape.rope, shape.head_dim)
    engine = RopeFrequencies.of(shape, CPU).full.numpy()
    np.testing.assert_allclose(base / factors, engine, rtol=1e-6)
    assert factors.max() > 1.5 and factors.min() == 1.0


def test_the_order_of_rows_comes_back() -> None:
    rows = torch.arange(2 * 8 * 3.0).view(16, 3)
    assert torch.equal(unpermuted(permuted(rows, 8), 8), rows)
    # A head's first row and its partner, four below, become neighbours.
    assert torch.equal(permuted(rows, 8)[:2], rows[[0, 4]])


def test_a_weight_beyond_f16_is_refused(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama", dtype=torch.bfloat16)
    weights = load_file(base / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = 70000.0
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    result = random_adapter(base, tmp_path / "result", LoraMethod(rank=1, alpha=1))
    with pytest.raises(SlidepackError) as caught:
        export(result, base, tmp_path / "out", "gguf", verify=False)
    report = caught.value.report
    assert report.code == "MODEL-UNSUPPORTED" and "mlp.up_proj" in report.why
    assert not (tmp_path / "out").exists()
    assert export(result, base, tmp_path / "q8", "gguf", quant="q8_0", verify=False).files


VARIANTS: dict[str, dict[str, Any]] = {
    "gemma2 untied": {"tie_word_embeddings": False},
    "gemma2 scale": {"query_pre_attn_scalar": 23},
    "gemma2 no cap": {"final_logit_softcapping": None},
    "gemma2 windows": {"layer_types": ["full_attention"] * 3},
    "gemma3 local rope": {"rope_local_base_freq": 500.0},
    "qwen3 stretched": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_llama_cpp_computes_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    base = save_exportable(tmp_path / "base", name.split()[0])
    config = json.loads((base / "config.json").read_text())
    shape_from_config(config, base)
    gguf_family(shape_from_config(config, base))
    if "rope" in name or "stretched" in name:
        # transformers 5 writes there what the older fields of the variant say.
        config.pop("rope_parameters")
    changed = shape_from_config(config | VARIANTS[name], base)
    with pytest.raises(SlidepackError) as caught:
        gguf_family(changed)
    report = caught.value.report
    assert report.code == "MODEL-UNSUPPORTED"
    assert "llama.cpp" in report.why and "Qwen3ForCausalLM" in report.fix
