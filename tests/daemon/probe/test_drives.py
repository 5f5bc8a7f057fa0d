import os
from pathlib import Path
from typing import Any

import pytest

from slidepack.daemon.probe.drives import MAX_DRIVES, read_drives

GB = 10**9


def line(numbers: str, mount: str, fs: str, device: str, options: str = "rw,relatime") -> str:
    return f"30 1 {numbers} / {mount} {options} shared:1 - {fs} {device} rw\n"


def write_mounts(tree: Any, *lines: str) -> None:
    tree.write({"proc/self/mountinfo": "".join(lines)})


def add_disk(tree: Any, name: str, numbers: str, rotational: str, part: str = "") -> None:
    disk = f"sys/devices/pci/block/{name}"
    tree.write({f"{disk}/queue/rotational": f"{rotational}\n"})
    if part:
        tree.write({f"{disk}/{part}/partition": "1\n"})
    target = f"{disk}/{part}" if part else disk
    tree.link(f"sys/class/block/{name}", str(tree.root / disk))
    if part:
        tree.link(f"sys/class/block/{part}", str(tree.root / target))
    tree.link(f"sys/dev/block/{numbers}", str(tree.root / target))


def read(tree: Any, data: str = "/home/me/data", home: str = "/home/me", **options: Any) -> Any:
    options.setdefault("usage", lambda mount: (100 * GB, len(mount) * GB))
    return read_drives(tree.root, Path(data), Path(home), **options).drives


def test_a_desktop_with_three_kinds_of_drive(tree: Any) -> None:
    add_disk(tree, "nvme0n1", "259:2", "0", "nvme0n1p2")
    add_disk(tree, "sda", "8:1", "0", "sda1")
    add_disk(tree, "sdb", "8:17", "1", "sdb1")
    write_mounts(
        tree,
        line("259:2", "/", "ext4", "/dev/nvme0n1p2"),
        line("0:5", "/proc", "proc", "proc"),
        line("0:40", "/run", "tmpfs", "tmpfs"),
        line("7:1", "/snap/core/1", "squashfs", "/dev/loop1", "ro"),
        line("259:1", "/boot/efi", "ext4", "/dev/nvme0n1p1"),
        line("8:1", "/home", "xfs", "/dev/sda1"),
        line("8:17", r"/mnt/big\040disk", "ext4", "/dev/sdb1"),
    )
    drives = read(tree)
    assert [(drive.mount, drive.kind, drive.fs_type) for drive in drives] == [
        ("/home", "ssd", "xfs"),
        ("/", "nvme", "ext4"),
        ("/mnt/big disk", "hdd", "ext4"),
    ]
    assert [(drive.holds_data_dir, drive.holds_home) for drive in drives] == [
        (True, True),
        (False, False),
        (False, False),
    ]
    assert (drives[0].total_bytes, drives[0].free_bytes) == (100 * GB, 5 * GB)


def test_a_device_mounted_twice_is_listed_once(tree: Any) -> None:
    write_mounts(
        tree,
        line("0:30", "/", "btrfs", "/dev/nvme0n1p3"),
        line("0:30", "/home", "btrfs", "/dev/nvme0n1p3"),
        line("0:30", "/var/bind", "btrfs", "/dev/nvme0n1p3"),
    )
    (drive,) = read(tree)
    assert drive.mount == "/home"
    assert drive.holds_data_dir
    assert drive.holds_home


def test_btrfs_on_an_encrypted_nvme_is_nvme(tree: Any) -> None:
    add_disk(tree, "nvme0n1", "259:3", "0", "nvme0n1p3")
    tree.write({"sys/devices/virtual/block/dm-0/dm/name": "luks-root\n"})
    tree.write({"sys/devices/virtual/block/dm-0/queue/rotational": "0\n"})
    dm = tree.root / "sys/devices/virtual/block/dm-0"
    tree.link("sys/class/block/dm-0", str(dm))
    tree.link("sys/devices/virtual/block/dm-0/slaves/nvme0n1p3", "unused")
    write_mounts(tree, line("0:30", "/", "btrfs", "/dev/mapper/luks-root"))
    (drive,) = read(tree)
    assert drive.kind == "nvme"


