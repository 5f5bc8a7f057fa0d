"""Scores of given tokens: those that transformers finds, whatever shares a pass."""

from pathlib import Path

import pytest
import torch
from support.tiny import save_tiny_model
from transformers import AutoModelForCausalLM

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.worker import judging_pass
from slidepack.engine.worker.judging_pass import RowScore, score_rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "model")


def _rows(model: Path) -> tuple[list[EncodedRow], list[RowScore]]:
    """Return rows that are partly what the model says itself, and how transformers scores them."""
    judge = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rows, scores = [], []
    for number in range(6):
        ids = [10 + number, 40, 70 + number]
        with torch.no_grad():
            for place in range(2 * number + 3):
                said = int(judge(torch.tensor([ids])).logits[0, -1].argmax())
                # Every third token is another one than the model would say.
                ids.append((said + 1) % 250 if place % 3 == 2 else said)
            log_probs = judge(torch.tensor([ids])).logits[0].log_softmax(-1)
        supervised = [place >= 3 and place != 4 for place in range(len(ids))]
        places = [place for place, counted in enumerate(supervised) if counted]
        losses = [-float(log_probs[place - 1, ids[place]]) for place in places]
        right = [int(log_probs[place - 1].argmax()) == ids[place] for place in places]
        rows.append(EncodedRow(number, tuple(ids), tuple(supervised)))
        scores.append(RowScore(len(places), sum(right), sum(losses)))
    return rows, scores


@pytest.mark.parametrize("max_tokens", [1, 20, 1000])
@pytest.mark.parametrize("logits", [1, 1000, 1 << 24])
def test_scores_are_those_of_transformers(
    model: Path, monkeypatch: pytest.MonkeyPatch, max_tokens: int, logits: int
) -> None:
    rows, expected = _rows(model)
    assert 0 < sum(one.right for one in expected) < sum(one.tokens for one in expected)
    monkeypatch.setattr(judging_pass, "_LOGITS", logits)
    decoder = load_decoder(model, torch.device("cpu"), torch.float32)
    choices = layer_attention(decoder.shape, decoder.device, decoder.dtype)
    found = score_rows(decoder, None, choices, rows, max_tokens=max_tokens)
    assert [(one.tokens, one.right) for one in found] == [
        (one.tokens, one.right) for one in expected
    ]
    losses = [one.loss for one in expected]
    assert [one.loss for one in found] == pytest.approx(losses, rel=1e-4)
