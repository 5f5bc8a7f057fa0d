from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.families import FAMILY_NAMES, tiny_family
from support.judges import tiny_llama
from support.lanes import TinyLane, pack_on, packed_logits, shake
from support.packing import random_rows

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.lanes import LaneAdapters
from slidepack.engine.model.generate import generate_greedy
from slidepack.engine.model.layer_attention import LayerAttention, layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import load_decoder

CPU = torch.device("cpu")
LANE = TinyLane(name="lane", method=LoraMethod(rank=4), lengths=(), total_steps=1)


def _attention(decoder: Decoder) -> LayerAttention:
    return layer_attention(decoder.shape, CPU, decoder.dtype)


@pytest.mark.parametrize("kv_heads", [1, 4])
def test_greedy_answers_equal_transformers(tmp_path: Path, kv_heads: int) -> None:
    judge = tiny_llama(tmp_path, kv_heads=kv_heads, tied=False)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    prompts = [row.ids for row in random_rows((5, 1, 19), decoder.shape.vocab)]
    ours = generate_greedy(
        decoder, None, _attention(decoder), prompts, max_new_tokens=24, stop_ids=frozenset({1})
    )
    for prompt, answer in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        generated = judge.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24
        )
        theirs = generated[0, len(prompt) :].tolist()
        assert answer == (theirs[: theirs.index(1)] if 1 in theirs else theirs)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_greedy_answers_of_every_family_equal_transformers(tmp_path: Path, name: str) -> None:
    judge = tiny_family(tmp_path, name)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    prompts = [row.ids for row in random_rows((5, 1, 19), decoder.shape.vocab)]
    ours = generate_greedy(
        decoder, None, _attention(decoder), prompts, max_new_tokens=24, stop_ids=frozenset({1})
    )
    for prompt, answer in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        generated = judge.generate(  # type: ignore[operator]  # a mixin's method
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24
        )
        theirs = generated[0, len(prompt) :].tolist()
        assert answer == (theirs[: theirs.index(1)] if 1 in theirs else theirs)


def test_an_answer_ends_at_a_stop_id_and_the_others_go_on(tmp_path: Path) -> None:
    tiny_llama(tmp_path, kv_heads=2, tied=True)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    prompts = [row.ids for row in random_rows((6, 8), decoder.shape.vocab)]
    free = generate_greedy(
        decoder, None, _attention(decoder), prompts, max_new_tokens=12, stop_ids=frozenset()
    )
    stop = free[0][4]
    cut = generate_greedy(
        decoder, None, _attention(decoder), prompts, max_new_tokens=12, stop_ids=frozenset({stop})
    )
    for answer, whole in zip(cut, free, strict=True):
        assert answer == (whole[: whole.index(stop)] if stop in whole else whole)


def _answers(
    decoder: Decoder, lane: LaneAdapters | None, prompts: list[tuple[int, ...]]
) -> list[list[int]]:
    return generate_greedy(
        decoder, lane, _attention(decoder), prompts, max_new_tokens=8, stop_ids=frozenset()
    )


def test_the_adapter_changes_the_answer(tmp_path: Path) -> None:
    tiny_llama(tmp_path, kv_heads=2, tied=True)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    pack = pack_on(decoder, [LANE])
    lane = pack.adapters((LANE.name,))
    prompts = [row.ids for row in random_rows((6,), decoder.shape.vocab)]
    bare = _answers(decoder, None, prompts)
    assert _answers(decoder, lane, prompts) == bare, "B is zero, so the lane changes nothing yet"
    shake(pack.lanes[LANE.name], 0.5)
    assert _answers(decoder, lane, prompts) != bare


def test_answers_with_an_adapter_are_those_of_its_logits(tmp_path: Path) -> None:
    """The cache gives what a pass over the whole text gives."""
    tiny_llama(tmp_path, kv_heads=2, tied=False)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    pack = pack_on(decoder, [LANE])
    shake(pack.lanes[LANE.name], 0.2)
    prompts = [row.ids for row in random_rows((6, 1, 11), decoder.shape.vocab)]
    answers = _answers(decoder, pack.adapters((LANE.name,)), prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        text = (*prompt, *answer)
        row = EncodedRow(1, text, (True,) * len(text))
        (logits,) = packed_logits(decoder, [row], pack)
        assert logits.argmax(dim=-1)[len(prompt) - 1 : -1].tolist() == answer


def test_the_lane_answers_as_itself_in_a_pack_of_many(tmp_path: Path) -> None:
    tiny_llama(tmp_path, kv_heads=2, tied=False)
    decoder = load_decoder(tmp_path, CPU, torch.float32)
    other = replace(LANE, name="other", method=LoraMethod(rank=9, targets=("up_proj",)))
    prompts = [row.ids for row in random_rows((6, 1, 11), decoder.shape.vocab)]
    answers = []
    for lanes in ([LANE], [other, LANE]):
        pack = pack_on(decoder, lanes)
        for arena in pack.lanes.values():
            shake(arena, 0.2)
        answers.append(_answers(decoder, pack.adapters((LANE.name,)), prompts))
    assert answers[0] == answers[1]
