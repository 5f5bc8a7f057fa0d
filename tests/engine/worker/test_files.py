"""The worker's two append-only files: events out, commands in."""

import os
from pathlib import Path

import msgspec
import pytest

from slidepack.engine.contract.control import ControlCommand, encode_command
from slidepack.engine.contract.events import Warned, decode_event, encode_event
from slidepack.engine.worker.control import ControlReader
from slidepack.engine.worker.eventlog import EventLog


def _event(number: int) -> Warned:
    return Warned(at=1.0, code="X", message=f"m {number}")


def test_events_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for start in (0, 2):
        with EventLog(path) as log:
            log.append(_event(start))
            log.append(_event(start + 1))
    lines = path.read_bytes().splitlines()
    assert [decode_event(line) for line in lines] == [_event(i) for i in range(4)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_event_is_closed_off_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    write = os.write
    with EventLog(path) as log:
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        with pytest.raises(OSError, match="part of a line"):
            log.append(_event(0))
        monkeypatch.undo()
        log.append(_event(1))
    torn, whole = path.read_bytes().splitlines()
    assert torn == encode_event(_event(0))[:10]
    assert decode_event(whole) == _event(1)


def test_each_command_is_handed_out_once(tmp_path: Path) -> None:
    path = tmp_path / "control.jsonl"
    reader = ControlReader(path)
    assert list(reader.new_commands()) == []
    commands = [ControlCommand(command_id=str(i), kind="checkpoint") for i in range(3)]
    path.write_bytes(encode_command(commands[0]) + encode_command(commands[1])[:7])
    assert list(reader.new_commands()) == commands[:1]
    assert list(reader.new_commands()) == []
    path.write_bytes(b"".join(map(encode_command, commands)))
    assert list(reader.new_commands()) == commands[1:]
    assert list(reader.new_commands()) == []


def test_a_line_that_is_no_command_is_refused_once(tmp_path: Path) -> None:
    path = tmp_path / "control.jsonl"
    good = ControlCommand(command_id="1", kind="stop")
    path.write_bytes(b'{"command_id":"0","kind":"dance"}\n' + encode_command(good))
    reader = ControlReader(path)
    with pytest.raises(msgspec.ValidationError):
        list(reader.new_commands())
    assert list(reader.new_commands()) == [good]
