"""Full fine-tuning in bf16 on a real card: what slides changes no bit, nor does the engine."""

import functools
from dataclasses import replace

import pytest
import torch
from support.full_runs import Outcome, Recipe, assert_same, run
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from slidepack.engine.shape import ModelShape, RopeShape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
GPU = torch.device("cuda:0")
STEPS = 10
RESIDENT = Recipe(split=True, cpu_share=0.0, weights="resident", grad_slots=3, device=GPU, lr=1e-3)
"""Rows are shorter than a block of keys (see `full_runs.GROUPS`), so flash attention's backward
pass, which else adds up blocks in any order, gives the same bits every time."""
SLIDING = replace(RESIDENT, weights="slide", rows="host", slots=2, grad_slots=2, cpu_share=0.5)


@functools.cache
def _model(tied: bool) -> tuple[PreTrainedModel, ModelShape]:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=2048,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        tie_word_embeddings=tied,
        initializer_range=0.05,
    )
    shape = ModelShape(
        architecture="LlamaForCausalLM",
        num_layers=6,
        hidden=256,
        ffn=688,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        vocab=2048,
        max_positions=512,
        rms_eps=config.rms_norm_eps,
        rope=RopeShape(kind="default", theta=10000.0),
        tied_head=tied,
    )
    return AutoModelForCausalLM.from_config(config), shape


def _run(recipe: Recipe, *, tied: bool = True, turns: bool = False) -> Outcome:
    model, shape = _model(tied)
    outcome = run(model, shape, recipe, STEPS, turns=turns)
    torch.cuda.synchronize()
    assert all(result.applied for result in outcome.results)
    assert all(0.0 < norm < 1e3 for norm in outcome.norms)
    return outcome


@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_sliding_equals_resident(tied: bool, micro: int, clip: float) -> None:
    numbers = replace(RESIDENT, micro=4 if micro == 4 else 1, clip=clip)
    sliding = replace(SLIDING, micro=numbers.micro, clip=clip)
    assert_same(_run(sliding, tied=tied), _run(numbers, tied=tied))


@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_the_engines_give_the_same_bits(moments: str, clip: float) -> None:
    base = replace(SLIDING, moments="bf16" if moments == "bf16" else "fp32", clip=clip)
    on_card = _run(replace(base, cpu_share=0.0))
    for cpu_share in (1.0, 0.5):
        assert_same(_run(replace(base, cpu_share=cpu_share)), on_card)


def test_resident_weights_that_the_cpu_updates_equal_those_that_the_card_does() -> None:
    on_card = _run(RESIDENT)
    for cpu_share in (1.0, 0.5):
        assert_same(_run(replace(RESIDENT, cpu_share=cpu_share)), on_card)


@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
@pytest.mark.parametrize("weights", [RESIDENT, SLIDING], ids=["resident", "slide"])
def test_engines_that_take_what_they_can_change_no_bit(weights: Recipe, clip: float) -> None:
    free = replace(weights, cpu_share=None, clip=clip)
    assert_same(_run(free), _run(replace(RESIDENT, clip=clip)))


@pytest.mark.parametrize("weights", [RESIDENT, SLIDING], ids=["resident", "slide"])
def test_moving_layers_between_the_engines_changes_no_bit(weights: Recipe) -> None:
    moving = _run(weights, turns=True)
    assert_same(moving, _run(RESIDENT))


def test_8_bit_moments_on_the_card() -> None:
    # The CPU's form of them may round a scale's quotient in another way: the card only.
    numbers = replace(RESIDENT, moments="int8", micro=4)
    sliding = replace(SLIDING, moments="int8", micro=4, cpu_share=0.0, slots=3)
    assert_same(_run(sliding), _run(numbers))


@pytest.mark.parametrize("slots", [2, 4])
def test_a_run_is_the_same_every_time(slots: int) -> None:
    recipe = replace(SLIDING, slots=slots, micro=4, clip=1.0)
    assert_same(_run(recipe), _run(recipe))
