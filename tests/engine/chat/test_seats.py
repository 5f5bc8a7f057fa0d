"""Whose past is used again, and whose is given up."""

from pathlib import Path

import torch
from support.families import family_config

from slidepack.engine.chat.seats import Seat, Seats
from slidepack.engine.model.kv_cache import KvCache
from slidepack.engine.shape import shape_from_config


def _seats(count: int) -> tuple[Seats, KvCache]:
    config = family_config("llama").to_dict() | {"architectures": ["LlamaForCausalLM"]}
    shape = shape_from_config(config, Path("llama"))
    cache = KvCache(shape, count, 32, torch.device("cpu"), torch.float32)
    for layer in range(shape.num_layers):
        for part in cache.of_layer(layer):
            part.zero_()
    return Seats(cache, count), cache


def _read(seats: Seats, cache: KvCache, voice: str, ids: list[int]) -> Seat:
    """Sit down and pretend to read: every place holds its id."""
    seat = seats.take(voice, ids)
    assert seat is not None
    for place in range(len(seat.held), len(ids)):
        for part in cache.of_layer(1):
            part[seat.index, :, place] = float(ids[place])
        seat.held.append(ids[place])
    return seat


def _places(cache: KvCache, seat: Seat) -> list[float]:
    keys, values = cache.of_layer(1)
    assert torch.equal(keys[seat.index], values[seat.index])
    return keys[seat.index, 0, : len(seat.held), 0].tolist()


def test_a_conversation_that_goes_on_keeps_its_seat() -> None:
    seats, cache = _seats(3)
    first = _read(seats, cache, "base", [1, 2, 3, 4])
    seats.release(first)
    again = seats.take("base", [1, 2, 3, 4, 5])
    assert again is first
    assert again.held == [1, 2, 3, 4]


def test_the_last_token_is_always_read() -> None:
    seats, cache = _seats(2)
    seats.release(_read(seats, cache, "base", [1, 2, 3]))
    again = seats.take("base", [1, 2, 3])
    assert again is not None
    assert again.held == [1, 2]


def test_a_shared_beginning_is_copied_while_its_owner_runs() -> None:
    seats, cache = _seats(3)
    owner = _read(seats, cache, "base", [7, 8, 9, 10])
    other = _read(seats, cache, "base", [7, 8, 20])
    assert other is not owner
    assert _places(cache, other) == [7.0, 8.0, 20.0]
    assert _places(cache, owner) == [7.0, 8.0, 9.0, 10.0]


def test_a_long_conversation_is_not_given_up_for_its_system_prompt() -> None:
    seats, cache = _seats(2)
    long = _read(seats, cache, "base", [1, 2, 3, 4, 5, 6, 7, 8])
    seats.release(long)
    other = _read(seats, cache, "base", [1, 2, 30])
    assert other is not long
    assert _places(cache, other) == [1.0, 2.0, 30.0]
    assert seats.take("base", [1, 2, 3, 4, 5, 6, 7, 8, 9]) is long


def test_voices_share_nothing() -> None:
    seats, cache = _seats(2)
    seats.release(_read(seats, cache, "one", [1, 2, 3]))
    other = seats.take("two", [1, 2, 3, 4])
    assert other is not None
    assert other.held == []


def test_the_oldest_conversation_goes_first_and_running_ones_never() -> None:
    seats, cache = _seats(2)
    first = _read(seats, cache, "base", [1])
    second = _read(seats, cache, "base", [2])
    assert seats.take("base", [3]) is None
    seats.release(second)
    seats.release(first)
    assert seats.take("base", [3]) is second
    assert seats.take("base", [4]) is first
    assert seats.take("base", [5]) is None
