"""The limits and the environment of the daemon's process, which its runs inherit."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import PATIENCE

from slidepack.daemon.instance import DaemonAddress, publish_address
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.probe.environment import read_environment
from slidepack.daemon.probe.limits import read_limits
from slidepack.daemon.probe.running_daemon import daemon_pid

ROOT = Path("/")
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max file size             unlimited            unlimited            bytes     \n"
    "Max open files            256                  4096                 files     \n"
    "Max locked memory         8388608              unlimited            bytes     \n"
    "Max address space         1000                 unlimited            bytes     \n"
)


@pytest.fixture
def start() -> Iterator[Any]:
    """Start processes with a limit and an environment of their own, under a name."""
    started = []

    def begin(name: str) -> int:
        code = "import sys; print('up', flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            ["sh", "-c", 'ulimit -n 123; exec "$@"', "sh", sys.executable, "-c", code, name],
            env={"PYTHONPATH": "/some/where", "SECRET": "key"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child.pid

    yield begin
    for child in started:
        child.communicate(timeout=PATIENCE)


def publish(home: Path, pid: int) -> None:
    address = DaemonAddress(url="http://127.0.0.1:1", token="t", pid=pid)
    publish_address(DataPaths(home), address)


def test_a_daemon_that_runs_is_asked_instead_of_the_shell(tmp_path: Path, start: Any) -> None:
    pid = start("slidepack")
    publish(tmp_path, pid)
    assert daemon_pid(ROOT, tmp_path) == pid
    limits = read_limits(ROOT, pid)
    assert (limits.whose, limits.open_files) == ("daemon", 123)
    environment = read_environment(ROOT, pid, {"LD_PRELOAD": "of this shell"})
    assert environment.whose == "daemon"
    assert environment.variables == {"PYTHONPATH": "/some/where"}


def test_a_pid_that_belongs_to_another_program_now_is_no_daemon(tmp_path: Path, start: Any) -> None:
    publish(tmp_path, start("game"))
    assert daemon_pid(ROOT, tmp_path) is None


def test_a_daemon_that_was_killed_left_a_file_and_no_process(tmp_path: Path, tree: Any) -> None:
    publish(tmp_path, 4711)
    assert daemon_pid(tree.root, tmp_path) is None


def test_no_daemon_at_all(tmp_path: Path) -> None:
    assert daemon_pid(ROOT, tmp_path) is None


def test_limits_of_this_shell(tree: Any) -> None:
    tree.write({"proc/self/limits": LIMITS})
    limits = read_limits(tree.root, None)
    assert limits.whose == "shell"
    assert limits.open_files == 256
    assert limits.locked_bytes == 8 << 20
    assert limits.address_space_bytes == 1000
    assert limits.file_size_bytes is None


def test_the_control_group_of_the_daemon_and_not_of_the_shell(tree: Any) -> None:
    tree.write(
        {
            "proc/self/limits": LIMITS,
            "proc/7/limits": LIMITS,
            "proc/self/cgroup": "0::/shell\n",
            "proc/7/cgroup": "0::/slidepack\n",
            "sys/fs/cgroup/shell/memory.max": "max\n",
            "sys/fs/cgroup/slidepack/memory.max": "4096\n",
        }
    )
    assert read_limits(tree.root, 7).cgroup_memory_bytes == 4096
    assert read_limits(tree.root, None).cgroup_memory_bytes is None


def test_only_telling_variables_are_reported(tree: Any) -> None:
    own = {"HF_TOKEN": "secret", "CUDA_VISIBLE_DEVICES": "", "HOME": "/home/me"}
    environment = read_environment(tree.root, None, own)
    assert environment.whose == "shell"
    assert environment.variables == {"CUDA_VISIBLE_DEVICES": ""}


def test_gpu_libraries_of_the_library_path_are_named(tree: Any) -> None:
    tree.write(
        {
            "usr/local/cuda/lib64/libcudart.so.11.0": "",
            "usr/local/cuda/lib64/libcudnn_ops_infer.so.8": "",
            "usr/local/cuda/lib64/libcudart_static.a": "",
            "usr/lib/wsl/lib/libcuda.so.1": "",
            "opt/game/libSDL2.so": "",
        }
    )
    path = "/usr/local/cuda/lib64:/usr/lib/wsl/lib:/opt/game:relative:/not/there:"
    environment = read_environment(tree.root, None, {"LD_LIBRARY_PATH": path})
    assert environment.foreign_libraries == (
        "/usr/local/cuda/lib64/libcudart.so.11.0",
        "/usr/local/cuda/lib64/libcudnn_ops_infer.so.8",
    )
