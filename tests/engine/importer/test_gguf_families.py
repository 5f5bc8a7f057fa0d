"""Every family's GGUF file becomes the model that was written into it.

Files come from our own exporter and from the `gguf` package by llama.cpp's documented conventions;
`transformers` is the judge of what the original and the imported folder compute, and its own GGUF
reader, where it knows the family, of the weights.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.exports import EXPORTABLE, export, save_exportable
from support.gguf_files import write_as_gguf
from transformers import AutoConfig, AutoModelForCausalLM

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.folder import check_folder
from slidepack.engine.importer.gguf_config import read_config
from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_model import read_model_shape, write_model
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer
from slidepack.engine.shape import read_shape

IDS = torch.tensor([[5, 80, 211, 7, 7, 30, 12, 45, 99, 3, 260, 261, 17, 90, 0, 4, 2, 8]])
WHOLE = tuple(name for name in EXPORTABLE if name != "mistral-window")
PLUS_ONE = ("gemma2", "gemma3", "gemma3-linear")


def convert(path: Path, target: Path, *, tokenizer: bool = False, **sizes: int) -> Path:
    target.mkdir()
    model = GgufFile(path)
    shape = read_model_shape(model)
    if tokenizer:
        write_tokenizer(model, target, shape.vocab)
    write_model(model, shape, target, lambda _count: None, **sizes)
    return target


def logits(folder: Path, **options: Any) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options
    )
    with torch.no_grad():
        found: torch.Tensor = model.eval()(IDS).logits
    return found


def as_stored(name: str, weight: torch.Tensor, family: str) -> torch.Tensor:
    """Return a weight after its way through the file, where a norm has 1 added in fp32."""
    value = weight.float()
    return (value + 1.0) - 1.0 if family in PLUS_ONE and "norm" in name else value


@pytest.mark.full
@pytest.mark.parametrize("name", EXPORTABLE)
def test_our_export_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    base = save_exportable(tmp_path / "result" / "model", name, dtype=torch.float16)
    export(tmp_path / "result", base, tmp_path / "out", "gguf", verify=False)
    again = convert(tmp_path / "out" / "model-f16.gguf", tmp_path / "again", tokenizer=True)
    before = load_file(base / "model.safetensors")
    found = load_file(again / "model.safetensors")
    assert set(found) == set(read_shape(base).tensor_shapes())
    for key, value in found.items():
        assert torch.equal(value, as_stored(key, before[key], name)), key
    report = check_folder(again)
    shape = read_shape(base)
    allowed = {"architecture": "LlamaForCausalLM"} if "mistral" in name else {}
    if name == "mistral-window":
        # As many tokens as the window is long: up to there, it makes no difference.
        shape = msgspec.structs.replace(shape, layer_windows=(), max_positions=24)
    assert report.shape == msgspec.structs.replace(shape, **allowed)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", WHOLE)
def test_the_packages_file_computes_what_the_original_does(
    tmp_path: Path, name: str, kind: str
) -> None:
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    base = save_exportable(tmp_path / "base", name, dtype=dtype)
    path = write_as_gguf(base, tmp_path / "model.gguf", kind)
    again = convert(path, tmp_path / "again", piece_elements=700)
    before = load_file(base / "model.safetensors")
    for key, value in load_file(again / "model.safetensors").items():
        assert torch.equal(value, as_stored(key, before[key], name)), key
    theirs = logits(base)
    assert float(theirs.std()) > 0.1
    # Scores of 10 and more leave an ulp of 1e-6; what a norm lost behind its 1 is below that.
    torch.testing.assert_close(logits(again), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in WHOLE if "mistral" not in name])
def test_transformers_reads_the_same_weights_from_the_file(tmp_path: Path, name: str) -> None:
    base = save_exportable(tmp_path / "base", name)
    (tmp_path / "file").mkdir()
    path = write_as_gguf(base, tmp_path / "file" / "model.gguf", "Q8_0")
    again = load_file(convert(path, tmp_path / "again") / "model.safetensors")
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        config=AutoConfig.from_pretrained(base),
    )
    state = theirs.state_dict()
    for key, value in again.items():
        assert torch.equal(value, state[key]), key


def test_llama_31_is_rebuilt_exactly(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama3")
    config = read_config(GgufFile(write_as_gguf(base, tmp_path / "model.gguf")))
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    assert config["rope_theta"] == 5000.0


def test_windows_caps_and_ropes_of_gemma(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "two", "gemma2")
    two = read_config(GgufFile(write_as_gguf(base, tmp_path / "two.gguf")))
    assert two["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
    assert (two["attn_logit_softcapping"], two["final_logit_softcapping"]) == (2.0, 3.0)
    assert (two["query_pre_attn_scalar"], two["sliding_window"]) == (24, 7)
    assert two["hidden_activation"] == "gelu_pytorch_tanh"
    base = save_exportable(tmp_path / "three", "gemma3-linear")
    three = read_config(GgufFile(write_as_gguf(base, tmp_path / "three.gguf")))
    assert three["model_type"] == "gemma3_text"
    assert three["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert (three["rope_theta"], three["rope_local_base_freq"]) == (9000.0, 10000.0)
    assert three["attn_logit_softcapping"] is None and three["final_logit_softcapping"] is None


def test_the_largest_gemmas_scale_by_width(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "gemma2")
    config = json.loads((base / "config.json").read_text())
    config["num_hidden_layers"] = 46
    (base / "config.json").write_text(json.dumps(config))
    path = write_as_gguf(base, tmp_path / "model.gguf")
    model = GgufFile(path)
    # Only the header is looked at; the tensors of the other layers are not there.
    model.tensors |= {f"more.{index}": model.tensors["token_embd.weight"] for index in range(46)}
    assert read_config(model)["query_pre_attn_scalar"] == 64 // 4


def test_what_ollamas_own_converter_wrote_of_gemma_3(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "gemma3")
    names = {"rope.global.freq_base": 500000.0, "rope.local.freq_base": 20000.0}
    extra = {f"gemma3.{name}": value for name, value in names.items()}
    capped = extra | {"gemma3.final_logit_softcapping": 30.0}
    config = read_config(GgufFile(write_as_gguf(base, tmp_path / "a.gguf", extra=capped)))
    assert config["rope_local_base_freq"] == 20000.0
    # Its first version capped the logits of every model, whether the model does or not.
    assert config["final_logit_softcapping"] is None
    kept = {"gemma3.final_logit_softcapping": 30.0}
    config = read_config(GgufFile(write_as_gguf(base, tmp_path / "b.gguf", extra=kept)))
    assert config["final_logit_softcapping"] == 30.0
    pattern = [True, False, True, True, False, True, True]
    layers = {"gemma3.attention.sliding_window_pattern": pattern}
    config = read_config(GgufFile(write_as_gguf(base, tmp_path / "c.gguf", extra=layers)))
    assert [kind == "sliding_attention" for kind in config["layer_types"]] == pattern


@pytest.mark.parametrize(
    ("family", "extra", "code", "word"),
    [
        ("qwen2", {"qwen2.rope.scaling.type": "yarn"}, "MODEL-UNSUPPORTED", "yarn"),
        ("qwen3", {"qwen3.expert_count": 8}, "MODEL-UNSUPPORTED", "expert_count is 8"),
        ("qwen3", {"qwen3.attention.causal": False}, "MODEL-UNSUPPORTED", "causal is false"),
        ("gemma3", {"gemma3.attn_logit_softcapping": 9.0}, "MODEL-UNSUPPORTED", "softcapping is 9"),
        (
            "gemma3",
            {"gemma3.attention.sliding_window_pattern": [True]},
            "MODEL-BROKEN",
            "1 values for 7 layers",
        ),
        ("gemma2", {"gemma2.attention.scale": 0.5}, "MODEL-UNSUPPORTED", "scale is 0.5"),
        ("llama3", {"llama.rope.scaling.factor": 2.0}, "MODEL-UNSUPPORTED", "twice"),
        ("llama", {"llama.rope.scaling.factor": -2.0}, "MODEL-BROKEN", "factor is -2"),
        ("llama", {"llama.rope.freq_base_swa": 5.0}, "", ""),
    ],
)
def test_variants(tmp_path: Path, family: str, extra: dict[str, Any], code: str, word: str) -> None:
    base = save_exportable(tmp_path / "base", family)
    path = write_as_gguf(base, tmp_path / "model.gguf", extra=extra)
    if not code:
        assert read_model_shape(GgufFile(path)).tensor_shapes()
        return
    with pytest.raises(SlidepackError) as caught:
        read_model_shape(GgufFile(path))
    assert caught.value.report.code == code
    assert word in caught.value.report.why


def test_frequencies_that_follow_no_rule_are_refused(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama3")
    path = write_as_gguf(base, tmp_path / "model.gguf")
    with path.open("r+b") as file:
        place = next(t for t in gguf.GGUFReader(path).tensors if t.name == "rope_freqs.weight")
        file.seek(place.data_offset)
        file.write(np.array([1.5], dtype="<f4").tobytes())
    with pytest.raises(SlidepackError, match="follows no scaling") as caught:
        read_model_shape(GgufFile(path))
    assert caught.value.report.code == "MODEL-UNSUPPORTED"


def test_a_qwen_with_stretched_frequencies_is_refused(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama3")
    config = json.loads((base / "config.json").read_text())
    config["architectures"] = ["Qwen3ForCausalLM"]
    (base / "config.json").write_text(json.dumps(config))
    path = write_as_gguf(base, tmp_path / "model.gguf")
    with pytest.raises(SlidepackError, match="only Llama-type"):
        read_model_shape(GgufFile(path))
