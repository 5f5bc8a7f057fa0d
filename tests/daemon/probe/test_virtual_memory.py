from pathlib import Path
from typing import Any

import psutil
import pytest

from slidepack.daemon.probe.virtual_memory import read_virtual_memory

HEAD = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
GIB = 1 << 30


def swaps(tree: Any, *lines: str) -> None:
    tree.write(
        {
            "proc/swaps": HEAD + "".join(f"{line}\n" for line in lines),
            "proc/self/mountinfo": "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
            "31 1 259:1 / /fast rw - ext4 /dev/nvme0n1 rw\n",
            "sys/devices/block/sda/queue/rotational": "1\n",
            "sys/devices/block/sda/sda1/partition": "1\n",
            "sys/devices/block/sda/sda2/partition": "2\n",
            "sys/devices/block/nvme0n1/queue/rotational": "0\n",
        }
    )
    blocks = tree.root / "sys" / "devices" / "block"
    for name, path in {"sda1": "sda/sda1", "sda2": "sda/sda2", "nvme0n1": "nvme0n1"}.items():
        tree.link(f"sys/class/block/{name}", str(blocks / path))


@pytest.mark.parametrize(
    ("line", "path", "kind"),
    [
        ("/dev/zram0 partition 8388604 1048576 100", "/dev/zram0", "zram"),
        ("/dev/sda2 partition 8388604 1048576 -2", "/dev/sda2", "hdd"),
        ("/fast/swap file 8388604 1048576 -2", "/fast/swap", "nvme"),
        (r"/swap\040file file 8388604 1048576 -2", "/swap file", "hdd"),
        ("/dev/mapper/gone partition 8388604 1048576 -2", "/dev/mapper/gone", "unknown"),
    ],
    ids=["zram", "partition", "file", "file-with-a-blank", "unknown"],
)
def test_areas(tree: Any, line: str, path: str, kind: str) -> None:
    swaps(tree, line)
    (area,) = read_virtual_memory(tree.root).swap
    assert (area.path, area.kind) == (path, kind)
    assert (area.size_bytes, area.used_bytes) == (8 * GIB - 4096, GIB)


def test_no_swap_and_no_settings(tree: Any) -> None:
    swaps(tree)
    memory = read_virtual_memory(tree.root)
    assert memory.swap == ()
    assert not memory.strict_overcommit
    assert memory.max_map_count is None
    assert memory.commit_limit_bytes is None


def test_settings(tree: Any) -> None:
    swaps(tree)
    tree.write(
        {
            "proc/meminfo": "CommitLimit: 8 kB\nCommitted_AS: 4 kB\n",
            "proc/sys/vm/overcommit_memory": "2\n",
            "proc/sys/vm/max_map_count": "65530\n",
        }
    )
    memory = read_virtual_memory(tree.root)
    assert memory.strict_overcommit
    assert (memory.committed_bytes, memory.commit_limit_bytes) == (4096, 8192)
    assert memory.max_map_count == 65530


def test_a_line_that_the_kernel_does_not_write_is_an_error(tree: Any) -> None:
    swaps(tree, "/swapfile file")
    with pytest.raises(ValueError, match="unpack"):
        read_virtual_memory(tree.root)


def test_this_machine_agrees_with_psutil() -> None:
    areas = read_virtual_memory(Path("/")).swap
    # Each area gives a page to its own header.
    total = psutil.swap_memory().total
    assert abs(sum(area.size_bytes for area in areas) - total) <= 65536 * len(areas)
