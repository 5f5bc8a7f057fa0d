"""Distributions against transformers' processors; numbers that depend on the seed alone."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from slidepack.engine.chat.contract import Sampling
from slidepack.engine.chat.sampling import choose_tokens, filtered_scores, uniform

VOCAB = 2500
PROMPT = [3, 17, 17, 900, 2499]


@pytest.fixture(scope="module")
def judge() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            vocab_size=VOCAB,
        )
    )


def _logits(sharpness: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(VOCAB, generator=generator)


def _judged(judge: Any, logits: Tensor, sampling: Sampling) -> Tensor:
    """Return transformers' probabilities, its processors in its order."""
    config = GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p or None,
        repetition_penalty=sampling.repetition_penalty,
    )
    ids = torch.tensor([PROMPT])
    processors: Any = judge._get_logits_processor(
        generation_config=config, input_ids_seq_length=len(PROMPT), device="cpu"
    )
    scores: Tensor = processors(ids, logits[None].clone())[0]
    return scores.softmax(dim=-1)


def _seen() -> Tensor:
    seen = torch.zeros(VOCAB, dtype=torch.bool)
    seen[PROMPT] = True
    return seen


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 6.0])
@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.7},
        {"top_k": 40},
        {"top_p": 0.9},
        {"top_p": 0.02},
        {"min_p": 0.1},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8, "temperature": 1.7},
        {"temperature": 1.4, "top_k": 300, "top_p": 0.6, "min_p": 0.05, "repetition_penalty": 1.9},
        {"temperature": 0.5, "top_k": 9999, "top_p": 0.99},
        {"top_k": 1},
    ],
    ids=str,
)
def test_distributions_are_those_of_transformers(
    judge: LlamaForCausalLM, sharpness: float, values: dict[str, Any]
) -> None:
    sampling = Sampling(**{"temperature": 1.0} | values)
    seen = _seen() if sampling.repetition_penalty != 1.0 else None
    for seed in range(3):
        logits = _logits(sharpness, seed)
        ours = filtered_scores(logits, sampling, seen).softmax(dim=-1)
        theirs = _judged(judge, logits, sampling)
        apart = (ours > 0) != (theirs > 0)
        # A border of a sum in another order may take one token more or less.
        assert int(apart.sum()) <= (1 if sampling.top_p < 1.0 else 0)
        bound = 1e-6 + float(torch.where(apart, torch.maximum(ours, theirs), 0.0).sum()) * 2.0
        assert float((ours - theirs).abs().max()) <= bound


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 2.0, -1.0, float("-inf"), 1.0])
    sampling = [Sampling(temperature=1.0, seed=seed) for seed in range(4000)]
    tokens = choose_tokens(logits.expand(4000, 5), sampling, [None] * 4000, [7] * 4000)
    shares = torch.bincount(torch.tensor(tokens), minlength=5) / 4000
    # Five standard deviations of a share.
    assert float((shares - logits.softmax(0)).abs().max()) < 5 * 0.5 / 4000**0.5
    assert shares[3] == 0.0


def test_numbers_are_functions_of_seed_and_index_alone() -> None:
    numbers = {(seed, index): uniform(seed, index) for seed in (0, 1, 2**63, 2**64 - 1)
               for index in range(500)}  # fmt: skip
    assert len(set(numbers.values())) == len(numbers)
    assert all(0.0 <= number < 1.0 for number in numbers.values())
    mean = sum(numbers.values()) / len(numbers)
    assert abs(mean - 0.5) < 5 * (1 / 12) ** 0.5 / len(numbers) ** 0.5
    assert numbers[1, 499] == uniform(1, 499)


def test_all_voices_draw_the_same_numbers_whoever_is_beside_them() -> None:
    logits = torch.stack([_logits(1.0), _logits(1.0) + 3.0, _logits(1.0, 9)])
    sampling = Sampling(temperature=1.2, top_k=50, seed=4)
    three = choose_tokens(logits, [sampling] * 3, [None] * 3, [2] * 3)
    assert three[0] == three[1]
    for row in range(3):
        assert choose_tokens(logits[row : row + 1], [sampling], [None], [2]) == [three[row]]


def test_greedy_takes_the_best_and_the_penalty_counts() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.9], [1.0, 3.0, 2.9], [float("nan"), 1.0, 0.0]])
    seen = torch.tensor([False, True, False])
    sampling = [Sampling(), Sampling(repetition_penalty=1.5), Sampling(temperature=1.0)]
    assert choose_tokens(logits, sampling, [None, seen, None], [0, 0, 0]) == [1, 2, None]
