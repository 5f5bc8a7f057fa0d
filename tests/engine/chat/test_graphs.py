"""Token passes that are recorded on a GPU give what passes launch by launch give."""

from pathlib import Path

import pytest
import torch
from support.chats import PROMPTS, chat_model, peft_adapter

from slidepack.engine.chat.contract import Ask, Voice
from slidepack.engine.chat.engine import ChatEngine
from slidepack.engine.chat.events import AnyEvent, Token
from slidepack.engine.chat.graphs import TokenGraphs
from slidepack.engine.chat.voices import Voices
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.model.cached_pass import CachedPasses
from slidepack.engine.model.kv_cache import KvCache, Piece
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import load_decoder

SEATS = 6


class _Side:
    """An engine on a device, with graphs or without."""

    def __init__(self, model: Path, tuned: Path, device: torch.device, *, record: bool) -> None:
        decoder = load_decoder(model, device, torch.float32)
        choices = layer_attention(decoder.shape, device, torch.float32)
        cache = KvCache(decoder.shape, SEATS + 1, 200, device, torch.float32)
        passes = CachedPasses(decoder, choices, cache)
        self.voices = Voices(model, decoder, choices, load_tokenizer(model))
        self.graphs = TokenGraphs(passes, self.voices, SEATS)
        self.events: list[AnyEvent] = []
        graphs = self.graphs if record else None
        self.engine = ChatEngine(passes, self.voices, SEATS, self.events.append, graphs)
        self.passes = passes
        self.engine.load(Voice(name="tuned", folder=str(tuned)))

    def answers(self) -> dict[tuple[str, str], str]:
        """Ask everything, some of it later, and return all answers."""
        told: dict[tuple[str, str], str] = {}
        for number, prompt in enumerate(PROMPTS):
            self.engine.ask(
                Ask(id=prompt, voices=("base", "tuned"), prompt=prompt, max_tokens=20 + number)
            )
            for _ in range(3):
                self.engine.step()
        while self.engine.is_busy:
            self.engine.step()
        for event in self.events:
            if isinstance(event, Token):
                key = (event.id, event.voice)
                told[key] = told.get(key, "") + event.text
        return told


def _folders(tmp_path: Path) -> tuple[Path, Path]:
    model = chat_model(tmp_path / "model", "gemma2")
    peft_adapter(model, tmp_path / "tuned")
    return model, tmp_path / "tuned"


@pytest.mark.gpu
def test_recorded_passes_answer_as_others_do(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    device = torch.device("cuda:0")
    folders = _folders(tmp_path)
    recorded = _Side(*folders, device, record=True)
    plain = _Side(*folders, device, record=False)
    answers = recorded.answers()
    assert recorded.graphs.recorded > 0
    assert answers == plain.answers()
    # What is loaded later moves nothing under a graph that is kept.
    recorded.engine.load(Voice(name="again", folder=str(folders[1])))
    assert recorded.graphs.recorded == 0
    recorded.events.clear()
    assert recorded.answers() == answers


def test_a_pass_that_is_filled_up_gives_the_same_rows(tmp_path: Path) -> None:
    """Without a GPU nothing is recorded, and the passes are the same otherwise."""
    side = _Side(*_folders(tmp_path), torch.device("cpu"), record=False)
    side.graphs.stop_recording()
    ids = (5, 9, 200, 31)
    with torch.inference_mode():
        start = [Piece(seat, 0, ids[: 2 + seat % 2]) for seat in range(3)]
        tokens = {"tuned": 2 + 3, "base": 2}
        side.passes.advance(start, side.voices.lane_pass(tokens))
        # What was never written is hidden, and is a number on a card.
        for layer in range(side.passes.decoder.shape.num_layers):
            for part in side.passes.cache.of_layer(layer):
                part.nan_to_num_(nan=3.0)
        last = [Piece(piece.seat, piece.end, (40 + piece.seat,)) for piece in start]
        wanted = side.passes.advance(last, side.voices.lane_pass({"tuned": 2, "base": 1}))
        for _ in range(3):
            found = side.graphs.advance(last, {"tuned": 2, "base": 1})
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)
    assert side.graphs.recorded == 0
