"""Events and commands: every kind there and back, one line each."""

from typing import Any, get_args

import msgspec
import pytest
from support.reports import made_report

from slidepack.engine.contract.control import ControlCommand, decode_command, encode_command
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.events import (
    AnyEvent,
    Checkpointed,
    ControlDone,
    Evaluated,
    Failed,
    Finished,
    Judged,
    LaneJoined,
    LaneLeft,
    PhaseChanged,
    Progress,
    Sampled,
    Started,
    StepTimed,
    Warned,
    Yielded,
    decode_event,
    encode_event,
    split_complete_lines,
)

EVENTS: list[AnyEvent] = [
    Started(
        at=1.5,
        pid=7,
        device="cpu",
        precision="fp32",
        total_steps=9,
        from_step=0,
        train_rows=3,
        eval_rows=1,
        trainable_params=5,
        attention="sdpa: why",
    ),
    PhaseChanged(at=1.5, phase="loading"),
    Progress(
        at=1.5,
        step=1,
        total_steps=9,
        loss=0.5,
        grad_norm=1.0,
        lr=1e-4,
        tokens=10,
        supervised_tokens=4,
        tokens_per_second=5.0,
        eta_seconds=2.0,
    ),
    Evaluated(at=1.5, step=0, split="selection", loss=1.0, rows=2, supervised_tokens=3),
    Sampled(at=1.5, step=0, prompt="a\nb", answer="木\u2028"),
    Judged(at=1.5, report=made_report(9, 4)),
    Checkpointed(at=1.5, step=4, path="p", seconds=0.1, reason="schedule"),
    LaneJoined(at=1.5, lane="l", step=1),
    LaneLeft(at=1.5, lane="l", step=2, reason="done"),
    StepTimed(at=1.0, tokens=4096, lanes=3, seconds=0.25, steps=10),
    ControlDone(at=1.5, command_id="c", outcome="done"),
    Warned(at=1.5, code="X", message="m"),
    Finished(
        at=1.5,
        steps=9,
        result="r",
        eval_loss_before=None,
        eval_loss_after=0.5,
        seconds=3.0,
        tokens_per_second=5.0,
        peak_host_bytes=6,
        peak_device_bytes=7,
    ),
    Yielded(at=1.5, reason="r"),
    Failed(at=1.5, error=ErrorReport(code="RUN-FAILED", what="w", why="y", fix="f")),
]


def test_every_kind_is_there() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(AnyEvent))
    tags = [event.__struct_config__.tag for event in EVENTS]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_there_and_back(event: AnyEvent) -> None:
    line = encode_event(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_event(line[:-1]) == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_of_another_version_are_refused(event: AnyEvent) -> None:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for changed in (
        fields | {"unknown": 1},
        fields | {"at": "now"},
        fields | {"type": "surprise"},
        {name: value for name, value in fields.items() if name != "at"},
    ):
        with pytest.raises(msgspec.ValidationError):
            decode_event(msgspec.json.encode(changed))


def test_a_diverging_step_is_an_event_like_any_other() -> None:
    event = msgspec.structs.replace(EVENTS[2], loss=None, grad_norm=None)
    assert decode_event(encode_event(event)) == event
    assert decode_event(encode_event(msgspec.structs.replace(event, loss=float("nan")))) == event


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", []),
        (b"a\n", [b"a"]),
        (b"a\nb\nc", [b"a", b"b"]),
        (b"\n\nx", [b"", b""]),
        (b"a\r\nb\n", [b"a\r", b"b"]),
    ],
)
def test_only_complete_lines_are_taken(data: bytes, lines: list[bytes]) -> None:
    assert list(split_complete_lines(data)) == lines


@pytest.mark.parametrize("kind", ["checkpoint", "stop"])
def test_commands_there_and_back(kind: Any) -> None:
    command = ControlCommand(command_id="c", kind=kind)
    line = encode_command(command)
    assert line.count(b"\n") == 1
    assert decode_command(line) == command
    wrong: list[Any] = [{"command_id": "c", "kind": "dance"}, {"kind": kind}, {"x": 1}, []]
    for changed in wrong:
        with pytest.raises(msgspec.ValidationError):
            decode_command(msgspec.json.encode(changed))


def test_events_of_an_older_version_load() -> None:
    yielded = decode_event(b'{"type":"yielded","at":1.5,"reason":"r"}')
    assert yielded == Yielded(at=1.5, reason="r", seconds=None)
    saved = decode_event(
        b'{"type":"checkpoint","at":1.5,"step":4,"path":"p","seconds":0.1,"reason":"r"}'
    )
    assert isinstance(saved, Checkpointed)
    assert saved.healthy
