"""What fits of a cache under a cap."""

import pytest
import torch
from support.lanes import tiny_decoder

from slidepack.engine.chat.contract import ChatRequest
from slidepack.engine.chat.memory import cache_size, decoder_bytes
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.model.kv_cache import KvCache, seat_bytes
from slidepack.engine.model.layers import Decoder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("tiny"), torch.float32)


def _request(cap: int = 0, context: int = 240) -> ChatRequest:
    return ChatRequest(model="/m", context=context, seats=8, memory_cap_bytes=cap)


def test_seats_go_first_then_the_context_and_then_all(decoder: Decoder) -> None:
    whole = cache_size(_request(), decoder)
    assert (whole.seats, whole.context) == (8, 240)
    weights = decoder_bytes(decoder)
    sizes: list[tuple[int, int]] = []
    for cap in range(weights, weights + (4 << 20), 10_000):
        try:
            size = cache_size(_request(cap), decoder)
        except SlidepackError as error:
            assert error.report.code == "CHAT-NO-ROOM"
            assert not sizes, "more memory never takes what was there"
            continue
        cache = KvCache(decoder.shape, size.seats, size.context, torch.device("cpu"), torch.float32)
        assert cache.num_bytes + weights <= cap
        assert size.seats == 1 or size.context == 240
        sizes.append((size.context, size.seats))
    assert sizes == sorted(sizes)
    assert {seats for _, seats in sizes} == set(range(1, 9))
    assert sizes[0][0] < 240


def test_the_models_own_context_is_the_most(decoder: Decoder) -> None:
    assert cache_size(_request(context=100_000), decoder).context == decoder.shape.max_positions


def test_a_seat_takes_what_it_says(decoder: Decoder) -> None:
    cache = KvCache(decoder.shape, 3, 50, torch.device("cpu"), torch.bfloat16)
    assert cache.num_bytes == 3 * seat_bytes(decoder.shape, 50, torch.bfloat16)
