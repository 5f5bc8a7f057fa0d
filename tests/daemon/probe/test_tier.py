"""Which drives training state may lie on: by their kind, their room, and their wear."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slidepack.daemon.probe.disk_speed import DiskSpeed
from slidepack.daemon.probe.endurance import DriveWear
from slidepack.daemon.probe.tier import Tier, read_tier

GB = 10**9
TB = 10**12


def _wear(disk: Path, **changes: Any) -> DriveWear:
    plain = DriveWear(
        disk=disk.name,
        model=f"model of {disk.name}",
        size_bytes=TB,
        written_bytes=None,
        used_share=None,
        rated_write_bytes=200.0 * TB,
        rated_source="a guess",
        problem="no rights",
    )
    return msgspec.structs.replace(plain, **changes)


def _machine(tree: Any, *drives: tuple[str, str, str], options: str = "rw") -> None:
    """Write drives, each with its name, its `rotational` and its mount point."""
    lines = []
    for number, (name, rotational, mount) in enumerate(drives):
        tree.write({f"sys/devices/pci/block/{name}/queue/rotational": f"{rotational}\n"})
        tree.link(f"sys/dev/block/8:{number}", str(tree.root / "sys/devices/pci/block" / name))
        lines.append(f"3{number} 1 8:{number} / {mount} {options} - ext4 /dev/{name} rw\n")
    lines.append("90 1 0:9 / /ram rw - tmpfs tmpfs rw\n")
    tree.write({"proc/self/mountinfo": "".join(lines)})


def _read(tree: Any, *folders: str, use: Any = "auto", **options: Any) -> Tier:
    options.setdefault("wear_of", _wear)
    options.setdefault("speeds", {})
    options.setdefault("usage", lambda mount: (TB, (500 if mount == "/b" else 800) * GB))
    data_dir = Path(options.pop("data_dir", "/a/data"))
    return read_tier(tree.root, data_dir, [Path(folder) for folder in folders], use, **options)


@pytest.fixture
def machine(tree: Any) -> Any:
    _machine(
        tree, ("nvme0n1", "0", "/a"), ("nvme1n1", "0", "/b"), ("sda", "0", "/s"), ("sdb", "1", "/h")
    )
    return tree


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("/a/x", ""),
        ("/s/x", ""),
        ("/h/x", "/h/x is on a rotating disk"),
        ("/ram/x", "the main memory itself"),
        ("/elsewhere", "not known"),
    ],
)
def test_only_solid_state_drives_are_used_unless_the_setting_says_so(
    folder: str, told: str, machine: Any
) -> None:
    refused = _read(machine, folder).room.refused
    assert told in refused
    assert bool(refused) == bool(told)
    assert _read(machine, folder, use="on").room.refused == ""
    assert 'nvme is "off"' in _read(machine, folder, use="off").room.refused


def test_stripes_are_as_large_and_as_fast_as_the_least_of_the_drives(machine: Any) -> None:
    def speed(folder: str, read: float, write: float, both: float) -> DiskSpeed:
        return DiskSpeed(
            folder=folder,
            read_bytes_per_second=read,
            write_bytes_per_second=write,
            both_bytes_per_second=both,
            measured_bytes=GB,
            direct=True,
        )

    speeds = {
        Path("/a/x"): speed("/a/x", 5e9, 1e9, 4e9),
        Path("/b/x"): speed("/b/x", 3e9, 4e9, 5e9),
    }
    room = _read(machine, "/a/x", "/b/x", speeds=speeds).room
    assert (room.read_bytes_per_second, room.write_bytes_per_second) == (6e9, 2e9)
    assert room.both_bytes_per_second == 8e9
    assert room.free_bytes == 1000 * GB
    assert room.measured
    guessed = _read(machine, "/a/x", "/b/x", speeds={Path("/a/x"): speeds[Path("/a/x")]}).room
    assert not guessed.measured
    assert guessed.read_bytes_per_second == guessed.both_bytes_per_second == 5e9
    # Two folders of one drive share its room and its rate.
    shared = _read(machine, "/a/x", "/a/y", speeds=speeds | {Path("/a/y"): speeds[Path("/a/x")]})
    assert shared.room.free_bytes == 800 * GB
    assert shared.room.read_bytes_per_second == 5e9
    assert shared.room.write_bytes_per_second == 1e9
    assert shared.room.both_bytes_per_second == 4e9


def test_checkpoints_can_be_links_on_the_data_directorys_own_mount_alone(machine: Any) -> None:
    assert _read(machine, "/a/x", data_dir="/a/data").room.linked
    assert not _read(machine, "/a/x", data_dir="/b/data").room.linked
    assert not _read(machine, "/a/x", "/b/x", data_dir="/a/data").room.linked


def test_the_drive_that_ends_first_ends_the_stripes(machine: Any) -> None:
    written = {"nvme0n1": 150 * TB, "nvme1n1": 20 * TB}
    tier = _read(
        machine,
        "/a/x",
        "/b/x",
        wear_of=lambda disk: _wear(disk, written_bytes=written[disk.name], used_share=0.5),
    )
    assert tier.room.rated_write_bytes == 400 * TB
    assert tier.room.written_bytes == 300 * TB
    assert "model of nvme0n1: 50% of its life used, 150.0 TB written" in tier.words()
    lacking = _read(machine, "/a/x", wear_of=lambda disk: _wear(disk, rated_write_bytes=None))
    assert lacking.room.rated_write_bytes is None
    assert lacking.words() == ""
    assert "takes about 200 TB (a guess; no rights)" in _read(machine, "/a/x").words()


def test_a_drive_with_more_folders_takes_more_of_what_is_written(machine: Any) -> None:
    written = {"nvme0n1": 0, "nvme1n1": 170 * TB}

    def worn(disk: Path) -> DriveWear:
        return _wear(disk, written_bytes=written[disk.name])

    # The second drive takes a third of all, and has 30 of its 200 TB left.
    uneven = _read(machine, "/a/x", "/a/y", "/b/x", wear_of=worn).room
    assert uneven.rated_write_bytes == pytest.approx(600 * TB)
    assert uneven.written_bytes == pytest.approx(510 * TB)
    # Two thirds of all, where it has two of the folders.
    turned = _read(machine, "/a/x", "/b/x", "/b/y", wear_of=worn).room
    assert turned.rated_write_bytes == pytest.approx(300 * TB)
    assert turned.written_bytes == pytest.approx(255 * TB)


def test_a_guess_is_said_to_be_one_also_where_the_log_is_readable(machine: Any) -> None:
    def young(disk: Path) -> DriveWear:
        return _wear(disk, written_bytes=2 * TB, used_share=0.01, problem="")

    words = _read(machine, "/a/x", wear_of=young).words()
    assert words.endswith("1% of its life used, 2.0 TB written, takes about 200 TB (a guess)")


def test_a_read_only_file_system_is_refused(tree: Any) -> None:
    _machine(tree, ("nvme0n1", "0", "/a"), options="ro,relatime")
    assert "read-only" in _read(tree, "/a/x", use="on").room.refused
