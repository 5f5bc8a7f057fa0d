from pathlib import Path
from typing import Any

import psutil
import pytest

from slidepack.daemon.probe.memory import read_memory

GIB = 1 << 30
MEMINFO = "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\n"
SWAP = "SwapTotal: 8388608 kB\nSwapFree: 4194304 kB\n"
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max locked memory         {}              unlimited            bytes     \n"
)


def base(tree: Any, *, memlock: str = "8388608", release: str = "6.8.0") -> None:
    tree.write(
        {
            "proc/meminfo": MEMINFO + SWAP,
            "proc/self/limits": LIMITS.format(memlock),
            "proc/sys/kernel/osrelease": release,
        }
    )


def test_sizes_in_bytes(tree: Any) -> None:
    base(tree)
    memory = read_memory(tree.root)
    assert (memory.total_bytes, memory.available_bytes) == (32 * GIB, 16 * GIB)
    assert (memory.swap_total_bytes, memory.swap_free_bytes) == (8 * GIB, 4 * GIB)
    assert memory.memlock_bytes == 8 << 20
    assert memory.cgroup_limit_bytes is None
    assert memory.pin_note == ""


def test_an_unlimited_memlock_is_none(tree: Any) -> None:
    base(tree, memlock="unlimited")
    assert read_memory(tree.root).memlock_bytes is None


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (
            {
                "proc/self/cgroup": "0::/machine/box\n",
                "sys/fs/cgroup/machine/box/memory.max": "max\n",
                "sys/fs/cgroup/machine/memory.max": f"{4 * GIB}\n",
            },
            4 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            2 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
            },
            3 * GIB,
        ),
        (
            {"proc/self/cgroup": "0::/../../other\n", "sys/fs/cgroup/memory.max": f"{GIB}\n"},
            GIB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
        ),
    ],
    ids=["v2-parent", "v1", "v1-container-top", "v2-outside-namespace", "v1-no-limit"],
)
def test_the_lowest_cgroup_limit_binds(tree: Any, files: Any, limit: Any) -> None:
    base(tree)
    tree.write(files)
    assert read_memory(tree.root).cgroup_limit_bytes == limit


def test_wsl_has_a_pin_wall(tree: Any) -> None:
    base(tree, release="5.15.167.4-microsoft-standard-WSL2")
    assert "WSL 2" in read_memory(tree.root).pin_note


def test_a_missing_line_is_named(tree: Any) -> None:
    base(tree)
    tree.write({"proc/meminfo": MEMINFO})
    with pytest.raises(ValueError, match="SwapTotal"):
        read_memory(tree.root)


def test_this_machine_agrees_with_psutil() -> None:
    assert read_memory(Path("/")).total_bytes == psutil.virtual_memory().total


def test_what_a_control_group_uses_is_not_available(tree: Any) -> None:
    base(tree)
    tree.write(
        {
            "proc/self/cgroup": "0::/box\n",
            "sys/fs/cgroup/box/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/box/memory.current": f"{6 * GIB}\n",
            "sys/fs/cgroup/box/memory.stat": f"anon {5 * GIB}\ninactive_file {GIB}\n",
        }
    )
    assert read_memory(tree.root).available_bytes == 3 * GIB
