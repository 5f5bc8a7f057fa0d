"""The surroundings as a whole, and the small files among them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from slidepack.daemon.instance import DaemonAddress, publish_address
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.probe.disk_speed import DiskSpeed, DiskUnmeasured
from slidepack.daemon.probe.environment import Environment
from slidepack.daemon.probe.limits import Limits
from slidepack.daemon.probe.packages import SearchPath
from slidepack.daemon.probe.power import PowerInfo
from slidepack.daemon.probe.problem import ProbeFailure, ProbeProblem
from slidepack.daemon.probe.service import ServiceInfo, read_service
from slidepack.daemon.probe.setup import SetupReport, SetupSources, probe_setup
from slidepack.daemon.probe.wsl_config import WslConfig, read_wsl_configs

AWAKE = PowerInfo(
    battery_percent=None,
    plugged_in=None,
    systemd=False,
    awake_code="",
    awake_why="",
    awake_fix="",
)


@pytest.fixture
def machine(tree: Any) -> Any:
    tree.write(
        {
            "proc/self/limits": "Max open files            256    4096    files\n",
            "proc/self/mountinfo": "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
            "proc/swaps": "Filename Type Size Used Priority\n",
        }
    )
    return tree


def sources(tree: Any, **changes: Any) -> SetupSources:
    def search(_: str) -> SearchPath:
        return SearchPath(pythonpath=(), rest=(), user_site=None, sites=(), cwd=None)

    defaults = SetupSources(
        root=tree.root,
        environment={"PYTHONPATH": "/x", "XDG_CONFIG_HOME": str(tree.root / "config")},
        search=search,
        measure=lambda _: DiskUnmeasured(why="a test"),
        power=lambda _: AWAKE,
        clock=lambda: None,
    )
    return msgspec.structs.replace(defaults, **changes)


def test_a_whole_machine(machine: Any, tmp_path: Path) -> None:
    searched: list[str] = []

    def search(pythonpath: str) -> SearchPath:
        searched.append(pythonpath)
        return SearchPath(pythonpath=(), rest=(), user_site=None, sites=(), cwd=None)

    setup = probe_setup(tmp_path, sources(machine, search=search))
    assert not any(isinstance(item, ProbeProblem) for item in msgspec.structs.astuple(setup))
    assert setup.daemon_pid is None
    assert searched == ["/x"]
    assert msgspec.json.decode(msgspec.json.encode(setup), type=SetupReport) == setup


def test_a_running_daemon_is_asked_for_what_its_runs_inherit(machine: Any, tmp_path: Path) -> None:
    publish_address(DataPaths(tmp_path), DaemonAddress(url="http://127.0.0.1:1", token="t", pid=7))
    machine.write(
        {
            "proc/7/cmdline": "/venv/bin/python\0/venv/bin/slidepack\0serve\0",
            "proc/7/limits": "Max open files            99    4096    files\n",
            "proc/7/environ": "PYTHONPATH=/theirs\0",
        }
    )
    setup = probe_setup(tmp_path, sources(machine))
    assert setup.daemon_pid == 7
    assert isinstance(setup.limits, Limits)
    assert setup.limits.open_files == 99
    assert isinstance(setup.environment, Environment)
    assert setup.environment.variables == {"PYTHONPATH": "/theirs"}


@pytest.mark.parametrize(
    ("item", "missing"), [("limits", "proc/self/limits"), ("virtual_memory", "proc/swaps")]
)
def test_a_failing_item_leaves_the_rest(
    machine: Any, tmp_path: Path, item: str, missing: str
) -> None:
    (machine.root / missing).unlink()
    setup = probe_setup(tmp_path, sources(machine))
    found = msgspec.structs.asdict(setup)
    assert [name for name in found if isinstance(found[name], ProbeProblem)] == [item]
    assert "FileNotFoundError" in found[item].why


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("not a number")])
def test_a_probe_that_breaks_is_told(machine: Any, tmp_path: Path, error: Exception) -> None:
    def breaks(_: Path) -> Any:
        raise error

    setup = probe_setup(tmp_path, sources(machine, power=breaks, measure=breaks))
    for item in (setup.power, setup.disk_speed):
        assert isinstance(item, ProbeProblem)
        assert str(error) in item.why


def test_a_disk_that_refuses_keeps_its_own_words(machine: Any, tmp_path: Path) -> None:
    def refuses(_: Path) -> DiskSpeed:
        raise ProbeFailure("It cannot be written.", why="/data: Permission denied", fix="chown")

    disk = probe_setup(tmp_path, sources(machine, measure=refuses)).disk_speed
    assert isinstance(disk, ProbeProblem)
    assert (disk.what, disk.why, disk.fix) == (
        "It cannot be written.",
        "/data: Permission denied",
        "chown",
    )


def test_the_module_for_gds(machine: Any, tmp_path: Path) -> None:
    assert not probe_setup(tmp_path, sources(machine)).nvidia_fs
    machine.write({"proc/driver/nvidia-fs/version": "2.24\n"})
    assert probe_setup(tmp_path, sources(machine)).nvidia_fs


def test_the_unit_is_looked_for_where_the_user_has_it(machine: Any, tmp_path: Path) -> None:
    machine.write({"config/systemd/user/slidepack.service": "[Unit]\n"})
    service = probe_setup(tmp_path, sources(machine)).service
    assert isinstance(service, ServiceInfo)
    assert service.unit == str(machine.root / "config/systemd/user/slidepack.service")


def test_a_service_with_everything(tree: Any) -> None:
    tree.write({"units/slidepack.service": "", "var/lib/systemd/linger/me": ""})
    tree.link("units/default.target.wants/slidepack.service", "/gone")
    folder = tree.root / "units"
    service = read_service(tree.root, folder, "me")
    assert service.unit == str(folder / "slidepack.service")
    assert service.enabled
    assert service.lingers
    assert not read_service(tree.root, folder, "you").lingers


def test_no_service(tree: Any) -> None:
    service = read_service(tree.root, tree.root / "units", "me")
    assert (service.unit, service.enabled, service.lingers) == ("", False, False)


def test_windows_users_and_their_settings(tree: Any) -> None:
    tree.write(
        {
            "mnt/c/Users/me/.wslconfig": "\ufeff[WSL2]\n# mine\nMemory = 24GB # much\nswap=0\n"
            "[experimental]\nmemory=1GB\n",
            "mnt/c/Users/you/.wslconfig": "[wsl2]\nprocessors=4\n",
            "mnt/c/Users/Public/desktop.ini": "",
        }
    )
    assert read_wsl_configs(tree.root) == (
        WslConfig(path="/mnt/c/Users/me/.wslconfig", memory="24GB", swap="0"),
        WslConfig(path="/mnt/c/Users/you/.wslconfig", memory="", swap=""),
    )


def test_windows_drives_that_are_mounted_elsewhere(tree: Any) -> None:
    tree.write(
        {
            "etc/wsl.conf": '[automount]\nroot = "/win/"\n',
            "win/c/Users/me/.wslconfig": "[wsl2]\nmemory=8GB\n",
        }
    )
    (config,) = read_wsl_configs(tree.root)
    assert config.path == "/win/c/Users/me/.wslconfig"


def test_no_windows(tree: Any) -> None:
    assert read_wsl_configs(tree.root) == ()
