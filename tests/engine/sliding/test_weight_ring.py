"""The ring of weight slots: what it evicts, what it waits for, and what it never returns."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from slidepack.engine.sliding.resident_weights import ResidentWeights
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.weight_ring import WeightRing

CPU = torch.device("cpu")
WIDTH = 5


@dataclass
class Host:
    """Layers in host memory; what the ring fetched and waited for."""

    layers: list[Tensor]
    running: set[int] = field(default_factory=set)
    fetched: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)

    def source(self, layer: int) -> Tensor:
        assert layer not in self.running, "fetched in the middle of its update"
        self.fetched.append(layer)
        return self.layers[layer]

    def finish(self, layer: int) -> None:
        """Wait for an update, which this brings to its end."""
        self.waited.append(layer)
        if layer in self.running:
            self.running.remove(layer)
            self.layers[layer] += 1.0


def _ring(slots: int, layers: int) -> tuple[WeightRing, Host]:
    host = Host([torch.full((WIDTH,), 100.0 * layer) for layer in range(layers)])
    ring = WeightRing(
        slots=slots,
        elements=WIDTH,
        dtype=torch.float32,
        device=CPU,
        streams=Streams.of(CPU),
        source=host.source,
        ready=lambda layer: layer not in host.running,
        await_ready=host.finish,
    )
    return ring, host


def test_a_layer_is_fetched_once_while_it_stays() -> None:
    ring, host = _ring(3, 5)
    for _ in range(2):
        ring.prefetch(1)
        assert ring.acquire(1).eq(100).all()
        ring.release(1)
    assert host.fetched == [1]


@pytest.mark.parametrize("slots", [2, 3])
def test_prefetch_evicts_neither_what_is_held_nor_what_was_not_read_yet(slots: int) -> None:
    ring, host = _ring(slots, 6)
    held = ring.acquire(0)
    for layer in range(1, 6):
        ring.prefetch(layer)
    assert host.fetched == list(range(slots))
    assert held.eq(0).all()
    for layer in range(1, slots):
        assert ring.acquire(layer).eq(100 * layer).all()
    assert host.fetched == list(range(slots)), "no second fetch"
    assert held.eq(0).all()


def test_acquire_takes_an_unread_slot_before_a_held_one() -> None:
    ring, host = _ring(2, 6)
    held = ring.acquire(0)
    ring.prefetch(1)
    other = ring.acquire(3)
    assert other.eq(300).all()
    assert held.eq(0).all()
    assert host.fetched == [0, 1, 3]


def test_the_least_recently_read_layer_goes_first() -> None:
    ring, host = _ring(3, 6)
    for layer in (0, 1, 2, 0):
        ring.acquire(layer)
        ring.release(layer)
    ring.prefetch(3)
    for layer in (2, 0, 3):
        ring.acquire(layer)
        ring.release(layer)
    assert host.fetched == [0, 1, 2, 3], "1 went, the others stayed"


def test_prefetch_leaves_a_layer_alone_that_is_being_updated() -> None:
    ring, host = _ring(2, 3)
    host.running.add(1)
    ring.prefetch(1)
    assert host.fetched == []
    assert host.waited == []


def test_acquire_waits_for_an_update() -> None:
    ring, host = _ring(2, 3)
    host.running.add(1)
    assert ring.acquire(1).eq(101).all()
    assert host.waited == [1]


def test_a_forgotten_layer_is_fetched_again() -> None:
    ring, host = _ring(2, 3)
    ring.acquire(1)
    ring.release(1)
    ring.forget(1)
    host.layers[1] += 7
    assert ring.acquire(1).eq(107).all()
    ring.forget(2)
    assert host.fetched == [1, 1]


def test_an_empty_slot_is_used_before_another_layer_goes() -> None:
    ring, host = _ring(2, 4)
    for layer in (0, 1):
        ring.acquire(layer)
        ring.release(layer)
    ring.forget(1)
    ring.prefetch(2)
    ring.acquire(0)
    assert host.fetched == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_no_walk_ever_reads_stale_weights(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    slots, layers = 2 + pick(3), 3 + pick(5)
    ring, host = _ring(slots, layers)
    held: dict[int, Tensor] = {}
    for _ in range(400):
        layer = pick(layers)
        match pick(4):
            case 0:
                ring.prefetch(layer)
            case 1 if layer not in held and len(held) < slots:
                held[layer] = ring.acquire(layer)
            case 2 if held:
                done = list(held)[pick(len(held))]
                held.pop(done)
                ring.release(done)
            case 3 if layer not in held and layer not in host.running:
                # Its update begins; it ends when someone waits, or now and then by itself.
                ring.forget(layer)
                host.running.add(layer)
                if pick(2):
                    host.finish(layer)
        for index, flat in held.items():
            assert torch.equal(flat, host.layers[index])
    assert ring.resident(0) is None


def test_resident_weights_on_the_cpu_are_the_masters_themselves() -> None:
    flats = [torch.full((WIDTH,), float(layer)) for layer in range(3)]
    waited: list[int] = []
    weights = ResidentWeights(flats, Streams.of(CPU).compute, waited.append, lambda _: None)
    weights.prefetch(1)
    assert waited == []
    assert weights.acquire(1) is flats[1]
    assert waited == [1]
    weights.release(1)
    weights.forget(1)
    flats[1] += 5
    assert weights.acquire(1).eq(6).all()
    assert weights.resident(1) is None


def test_resident_weights_are_renewed_from_the_host_once_after_a_change() -> None:
    flats = [torch.zeros(WIDTH), torch.zeros(WIDTH)]
    host = [torch.ones(WIDTH), torch.full((WIDTH,), 2.0)]
    streams = Streams.of(CPU)
    weights = ResidentWeights(flats, streams.compute, lambda _: None, lambda layer: host[layer])
    assert weights.acquire(1).eq(0).all()
    weights.forget(1)
    assert weights.acquire(1).eq(2).all()
    host[1] += 1
    assert weights.acquire(1).eq(2).all(), "renewed without a change"
    assert weights.acquire(0).eq(0).all()


def test_resident_weights_follow_the_engine_that_updates_them() -> None:
    flats, host = [torch.zeros(WIDTH)], [torch.ones(WIDTH)]
    by_cpu = False
    streams = Streams.of(CPU)
    weights = ResidentWeights(
        flats, streams.compute, lambda _: None, lambda layer: host[layer] if by_cpu else None
    )
    # With clipping the engine is only known when the update begins, after the pass.
    weights.forget(0)
    by_cpu = True
    assert weights.acquire(0).eq(1).all()
    host[0] += 5
    assert weights.acquire(0).eq(1).all(), "renewed without a change"
    weights.forget(0)
    by_cpu = False
    assert weights.acquire(0).eq(1).all()
