"""Greedy generation for several prompts at once, with a key/value cache."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.arena import LaneLayer, LoraArena
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.model.decoder import AttentionFunction, decoder_layer
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.rope import rope_tables
from slidepack.kernels import AttentionChoice, Segments, attention, rms_norm


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

    def attend_one(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append one token a sequence and attend to all of its past; q [B, N, H], k [B, K, H]."""
        keys, values = self.keys[layer], self.values[layer]
        rows = torch.arange(q.shape[0], device=q.device)
        keys[rows, self.lengths] = k
        values[rows, self.lengths] = v
        group = q.shape[1] // k.shape[1]
        visible = torch.arange(keys.shape[1], device=q.device) <= self.lengths[:, None]
        output = torch.nn.functional.scaled_dot_product_attention(
            q[:, :, None],
            keys.transpose(1, 2).repeat_interleave(group, dim=1),
            values.transpose(1, 2).repeat_interleave(group, dim=1),
            attn_mask=visible[:, None, None],
        )
        return output[:, :, 0]


@torch.no_grad()
def generate_greedy(
    decoder: Decoder,
    arena: LoraArena | None,
    choice: AttentionChoice,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    check_stop: Callable[[], None] = lambda: None,
) -> list[list[int]]:
    """Continue each prompt by its most likely tokens.

    Args:
        decoder: the base model.
        arena: the lane, or None for the bare base.
        choice: attention path of the prompt pass.
        prompts: token ids, each non-empty.
        max_new_tokens: bound of each answer.
        stop_ids: ids that end an answer; not part of it.
        check_stop: called once a token; may raise to stop.

    Returns:
        The new ids of each prompt.
    """
    cache = _Cache(decoder, prompts, max_new_tokens)
    logits = _prompt_pass(decoder, arena, choice, prompts, cache)
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
        logits = _token_pass(decoder, arena, chosen, cache)
    return answers


def _prompt_pass(
    decoder: Decoder,
    arena: LoraArena | None,
    choice: AttentionChoice,
    prompts: Sequence[Sequence[int]],
    cache: _Cache,
) -> Tensor:
    """Run all prompts as one packed row, fill the cache, return the last logits [B, V]."""
    rows = [EncodedRow(0, tuple(prompt), (False,) * len(prompt)) for prompt in prompts]
    batch = pack_rows(rows, decoder.shape, decoder.device, decoder.dtype)

    def attend_at(layer: int) -> AttentionFunction:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.store_prompts(layer, k, v, batch.segments.bounds)
            return attention(q, k, v, batch.segments, choice)

        return attend

    x = _walk(decoder, arena, decoder.embedding[batch.ids], (batch.cos, batch.sin), attend_at)
    return _logits(decoder, x[_last_positions(batch.segments)])


def _token_pass(decoder: Decoder, arena: LoraArena | None, tokens: Tensor, cache: _Cache) -> Tensor:
    """Run one token of each sequence, return its logits [B, V]."""

    def attend_at(layer: int) -> AttentionFunction:
        return lambda q, k, v: cache.attend_one(layer, q, k, v)

    rope = rope_tables(decoder.shape, cache.lengths, decoder.dtype)
    x = _walk(decoder, arena, decoder.embedding[tokens], rope, attend_at)
    cache.lengths += 1
    return _logits(decoder, x)


def _walk(
    decoder: Decoder,
    arena: LoraArena | None,
    x: Tensor,
    rope: tuple[Tensor, Tensor],
    attend_at: Callable[[int], AttentionFunction],
) -> Tensor:
    for layer, weights in enumerate(decoder.layers):
        lane = None if arena is None else LaneLayer(arena, layer, None)
        x = decoder_layer(x, weights, decoder.shape, rope, attend_at(layer), lane)
    return x


def _last_positions(segments: Segments) -> Tensor:
    return segments.cu_seqlens[1:].to(torch.int64) - 1


def _logits(decoder: Decoder, x: Tensor) -> Tensor:
    normed = rms_norm(x, decoder.final_norm, decoder.shape.rms_eps)
    return torch.nn.functional.linear(normed, decoder.head)
