"""Greedy generation for several prompts at once, with a key/value cache."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.lanes import LaneAdapters, LanePass
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.model.decoder import AttentionFunction, decoder_layer
from slidepack.engine.model.ends import embed, final_hidden, head_logits
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.rope import RopeTables, rope_tables
from slidepack.kernels import AttentionChoice, Segments, attention


class _Cache:
    """Keys and values of B sequences at each layer, [B, capacity, K, H]."""

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        shape = decoder.shape
        lengths = [len(prompt) for prompt in prompts]
        size = (len(prompts), max(lengths) + new_tokens, shape.num_kv_heads, shape.head_dim)
        layers = range(shape.num_layers)
        self.keys = [torch.zeros(size, dtype=decoder.dtype, device=decoder.device) for _ in layers]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.lengths = torch.tensor(lengths, dtype=torch.int64, device=decoder.device)

    def store_prompts(self, layer: int, k: Tensor, v: Tensor, bounds: Sequence[int]) -> None:
        for index, (start, end) in enumerate(itertools.pairwise(bounds)):
            self.keys[layer][index, : end - start] = k[start:end]
            self.values[layer][index, : end - start] = v[start:end]

    def attend_one(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, choice: AttentionChoice
    ) -> Tensor:
        """Append one token a sequence and attend to its past; q [B, N, H], k [B, K, H]."""
        keys, values = self.keys[layer], self.values[layer]
        rows = torch.arange(q.shape[0], device=q.device)
        keys[rows, self.lengths] = k
        values[rows, self.lengths] = v
        places = torch.arange(keys.shape[1], device=q.device)
        visible = places <= self.lengths[:, None]
        if choice.window is not None:
            visible &= places > self.lengths[:, None] - choice.window
        return _attend_cached(q, keys, values, visible, choice)


def _attend_cached(
    q_BNH: Tensor,
    keys_BCKH: Tensor,
    values_BCKH: Tensor,
    visible_BC: Tensor,
    choice: AttentionChoice,
) -> Tensor:
    """Attend from one token a sequence to the `C` places of its cache that it sees."""
    group = q_BNH.shape[1] // keys_BCKH.shape[2]
    q = q_BNH[:, :, None]
    keys = keys_BCKH.transpose(1, 2).repeat_interleave(group, dim=1)
    values = values_BCKH.transpose(1, 2).repeat_interleave(group, dim=1)
    mask = visible_BC[:, None, None]
    cap = choice.soft_cap
    if cap is None:
        return torch.nn.functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, scale=choice.scale
        )[:, :, 0]
    # torch's attention has no soft cap.
    scale = q.shape[-1] ** -0.5 if choice.scale is None else choice.scale
    scores = (q @ keys.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * scale
    scores = (cap * torch.tanh(scores / cap)).masked_fill(~mask, float("-inf"))
    return (torch.softmax(scores, dim=-1).to(q.dtype) @ values)[:, :, 0]


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
    cache = _Cache(decoder, prompts, max_new_tokens)
    logits = _prompt_pass(decoder, lane, choices, prompts, cache)
    # The same number of tokens in each pass from here on.
    one_each = _passing(lane, len(prompts))
    answers: list[list[int]] = [[] for _ in prompts]
    open_answers = set(range(len(prompts)))
    for remaining in reversed(range(max_new_tokens)):
        check_stop()
        chosen = logits.argmax(dim=-1)
        for index, token in enumerate(chosen.tolist()):
            if index not in open_answers:
                continue
            if token in stop_ids:
                open_answers.discard(index)
            else:
                answers[index].append(token)
        if not open_answers or not remaining:
            break
        logits = _token_pass(decoder, one_each, choices, chosen, cache)
    return answers


def _passing(lane: LaneAdapters | None, tokens: int) -> LanePass | None:
    """Return the lane in a row that is all its own."""
    return None if lane is None else lane.lane_pass((0, tokens, tokens))


def _prompt_pass(
    decoder: Decoder,
    lane: LaneAdapters | None,
    choices: LayerAttention,
    prompts: Sequence[Sequence[int]],
    cache: _Cache,
) -> Tensor:
    """Run all prompts as one packed row, fill the cache, return the last logits [B, V]."""
    rows = [EncodedRow(0, tuple(prompt), (False,) * len(prompt)) for prompt in prompts]
    batch = pack_rows(rows, decoder.shape, decoder.device, decoder.dtype)

    def attend_at(layer: int) -> AttentionFunction:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.store_prompts(layer, k, v, batch.segments.bounds)
            choice = choices.at(layer)
            return attention(q, k, v, batch.segments, choice)

        return attend

    passing = _passing(lane, batch.num_tokens)
    x = _walk(decoder, passing, batch.ids, batch.rope, attend_at)
    return _logits(decoder, x[_last_positions(batch.segments)])


def _token_pass(
    decoder: Decoder,
    lane: LanePass | None,
    choices: LayerAttention,
    tokens: Tensor,
    cache: _Cache,
) -> Tensor:
    """Run one token of each sequence, return its logits [B, V]."""

    def attend_at(layer: int) -> AttentionFunction:
        choice = choices.at(layer)
        return lambda q, k, v: cache.attend_one(layer, q, k, v, choice)

    rope = rope_tables(decoder.shape, cache.lengths, decoder.dtype)
    x = _walk(decoder, lane, tokens, rope, attend_at)
    cache.lengths += 1
    return _logits(decoder, x)


def _walk(
    decoder: Decoder,
    lane: LanePass | None,
    ids: Tensor,
    rope: RopeTables,
    attend_at: Callable[[int], AttentionFunction],
) -> Tensor:
    shape = decoder.shape
    x = embed(decoder.embedding, ids, shape)
    for layer, weights in enumerate(decoder.layers):
        adapter = None if lane is None else lane.layer(layer)
        table = rope.of_window(shape.window_of(layer))
        x = decoder_layer(x, weights, shape, table, attend_at(layer), adapter)
    return x


def _last_positions(segments: Segments) -> Tensor:
    return segments.cu_seqlens[1:].to(torch.int64) - 1


def _logits(decoder: Decoder, x: Tensor) -> Tensor:
    hidden = final_hidden(x, decoder.final_norm, decoder.shape)
    return head_logits(hidden, decoder.head, decoder.shape)
