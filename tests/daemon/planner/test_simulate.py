import pytest
from support.plan_problems import MB, NOW, base, device, full, lane

from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Schedule, Strategy
from slidepack.daemon.planner.simulate import simulate
from slidepack.daemon.planner.tasks import Device, PassBytes, Task, Window


def _run(tasks: list[Task], devices: list[Device], *windows: Window, **more: object) -> Schedule:
    instance = Instance(tasks, devices, windows, NOW)
    return simulate(instance, Strategy(order=tuple(range(len(tasks))), **more))  # type: ignore[arg-type]


def _ends(schedule: Schedule) -> dict[int, float]:
    return {placement.task: placement.end for placement in schedule.placements}


def test_lanes_that_share_a_pass_below_the_floor_cost_no_more_than_one() -> None:
    found = _run([lane(f"t{i}") for i in range(8)], [device()])
    assert _ends(found) == dict.fromkeys(range(8), pytest.approx(10.0))


def test_a_lane_that_ends_frees_its_place_at_once() -> None:
    tasks = [lane("long", steps=100), lane("short", steps=20), lane("next", steps=50)]
    found = _run(tasks, [device(max_lanes=2)])
    assert _ends(found) == {1: pytest.approx(2.0), 2: pytest.approx(7.0), 0: pytest.approx(10.0)}
    assert found.waits == {2: "lanes"}


def test_above_the_floor_each_lane_slows_the_others_down_until_it_leaves() -> None:
    tasks = [lane("a", tokens=2000, steps=10), lane("b", tokens=2000, steps=5)]
    # 5 steps of 4,000 tokens, then 5 of 2,000.
    assert _ends(_run(tasks, [device()])) == {1: pytest.approx(2.0), 0: pytest.approx(3.0)}


def test_a_token_cap_keeps_a_lane_out_until_there_is_room() -> None:
    tasks = [lane("a", tokens=900), lane("b", tokens=900)]
    found = _run(tasks, [device()], cap_factors=(1.0,))
    assert _ends(found) == {0: pytest.approx(10.0), 1: pytest.approx(20.0)}
    assert found.waits == {1: "tokens"}


def test_memory_holds_lanes_back() -> None:
    # 4,000 MB, less 1,000 of the base and 12.5 of a row, hold one of 2,000 MB.
    big = {"params": 125 * MB}
    found = _run([lane("a", **big), lane("b", **big), lane("small")], [device()])
    assert _ends(found) == {
        **{0: pytest.approx(10.0), 2: pytest.approx(10.0), 1: pytest.approx(20.0)}
    }
    assert found.waits == {1: "memory"}


def test_a_pack_that_has_no_room_to_keep_its_activations_is_slower() -> None:
    kept = base(keep=PassBytes(per_token=MB), keep_tokens=2000, recompute_slowdown=1.5)
    tasks = [lane(key, tokens=2000, steps=10, params=60 * MB) for key in "ab"]
    on = [device(bases={"b": kept})]
    # One alone keeps 2,000 MB; both would have 1,080 MB left for that, and recompute.
    assert _ends(_run(tasks, on)) == {0: pytest.approx(6.0), 1: pytest.approx(6.0)}
    never = _run(tasks, on, recompute=("never",))
    assert _ends(never) == {0: pytest.approx(2.0), 1: pytest.approx(4.0)}
    assert never.waits == {1: "memory"}
    # Two take 0.6 s a step for 4,000 tokens, one 0.2 s for half of them.
    assert _ends(_run(tasks, on, recompute=("for tokens",))) == _ends(never)
    small = [lane(key, tokens=200, most_tokens=2000, params=60 * MB) for key in "ab"]
    # Below the floor it costs nothing.
    together = _ends(_run(small, on, recompute=("for tokens",)))
    assert together == {0: pytest.approx(10.0), 1: pytest.approx(10.0)}


