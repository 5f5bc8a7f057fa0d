"""Queues and devices for tests: small by hand, and any that Hypothesis thinks of."""

from typing import Any

from hypothesis import strategies as st

from slidepack.daemon.planner.cost import StepCost
from slidepack.daemon.planner.tasks import (
    BaseOnDevice,
    Device,
    FullRun,
    PassBytes,
    Task,
    Window,
)

NOW = 1_000_000.0
MB = 1 << 20


def base(**changed: Any) -> BaseOnDevice:
    """A base whose step takes 0.1 s up to 1,000 tokens, and 0.1 ms a token from there."""
    return BaseOnDevice(
        **{
            "cost": StepCost(floor_seconds=0.1, token_seconds=1e-4),
            "fixed_bytes": 1000 * MB,
            "bytes_per_param": 16.0,
            "recompute": PassBytes(per_token=MB // 8),
            **changed,
        }
    )


def device(key: str = "cuda:0", **changed: Any) -> Device:
    return Device(
        **{"key": key, "kind": "card", "memory_bytes": 4000 * MB, "bases": {"b": base()}, **changed}
    )


def lane(key: str, **changed: Any) -> Task:
    return Task(
        **{
            "key": key,
            "model": "b",
            "steps": 100,
            "tokens": 100,
            "params": 1_000_000,
            "longest": 100,
            **changed,
        }
    )


def full(
    key: str, seconds: float = 1.0, devices: tuple[str, ...] = ("cuda:0",), **more: Any
) -> Task:
    run = FullRun(step_seconds=dict.fromkeys(devices, seconds), refusal="It is too large.")
    return Task(**{"key": key, "steps": 10, "full": run, **more})


@st.composite
def bases(draw: st.DrawFn) -> BaseOnDevice:
    cost = StepCost(
        floor_seconds=draw(st.sampled_from((0.0, 0.05, 0.2))),
        token_seconds=draw(st.sampled_from((2e-5, 1e-4, 5e-4))),
        fixed_tokens=draw(st.sampled_from((0.0, 128.0, 2000.0))),
        lane_seconds=draw(st.sampled_from((0.0, 1e-3))),
    )
    keeps = draw(st.booleans())
    return base(
        cost=cost,
        fixed_bytes=draw(st.sampled_from((100, 1500, 3500))) * MB,
        bytes_each=100 * MB,
        keep=PassBytes(per_token=2 * MB) if keeps else None,
        keep_tokens=1000,
        recompute_slowdown=1.5 if keeps else 1.0,
        startup_seconds=draw(st.sampled_from((0.0, 15.0))),
    )


@st.composite
def devices(draw: st.DrawFn) -> list[Device]:
    count = draw(st.integers(1, 4))
    equal = draw(st.booleans())
    kinds = [
        {model: draw(bases()) for model in draw(st.sampled_from((("b",), ("b", "c"))))}
        for _ in range(1 if equal else count)
    ]
    return [
        device(
            f"cuda:{number}",
            kind="card" if equal else "",
            memory_bytes=4000 * MB,
            bases=kinds[0 if equal else number],
            max_lanes=draw(st.sampled_from((0, 0, 3))),
            free_from=draw(st.sampled_from((0.0, 0.0, NOW + 50.0))),
        )
        for number in range(count)
    ]


@st.composite
def queues(draw: st.DrawFn, names: tuple[str, ...], most: int = 14) -> list[Task]:
    found: list[Task] = []
    for number in range(draw(st.integers(0, most))):
        key = f"t{number}"
        before = draw(st.lists(st.sampled_from(found), max_size=2)) if found else []
        common: dict[str, Any] = {
            "steps": draw(st.sampled_from((1, 7, 100, 900))),
            "priority": draw(st.sampled_from((0, 0, 0, 1, 5))),
            "value": draw(st.sampled_from((1.0, 1.0, 3.0))),
            "not_before": draw(st.sampled_from((None, None, None, NOW - 5.0, NOW + 40.0))),
            "deadline": draw(st.sampled_from((None, None, NOW + 60.0, NOW + 900.0))),
            "after": tuple(task.key for task in before if draw(st.booleans())),
        }
        if draw(st.integers(0, 7)) == 0:
            where = draw(st.sets(st.sampled_from(names)))
            found.append(
                full(key, draw(st.sampled_from((0.3, 2.0))), tuple(sorted(where)), **common)
            )
            continue
        found.append(
            lane(
                key,
                **common,
                model=draw(st.sampled_from(("b", "b", "b", "c"))),
                tokens=draw(st.sampled_from((30, 100, 480, 3000))),
                params=draw(st.sampled_from((1, 20))) * 4_000_000,
                most_tokens=draw(st.sampled_from((0, 2048))),
                longest=draw(st.sampled_from((0, 64, 1024))),
            )
        )
    return found


@st.composite
def windows(draw: st.DrawFn) -> tuple[Window, ...]:
    found = []
    at = NOW + draw(st.sampled_from((-100.0, 0.0, 30.0)))
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.sampled_from((10.0, 200.0, 5000.0)))
        found.append(Window(begin=at, end=at + length))
        at += length + draw(st.sampled_from((0.0, 300.0)))
    return tuple(found)
