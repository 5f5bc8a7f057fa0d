"""The next token from logits: filters in the order of transformers, numbers from the seed alone.

Shapes: `V` vocabulary, `B` answers.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from slidepack.engine.chat.contract import Sampling
from slidepack.kernels.lora.philox import philox

__all__ = ["choose_tokens", "filtered_scores", "uniform"]

_ZERO: Final = np.zeros(1, dtype=np.uint64)
_CHAT: Final = 0x63686174
"""Sets these draws apart from all others of the same seed."""
_FIRST_SORTED: Final = 1024
"""Most likely tokens among which a nucleus is looked for before all are sorted."""


def uniform(seed: int, index: int) -> float:
    """Return number `index` of a seed, in [0, 1): a function of nothing else."""
    columns = np.array([index], dtype=np.uint64)
    words = philox(seed, columns, _ZERO, _ZERO, _CHAT)[0, 0]
    return ((int(words[0]) >> 5) * (1 << 26) + (int(words[1]) >> 6)) / float(1 << 53)


def choose_tokens(
    logits_BV: Tensor,
    samplings: Sequence[Sampling],
    seen: Sequence[Tensor | None],
    indices: Sequence[int],
) -> list[int | None]:
    """Return each answer's next token; None where its logits are no numbers.

    Args:
        logits_BV: of the answers, any float dtype.
        samplings: of each.
        seen: [V] bool, the tokens that a repetition penalty is on; None where there is none.
        indices: of each answer's token, from 0, for its random number.
    """
    best, chosen = logits_BV.max(dim=-1)
    finite = torch.isfinite(best).tolist()
    tokens: list[int | None] = [
        token if good else None for token, good in zip(chosen.tolist(), finite, strict=True)
    ]
    for row, sampling in enumerate(samplings):
        plain = sampling.temperature == 0.0 and seen[row] is None
        if tokens[row] is None or plain:
            continue
        scores = filtered_scores(logits_BV[row], sampling, seen[row])
        if sampling.temperature == 0.0:
            tokens[row] = int(scores.argmax())
        else:
            tokens[row] = _draw(scores, uniform(sampling.seed, indices[row]))
    return tokens


def filtered_scores(logits_V: Tensor, sampling: Sampling, seen_V: Tensor | None) -> Tensor:
    """Return what is left of the logits, [V] fp32, with -inf for tokens that are out.

    Equivalent to transformers' processors: repetition penalty, temperature, top-k, top-p, min-p.

    Args:
        logits_V: any float dtype.
        sampling: the filters; a temperature of 0 leaves all but the penalty out.
        seen_V: bool, the tokens that the penalty is on, or None.
    """
    scores = logits_V.float()
    if seen_V is not None:
        factor = sampling.repetition_penalty
        punished = torch.where(scores < 0, scores * factor, scores / factor)
        scores = torch.where(seen_V, punished, scores)
    if sampling.temperature == 0.0:
        return scores
    scores = scores / sampling.temperature
    if 0 < sampling.top_k < scores.numel():
        least = scores.topk(sampling.top_k).values[-1]
        scores = scores.masked_fill(scores < least, float("-inf"))
    if sampling.top_p < 1.0:
        scores = _nucleus(scores, sampling.top_p)
    if sampling.min_p > 0.0:
        probabilities = scores.softmax(dim=-1)
        least = sampling.min_p * probabilities.max()
        scores = scores.masked_fill(probabilities < least, float("-inf"))
    return scores


def _nucleus(scores_V: Tensor, top_p: float) -> Tensor:
    """Keep the fewest tokens, the most likely first, that hold `top_p` of the probability."""
    total = torch.logsumexp(scores_V, dim=-1)
    size = min(_FIRST_SORTED, scores_V.numel())
    while True:
        values, places = scores_V.topk(size)
        mass = (values - total).exp().cumsum(dim=-1)
        if size == scores_V.numel() or float(mass[-1]) >= top_p:
            break
        size = scores_V.numel()
    # A token stays where those before it do not hold enough yet; the first always does.
    before = torch.cat([mass.new_zeros(1), mass[:-1]])
    kept = places[before < top_p]
    return torch.full_like(scores_V, float("-inf")).index_copy_(0, kept, scores_V[kept])


def _draw(scores_V: Tensor, number: float) -> int:
    """Return the token at a point of the distribution, tokens in the order of their ids.

    In that order a rounding moves borders by as little as itself; sorted by likelihood, it would
    also exchange tokens that are alike.
    """
    mass = scores_V.double().softmax(dim=-1).cumsum(dim=-1)
    last = mass[-1]
    found = torch.searchsorted(mass, last * number, right=True)
    # The point lies below the last token that has any probability.
    bound = torch.searchsorted(mass, last)
    return int(torch.minimum(found, bound))