def test_a_lane_that_joins_holds_the_others_up_once() -> None:
    on = [device(max_lanes=2, bases={"b": base(startup_seconds=3.0, lane_seconds_once=2.0)})]
    tasks = [lane("long", steps=100), lane("short", steps=20), lane("next", steps=50)]
    # A start of 3 s, two lanes at 2 s, 20 steps; then one more joins, and 2 s pass without a step.
    assert _ends(_run(tasks, on)) == {
        1: pytest.approx(9.0),
        2: pytest.approx(16.0),
        0: pytest.approx(19.0),
    }


def test_another_base_waits_until_the_device_is_empty_and_its_worker_starts() -> None:
    on = [device(bases={"b": base(), "c": base(startup_seconds=3.0)})]
    found = _run([lane("a"), lane("b", model="c")], on)
    assert _ends(found) == {0: pytest.approx(10.0), 1: pytest.approx(23.0)}
    assert found.waits == {1: "other base"}


def test_a_full_fine_tuning_has_its_device_alone() -> None:
    found = _run([lane("a"), full("f", 0.5), lane("b")], [device()])
    assert _ends(found) == {0: pytest.approx(10.0), 2: pytest.approx(10.0), 1: pytest.approx(15.0)}


def test_a_device_drains_for_what_has_a_higher_priority() -> None:
    tasks = [
        *(lane("a"), lane("b"), lane("c"), lane("gate", steps=10, priority=2)),
        full("f", 0.5, priority=1, after=("gate",)),
    ]
    found = _run(tasks, [device(max_lanes=2)])
    ends = _ends(found)
    # The gate and one lane begin; nobody takes the gate's place, and the full one is next.
    assert ends[3] == pytest.approx(1.0)
    assert ends[0] == pytest.approx(10.0)
    assert ends[4] == pytest.approx(15.0)
    assert ends[1] == ends[2] == pytest.approx(25.0)


def test_work_goes_on_in_the_next_window_after_the_worker_has_started_again() -> None:
    nights = (Window(begin=NOW, end=NOW + 5.0), Window(begin=NOW + 100.0, end=NOW + 200.0))
    on = [device(bases={"b": base(startup_seconds=2.0)})]
    found = _run([lane("a")], on, *nights)
    # 2 s to start and 3 of work, then 2 to start and 7 of work, in open seconds.
    assert _ends(found) == {0: pytest.approx(14.0)}


def test_what_the_last_window_cuts_off_is_unfinished() -> None:
    found = _run([lane("a"), lane("b", after=("a",))], [device()], Window(begin=NOW, end=NOW + 5.0))
    assert [placement.task for placement in found.unfinished] == [0]
    assert found.not_begun == [1]


def test_a_lane_in_time_is_not_made_late_by_one_more() -> None:
    tasks = [lane("due", tokens=1000, deadline=NOW + 12.0), lane("b", tokens=1000)]
    found = _run(tasks, [device()])
    assert _ends(found) == {0: pytest.approx(10.0), 1: pytest.approx(20.0)}
    assert found.waits == {1: "deadline"}


def test_a_circle_of_dependencies_and_an_unknown_one_begin_never() -> None:
    tasks = [
        lane("a", after=("b",)),
        lane("b", after=("a",)),
        lane("c", after=("gone",)),
        lane("d"),
    ]
    found = _run(tasks, [device()])
    assert sorted(found.not_begun) == [0, 1, 2]
    assert _ends(found) == {3: pytest.approx(10.0)}


def test_what_is_asked_for_after_the_last_window_begins_never() -> None:
    tonight = Window(begin=NOW, end=NOW + 10.0)
    found = _run([lane("a", steps=1, not_before=NOW + 40.0)], [device()], tonight)
    assert found.not_begun == [0]
    assert found.waits == {0: "not before"}
    away = _run([lane("a", steps=1)], [device(free_from=NOW + 40.0)], tonight)
    assert away.not_begun == [0]
    assert away.waits == {0: "device away"}
