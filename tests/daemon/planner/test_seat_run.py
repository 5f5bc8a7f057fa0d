"""The quick run of one seat against the simulation, which is the judge: bit for bit."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plan_problems import MB, NOW, bases, device, full, lane

from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Recompute, Strategy
from slidepack.daemon.planner.seat_run import SeatRuns
from slidepack.daemon.planner.simulate import simulate
from slidepack.daemon.planner.tasks import PassBytes, Task, Window

_RECOMPUTE: tuple[Recompute, ...] = ("never", "for tokens", "freely")


@st.composite
def plain(draw: st.DrawFn) -> Instance:
    on = []
    for number in range(draw(st.integers(1, 2))):
        found = msgspec.structs.replace(
            draw(bases()),
            recompute=PassBytes(
                per_token=MB // 8, logits_per_token=MB // 4, logit_tokens=draw(_LOGITS)
            ),
            lane_seconds_once=draw(st.sampled_from((0.0, 3.0))),
            most_params=draw(st.sampled_from((None, 100_000_000))),
        )
        begins = draw(st.sampled_from((0.0, NOW + 40.0)))
        limit = draw(st.sampled_from((0, 0, 3)))
        on.append(
            device(f"d{number}", kind="", bases={"b": found}, free_from=begins, max_lanes=limit)
        )
    tasks = [
        lane(
            f"t{number}",
            steps=draw(st.sampled_from((1, 7, 100, 101, 900))),
            tokens=draw(st.sampled_from((30, 100, 480, 3000))),
            params=draw(st.sampled_from((1, 3, 20))) * 4_000_001,
            most_tokens=draw(st.sampled_from((0, 700, 2048))),
            longest=draw(st.sampled_from((0, 64, 1024))),
        )
        for number in range(draw(st.integers(1, 12)))
    ]
    return Instance(tasks, on, (), NOW)


_LOGITS = st.sampled_from((0, 100))


@settings(max_examples=150)
@given(data=st.data())
def test_it_says_what_the_simulation_says(data: st.DataObject) -> None:
    instance = data.draw(plain())
    runs = SeatRuns(instance)
    assert runs.possible
    for seat in range(len(instance.seats)):
        here = [task for task, seats in enumerate(instance.fitting) if seat in seats]
        order = tuple(data.draw(st.permutations(here)))
        cap = data.draw(st.sampled_from((0.5, 1.0, 4.0, 16.0)))
        recompute = data.draw(st.sampled_from(_RECOMPUTE))
        lanes = data.draw(st.sampled_from((0, 0, 1, 2)))
        strategy = Strategy(
            order=order,
            cap_factors=(cap,) * len(instance.seats),
            max_lanes=lanes,
            recompute=(recompute,) * len(instance.seats),
            seat_of=(seat,) * len(instance.tasks),
        )
        expected = simulate(instance, strategy, frozenset(order)).placements
        assert runs.run(seat, order, cap, recompute, lanes).placements == expected


@pytest.mark.parametrize(
    "other",
    [
        lane("b", priority=1),
        lane("b", deadline=NOW + 5.0),
        lane("b", not_before=NOW + 5.0),
        lane("b", after=("a",)),
        lane("b", running_on=("cuda:0",)),
        lane("b", model="c"),
        full("b"),
    ],
)
def test_what_only_the_simulation_knows_is_left_to_it(other: Task) -> None:
    assert SeatRuns(Instance([lane("a")], [device()], (), NOW)).possible
    assert not SeatRuns(Instance([lane("a"), other], [device()], (), NOW)).possible


def test_hours_are_left_to_the_simulation() -> None:
    hours = (Window(begin=NOW, end=NOW + 100.0),)
    assert not SeatRuns(Instance([lane("a")], [device()], hours, NOW)).possible
