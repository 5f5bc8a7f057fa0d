import os
from pathlib import Path
from typing import Any

import pytest

from slidepack.daemon.probe.cpu import read_cpu


def cpuinfo(logical: int, flags: str = "fpu avx2 fma avx512f amx_bf16") -> str:
    block = "processor\t: {}\nmodel name\t: AMD Ryzen 9 7950X\nflags\t\t: {}\n\n"
    return "".join(block.format(number, flags) for number in range(logical))


def test_cores_model_and_extensions(tree: Any) -> None:
    tree.write({"proc/cpuinfo": cpuinfo(4)})
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        name = f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        tree.write({name: siblings})
    cpu = read_cpu(tree.root)
    assert cpu.model == "AMD Ryzen 9 7950X"
    assert (cpu.physical_cores, cpu.logical_cores) == (2, 4)
    assert cpu.extensions == ("avx2", "fma", "avx512f", "amx_bf16")
    assert cpu.quota_cores is None
    assert cpu.allowed_cores == len(os.sched_getaffinity(0))


def test_arm_names_its_features_and_its_board(tree: Any) -> None:
    tree.write(
        {
            "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n",
            "proc/device-tree/model": "Raspberry Pi 5 Model B\0",
        }
    )
    cpu = read_cpu(tree.root)
    assert cpu.model == "Raspberry Pi 5 Model B"
    assert cpu.extensions == ("asimd", "bf16", "i8mm", "sve")
    assert cpu.physical_cores == 1


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        (
            {
                "proc/self/cgroup": "0::/user.slice/app\n",
                "sys/fs/cgroup/user.slice/app/cpu.max": "max 100000",
                "sys/fs/cgroup/user.slice/cpu.max": "250000 100000",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/box\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            4.0,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
    ],
    ids=["v2-parent", "v1", "v2-none"],
)
def test_the_cgroups_time_quota(tree: Any, files: Any, quota: Any) -> None:
    tree.write({"proc/cpuinfo": cpuinfo(8), **files})
    assert read_cpu(tree.root).quota_cores == quota


def test_an_empty_cpuinfo_is_an_error(tree: Any) -> None:
    tree.write({"proc/cpuinfo": "\n"})
    with pytest.raises(ValueError, match="no processor"):
        read_cpu(tree.root)


def test_this_machine_answers() -> None:
    cpu = read_cpu(Path("/"))
    assert cpu.model
    assert 1 <= cpu.physical_cores <= cpu.logical_cores
