"""The converted model equals what transformers' own GGUF reader makes of the same file."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.folder import check_folder
from slidepack.engine.importer.gguf_config import read_config
from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_model import read_model_shape, write_model
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer

Tensors = dict[str, np.ndarray]
MakeTensors = Callable[..., Tensors]
MakeGguf = Callable[..., Path]

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 64, 4, 2, 96, 40  # of the tiny model in conftest.py


def convert(path: Path, target: Path, **sizes: int) -> int:
    """Convert in this process; return the bytes that were reported."""
    target.mkdir()
    reported: list[int] = []
    model = GgufFile(path)
    shape = read_model_shape(model)
    write_tokenizer(model, target, shape.vocab)
    write_model(model, shape, target, reported.append, **sizes)
    return sum(reported)


@pytest.mark.full
def test_weights_equal_transformers_reader_bit_for_bit(
    smollm2_folder: Path, smollm2_gguf: Path, tmp_path: Path
) -> None:
    # A link in a folder of its own: transformers looks for other files beside the model.
    (tmp_path / smollm2_gguf.name).symlink_to(smollm2_gguf)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=smollm2_gguf.name, dtype=torch.float32
    )
    ours = load_file(smollm2_folder / "model.safetensors")
    state = theirs.state_dict()
    state.pop("lm_head.weight")  # tied
    assert set(state) == set(ours)
    for name, value in state.items():
        assert value.dtype == torch.float32
        expected = value.numpy()
        assert expected.shape == ours[name].shape, name
        assert np.array_equal(expected.view(np.uint32), ours[name].view(np.uint32)), name


def test_config_of_the_demo_model(smollm2_folder: Path) -> None:
    config = json.loads((smollm2_folder / "config.json").read_text())
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "max_position_embeddings": 8192,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert check_folder(smollm2_folder).shape.total_params == 134_515_008


@pytest.mark.full
def test_the_converted_model_speaks(smollm2_folder: Path) -> None:
    """A wrong order of q and k rows passes every shape check and ruins this probability."""
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        chosen = model(ids).logits[0, -1].softmax(-1).max(-1)
    assert tokenizer.decode(chosen.indices) == " Paris"
    assert chosen.values > 0.3


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_every_type_against_the_packages_own_dequantisation(
    tmp_path: Path, kind: str, tied: bool, tiny_gguf: MakeGguf, tiny_tensors: MakeTensors
) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    source = tiny_tensors(seed=3, tied=tied)
    path = tiny_gguf(tmp_path / "m.gguf", tensors=source, kind=quantisation)
    reported = convert(path, tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all(value.dtype == np.float32 for value in written.values())
    assert reported == sum(value.nbytes for value in written.values())
    assert ("lm_head.weight" in written) != tied

    def stored(name: str) -> np.ndarray:
        value = source[name]
        if value.ndim == 1 or kind == "F32":
            return value
        return gguf.dequantize(gguf.quantize(value, quantisation), quantisation)

    assert np.array_equal(written["model.embed_tokens.weight"], stored("token_embd.weight"))
    gate = written["model.layers.1.mlp.gate_proj.weight"]
    assert np.array_equal(gate, stored("blk.1.ffn_gate.weight"))
    key, head_dim = stored("blk.0.attn_k.weight"), HIDDEN // HEADS
    for head in range(KV_HEADS):
        for row in range(head_dim):
            # llama.cpp puts rotary partners (row, row + half) side by side.
            half, place = divmod(row, head_dim // 2)
            theirs = key[head * head_dim + 2 * place + half]
            ours = written["model.layers.0.self_attn.k_proj.weight"][head * head_dim + row]
            assert np.array_equal(ours, theirs)


def test_shards_and_pieces_change_nothing(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    convert(path, tmp_path / "whole")
    convert(path, tmp_path / "parts", shard_bytes=40_000, piece_elements=700)
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    assert names[0] == f"model-00001-of-{len(names):05d}.safetensors" and len(names) > 2
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    for name, value in whole.items():
        part = load_file(tmp_path / "parts" / index["weight_map"][name])
        assert np.array_equal(part[name], value)
    for name in names:
        assert (tmp_path / "parts" / name).stat().st_size < 60_000
    assert check_folder(tmp_path / "parts").shape == check_folder(tmp_path / "whole").shape


def refusal(path: Path) -> tuple[str, str]:
    with pytest.raises(SlidepackError) as caught:
        model = GgufFile(path)
        shape = read_model_shape(model)
        write_tokenizer(model, path.parent, shape.vocab)
        write_model(model, shape, path.parent, lambda _: None)
    report = caught.value.report
    assert report.what and report.why and report.fix
    return report.code, report.why + " " + report.fix


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"architecture": "falcon"}, "MODEL-UNSUPPORTED", "falcon"),
        ({"architecture": "qwen2"}, "MODEL-BROKEN", "blk.0.attn_q.bias"),
        ({"extra": {"llama.rope.scaling.type": "yarn"}}, "MODEL-UNSUPPORTED", "yarn"),
        ({"extra": {"llama.rope.scaling.attn_factor": 4.0}}, "MODEL-UNSUPPORTED", "factor is 4"),
        ({"extra": {"llama.expert_count": 8}}, "MODEL-UNSUPPORTED", "expert_count is 8"),
        ({"extra": {"llama.rope.dimension_count": 8}}, "MODEL-UNSUPPORTED", "dimension_count"),
        ({"extra": {"split.count": 3}}, "MODEL-UNSUPPORTED", "one of 3 parts"),
        ({"extra": {"general.type": "adapter"}}, "MODEL-NOT-A-MODEL", "adapter"),
        ({"extra": {"llama.block_count": 4_000_000_000}}, "MODEL-BROKEN", "4000000000 layers"),
        ({"pre": "poro-chat"}, "MODEL-UNSUPPORTED", "poro-chat"),
        ({"model": "bert"}, "MODEL-UNSUPPORTED", "byte-level"),
        ({"tokens": ["<|end|>", "<tool>", "a", "a"]}, "MODEL-BROKEN", "twice"),
        ({"tokens": ["<|end|>", "<tool>", "a", "b"]}, "MODEL-BROKEN", "merge 0"),
        ({"tokens": [f"t{i}" for i in range(VOCAB + 1)]}, "MODEL-BROKEN", "41 tokens"),
        ({"extra": {"tokenizer.ggml.bos_token_id": 99}}, "MODEL-BROKEN", "99"),
        ({"extra": {"llama.attention.key_length": "16"}}, "MODEL-BROKEN", "key_length"),
    ],
)
def test_refusals_name_what_they_found(
    tmp_path: Path, change: dict[str, object], code: str, word: str, tiny_gguf: MakeGguf
) -> None:
    found, text = refusal(tiny_gguf(tmp_path / "m.gguf", **change))
    assert found == code
    assert word in text


def test_refused_tensors(tmp_path: Path, tiny_gguf: MakeGguf, tiny_tensors: MakeTensors) -> None:
    cases: list[tuple[dict[str, np.ndarray], str, str]] = []
    tensors = tiny_tensors()
    tensors["rope_freqs.weight"] = np.arange(1, 9, dtype=np.float32)
    cases.append((tensors, "MODEL-UNSUPPORTED", "rope_freqs"))
    tensors = tiny_tensors()
    tensors["rope_freqs.weight"] = np.ones(7, np.float32)
    cases.append((tensors, "MODEL-BROKEN", "rope_freqs"))
    tensors = tiny_tensors()
    tensors["blk.0.attn_q.bias"] = np.ones(HIDDEN, np.float32)
    cases.append((tensors, "MODEL-UNSUPPORTED", "attn_q.bias"))
    tensors = tiny_tensors()
    del tensors["blk.1.ffn_up.weight"]
    cases.append((tensors, "MODEL-BROKEN", "blk.1.ffn_up.weight"))
    tensors = tiny_tensors()
    tensors["blk.1.ffn_up.weight"] = np.ones((FFN, HIDDEN - 32), np.float32)
    cases.append((tensors, "MODEL-BROKEN", "(96, 32)"))
    tensors = tiny_tensors()
    tensors["blk.1.ffn_up.weight"][5, 5] = np.nan
    cases.append((tensors, "MODEL-BROKEN", "not finite"))
    tensors = tiny_tensors()
    tensors["blk.1.ffn_up.weight"] = np.ones((FFN, HIDDEN), np.float64)
    cases.append((tensors, "MODEL-UNSUPPORTED", "F64"))
    for number, (tensors, code, word) in enumerate(cases):
        found, text = refusal(tiny_gguf(tmp_path / f"{number}.gguf", tensors=tensors))
        assert (found, word in text) == (code, True), text


def test_a_plain_scaling_that_scales_nothing_is_accepted(
    tmp_path: Path, tiny_gguf: MakeGguf, tiny_tensors: MakeTensors
) -> None:
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}
    model = GgufFile(tiny_gguf(tmp_path / "m.gguf", extra=extra))
    assert read_config(model)["rope_theta"] == 5000.0
    assert "rope_scaling" not in read_config(model)
    ones = tiny_tensors() | {"rope_freqs.weight": np.ones(8, np.float32)}
    plain = GgufFile(tiny_gguf(tmp_path / "ones.gguf", tensors=ones))
    assert "rope_scaling" not in read_config(plain)
    assert read_config(model)["tie_word_embeddings"] is False


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    whole = tiny_gguf(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in sorted({0, 3, 4, 7, 8, 20, 24, 100, 1000, len(whole) - 1, *range(30, 3000, 97)}):
        cut.write_bytes(whole[:size])
        code, text = refusal(cut)
        assert code == ("MODEL-NOT-A-MODEL" if size == 3 else "MODEL-BROKEN"), (size, text)


def test_random_damage_never_escapes_as_another_exception(
    tmp_path: Path, tiny_gguf: MakeGguf
) -> None:
    whole = bytearray(tiny_gguf(tmp_path / "m.gguf").read_bytes())
    random = np.random.default_rng(11)
    for number in range(150):
        damaged = bytearray(whole)
        for place in random.integers(4, 2600, size=4):
            damaged[place] = int(random.integers(256))
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "m.gguf"
        path.write_bytes(damaged)
        try:
            model = GgufFile(path)
            shape = read_model_shape(model)
            write_tokenizer(model, folder, shape.vocab)
            write_model(model, shape, folder, lambda _: None)
        except SlidepackError as error:
            assert error.report.code.startswith("MODEL-")


def test_other_files(tmp_path: Path) -> None:
    for name, data, code in (
        ("a.gguf", b"PK\x03\x04 zip", "MODEL-NOT-A-MODEL"),
        ("pytorch_model.bin", b"\x80\x02 pickle", "MODEL-PICKLE"),
        ("old.gguf", b"GGUF\x01\x00\x00\x00rest", "MODEL-UNSUPPORTED"),
        ("big.gguf", b"GGUF\x00\x00\x00\x03rest", "MODEL-UNSUPPORTED"),
    ):
        (tmp_path / name).write_bytes(data)
        assert refusal(tmp_path / name)[0] == code
    assert refusal(tmp_path / "absent.gguf")[0] == "MODEL-NOT-FOUND"
    assert refusal(tmp_path)[0] == "MODEL-NOT-FOUND"


def test_the_importer_never_loads_torch() -> None:
    code = "import sys, slidepack.engine.importer.__main__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    light = "import sys, slidepack.engine.importer.contract as c; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", light], check=True)
