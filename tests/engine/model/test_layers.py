"""The flat buffer, the ends of the model, and random models."""

from pathlib import Path

import msgspec
import pytest
import torch
from support.families import FAMILY_NAMES, tiny_family
from transformers import Gemma2Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2TextScaledWordEmbedding

from slidepack.engine.model.ends import embed, embedding_scale, head_logits
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import layer_over
from slidepack.engine.model.loading import load_decoder, random_decoder
from slidepack.engine.shape import ModelShape, read_shape

CPU = torch.device("cpu")


def _shape(folder: Path, name: str) -> ModelShape:
    tiny_family(folder, name)
    return read_shape(folder)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_views_cover_the_buffer_once(tmp_path: Path, name: str) -> None:
    shape = _shape(tmp_path, name)
    flat = torch.arange(float(shape.layer_params), dtype=torch.float64)
    layer = layer_over(flat, shape)
    assert torch.equal(torch.cat([view.flatten() for view in layer.named.values()]), flat)
    q, k, v = (layer.named[f"self_attn.{letter}_proj.weight"] for letter in "qkv")
    assert torch.equal(layer.qkv, torch.cat((q, k, v)))
    gate, up = (layer.named[f"mlp.{part}_proj.weight"] for part in ("gate", "up"))
    assert torch.equal(layer.gate_up, torch.cat((gate, up)))
    biases = [view for path, view in layer.named.items() if path.endswith("bias")]
    assert (layer.qkv_bias is None) == (not biases)
    if layer.qkv_bias is not None:
        assert torch.equal(layer.qkv_bias, torch.cat(biases))
    views = [getattr(layer, field) for field in layer.__slots__ if field != "named"]
    assert all(
        view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        for view in views
        if view is not None
    )


def test_a_buffer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    shape = _shape(tmp_path, "qwen2")
    for flat in (
        torch.zeros(shape.layer_params - 1),
        torch.zeros(1, shape.layer_params),
        torch.zeros(2 * shape.layer_params)[::2],
    ):
        with pytest.raises(ValueError, match=str(shape.layer_params)):
            layer_over(flat, shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [2304, 3584, 1152])
def test_the_scaled_embedding_equals_transformers_to_the_bit(
    tmp_path: Path, hidden: int, dtype: torch.dtype
) -> None:
    config = Gemma2Config(vocab_size=19)
    judge = Gemma2TextScaledWordEmbedding(19, hidden, 0, embed_scale=hidden**0.5).to(dtype)
    shape = msgspec.structs.replace(
        _shape(tmp_path, "gemma2"), hidden=hidden, embed_scale=hidden**0.5
    )
    ids = torch.randint(0, config.vocab_size, (40,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(embed(judge.weight, ids, shape), judge(ids))
    if dtype == torch.bfloat16 and hidden == 3584:
        assert embedding_scale(shape, dtype) == 59.75


def test_logits_stay_below_the_soft_cap(tmp_path: Path) -> None:
    shape = _shape(tmp_path, "gemma2")
    hidden = torch.full((1, shape.hidden), 100.0)
    head = torch.randn(shape.vocab, shape.hidden, generator=torch.Generator().manual_seed(0))
    assert shape.final_soft_cap == 3.0
    assert float(head_logits(hidden, head, shape).abs().max()) <= 3.0
    plain = msgspec.structs.replace(shape, final_soft_cap=None)
    assert float(head_logits(hidden, head, plain).abs().max()) > 300.0


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_attention_of_each_layer(tmp_path: Path, name: str) -> None:
    shape = _shape(tmp_path, name)
    attention = layer_attention(shape, CPU, torch.float32, deterministic=True)
    assert len(attention.choices) == shape.num_layers
    for layer in range(shape.num_layers):
        choice = attention.at(layer)
        assert choice.window == shape.window_of(layer)
        assert (choice.soft_cap, choice.scale) == (shape.attention_soft_cap, shape.attention_scale)
        assert choice.deterministic


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_norms_of_a_random_model_scale_by_one(tmp_path: Path, name: str) -> None:
    shape = _shape(tmp_path, name)
    decoder = random_decoder(shape, CPU, torch.float32, seed=1)
    unit = 0.0 if shape.norm_plus_one else 1.0
    norms = [view for p, view in decoder.layers[1].named.items() if "norm" in p]
    for norm in (*norms, decoder.final_norm):
        assert bool((norm == unit).all())
    assert decoder.layers[0].qkv.std() == pytest.approx(0.02, rel=0.1)
    assert load_decoder(tmp_path, CPU, torch.float32).shape == decoder.shape
