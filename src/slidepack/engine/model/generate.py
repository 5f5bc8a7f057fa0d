"""Greedy generation for several prompts at once: a job's sample answers."""

from collections.abc import Callable, Sequence

import torch

from slidepack.engine.lora.lanes import LaneAdapters, LanePass
from slidepack.engine.model.cached_pass import CachedPasses
from slidepack.engine.model.kv_cache import KvCache, Piece
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder


@torch.no_grad()
def generate_greedy(
    decoder: Decoder,
    lane: LaneAdapters | None,
    choices: LayerAttention,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    check_stop: Callable[[], None] = lambda: None,
) -> list[list[int]]:
    """Continue each prompt by its most likely tokens.

    Args:
        decoder: the base model.
        lane: a single lane, or None for the bare base.
        choices: what each layer's attention computes; its path is the prompt pass's.
        prompts: token ids, each non-empty.
        max_new_tokens: bound of each answer.
        stop_ids: ids that end an answer; not part of it.
        check_stop: called once a token; may raise to stop.

    Returns:
        The new ids of each prompt.
    """
    context = max(map(len, prompts)) + max_new_tokens
    cache = KvCache(decoder.shape, len(prompts), context, decoder.device, decoder.dtype)
    passes = CachedPasses(decoder, choices, cache)
    pieces = [Piece(seat, 0, tuple(prompt)) for seat, prompt in enumerate(prompts)]
    logits = passes.advance(pieces, _passing(lane, sum(map(len, prompts))))
    # The same number of tokens in each pass from here on, those of answers that ended among them.
    one_each = _passing(lane, len(prompts))
    answers: list[list[int]] = [[] for _ in prompts]
    open_answers = set(range(len(prompts)))
    for remaining in reversed(range(max_new_tokens)):
        check_stop()
        chosen = logits.argmax(dim=-1).tolist()
        for index, token in enumerate(chosen):
            if index not in open_answers:
                continue
            if token in stop_ids:
                open_answers.discard(index)
            else:
                answers[index].append(token)
        if not open_answers or not remaining:
            break
        pieces = [
            Piece(piece.seat, piece.end, (token,))
            for piece, token in zip(pieces, chosen, strict=True)
        ]
        logits = passes.advance(pieces, one_each)
    return answers


def _passing(lane: LaneAdapters | None, tokens: int) -> LanePass | None:
    """Return the lane in a row that is all its own."""
    return None if lane is None else lane.lane_pass((0, tokens, tokens))