def test_a_raid_is_as_slow_as_its_slowest_drive(tree: Any) -> None:
    add_disk(tree, "sda", "8:0", "0")
    add_disk(tree, "sdb", "8:16", "1")
    for name in ("sda", "sdb"):
        tree.link(f"sys/devices/virtual/block/md0/slaves/{name}", "unused")
    tree.link("sys/dev/block/9:0", str(tree.root / "sys/devices/virtual/block/md0"))
    write_mounts(tree, line("9:0", "/", "ext4", "/dev/md0"))
    assert read(tree)[0].kind == "hdd"


@pytest.mark.parametrize(
    ("fs", "device", "kind"),
    [
        ("nfs4", "server:/export", "network"),
        ("9p", "C:\\134", "network"),
        ("tmpfs", "tmpfs", "memory"),
        ("overlay", "overlay", "unknown"),
    ],
)
def test_the_data_directorys_file_system_is_shown_whatever_its_type(
    tree: Any, fs: str, device: str, kind: str
) -> None:
    write_mounts(
        tree,
        line("8:1", "/", "ext4", "/dev/sda1"),
        line("0:50", "/data", fs, device),
        line("0:51", "/other", fs, "elsewhere"),
    )
    drives = read(tree, data="/data/not/yet/there")
    assert [(drive.mount, drive.kind) for drive in drives] == [("/data", kind), ("/", "unknown")]


def test_virtual_disks_are_not_called_spinning(tree: Any) -> None:
    add_disk(tree, "vda", "254:0", "1")
    add_disk(tree, "sdc", "8:32", "1")
    tree.write({"sys/devices/pci/block/sdc/device/vendor": "Msft    \n"})
    write_mounts(
        tree,
        line("254:0", "/", "ext4", "/dev/vda"),
        line("8:32", "/mnt/wsl", "ext4", "/dev/sdc"),
    )
    assert [drive.kind for drive in read(tree)] == ["unknown", "unknown"]


def test_the_list_is_capped_and_keeps_the_data_drive(tree: Any) -> None:
    write_mounts(
        tree, *(line(f"8:{n}", f"/mnt/{n:02}", "ext4", f"/dev/sd{n}") for n in range(1, 30))
    )
    drives = read(tree, data="/mnt/29/x", home="/mnt/28")
    assert len(drives) == MAX_DRIVES
    assert [drive.mount for drive in drives[:2]] == ["/mnt/29", "/mnt/28"]


def test_the_last_of_stacked_mounts_counts(tree: Any) -> None:
    write_mounts(
        tree,
        line("8:1", "/", "ext4", "/dev/old"),
        line("8:2", "/", "ext4", "/dev/new", "ro,relatime"),
    )
    (drive,) = read(tree)
    assert (drive.device, drive.read_only) == ("/dev/new", True)


def test_a_drive_that_does_not_answer_is_left_out_unless_it_holds_the_data(tree: Any) -> None:
    write_mounts(
        tree,
        line("8:1", "/", "ext4", "/dev/sda1"),
        line("8:2", "/mnt/dead", "ext4", "/dev/sdb1"),
    )

    def usage(mount: str) -> tuple[int, int]:
        if mount == "/mnt/dead":
            raise OSError(5, "Input/output error")
        return GB, GB

    assert [drive.mount for drive in read(tree, usage=usage)] == ["/"]
    with pytest.raises(OSError, match="Input/output"):
        read(tree, data="/mnt/dead/x", usage=usage)


def test_this_machine_answers(tmp_path: Path) -> None:
    drives = read_drives(Path("/"), tmp_path, Path(os.path.expanduser("~"))).drives
    (data,) = [drive for drive in drives if drive.holds_data_dir]
    assert 0 <= data.free_bytes <= data.total_bytes
