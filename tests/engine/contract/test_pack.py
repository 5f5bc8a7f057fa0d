"""The pack folder and its commands: what is written is read, and what cannot be is refused."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slidepack.engine.contract.control import ControlCommand, decode_command, encode_command
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import ModelRef
from slidepack.engine.contract.pack import LaneRef, PackFolder, PackSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunIdentity

BASE = ModelRef(model_id="m", path="/models/m", content_hash="-")
LANES = (LaneRef(lane="1", folder="/runs/1", priority=-3), LaneRef(lane="2", folder="/runs/2"))
SPEC = PackSpec(base=BASE, lanes=LANES, max_lanes=4, exact=True)
PLAN = RunPlan(
    device="cpu",
    precision="fp32",
    layer_weights=("device",),
    layer_activations=("keep",),
    optimizer_state="device",
    cpu_threads=1,
    micro_batch_tokens=64,
    predicted_device_bytes=0,
    predicted_host_bytes=1,
    predicted_disk_bytes=1,
    reason="fits",
)
IDENTITY = RunIdentity(job_id="p", attempt=1, nonce="n")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = PackFolder(tmp_path / "packs" / "1")
    folder.create(SPEC, PLAN, IDENTITY)
    assert folder.read_pack() == SPEC
    assert folder.read_plan() == PLAN
    assert msgspec.json.decode(folder.identity.read_bytes(), type=RunIdentity) == IDENTITY
    assert {path.name for path in folder.root.iterdir()} == {"pack.json", "plan.json", "run.json"}
    with pytest.raises(FileExistsError):
        folder.create(SPEC, PLAN, IDENTITY)


def test_what_a_pack_need_not_say() -> None:
    spec = PackSpec(base=BASE, lanes=())
    assert (spec.max_lanes, spec.exact) == (0, False)
    assert LaneRef(lane="l", folder="f").priority == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lanes": (*LANES, LaneRef(lane="1", folder="/runs/3"))}, "'1', '2', '1'"),
        ({"max_lanes": -1}, "max_lanes is -1"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    fields: dict[str, Any] = {"base": BASE, "lanes": LANES, **changes}
    with pytest.raises(ValueError, match=words):
        PackSpec(**fields)
    # Nor may a file say it.
    folder = PackFolder(tmp_path)
    folder.pack.write_bytes(msgspec.json.encode(fields))
    with pytest.raises(SlidepackError, match=words) as caught:
        folder.read_pack()
    assert caught.value.report.code == "RUN-FOLDER-BROKEN"


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"lanes": []}', b"\xff"])
def test_a_broken_folder_is_a_coded_error(tmp_path: Path, content: bytes | None) -> None:
    folder = PackFolder(tmp_path)
    if content is not None:
        for path in (folder.pack, folder.plan):
            path.write_bytes(content)
    for read in (folder.read_pack, folder.read_plan):
        with pytest.raises(SlidepackError) as caught:
            read()
        assert caught.value.report.code == "RUN-FOLDER-BROKEN"


def test_unknown_fields_are_refused() -> None:
    for value in (SPEC, LANES[0]):
        fields = msgspec.to_builtins(value) | {"surprise": 1}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(fields, type(value))


@pytest.mark.parametrize(
    "command",
    [
        ControlCommand(command_id="c", kind="join", lane="7", folder="/runs/木\n7", priority=-2),
        ControlCommand(command_id="c", kind="leave", lane="7", reason="it makes\nroom"),
    ],
    ids=lambda command: str(command.kind),
)
def test_commands_there_and_back(command: ControlCommand) -> None:
    line = encode_command(command)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_command(line) == command
    fields: dict[str, Any] = msgspec.to_builtins(command)
    for changed in ({"lane": 7}, {"priority": "high"}, {"kind": "dance"}, {"surprise": 1}):
        with pytest.raises(msgspec.ValidationError):
            decode_command(msgspec.json.encode(fields | changed))


def test_commands_of_a_run_of_its_own_name_no_lane() -> None:
    command = decode_command(b'{"command_id": "c", "kind": "stop"}')
    assert (command.lane, command.folder, command.priority, command.reason) == ("", "", 0, "")
