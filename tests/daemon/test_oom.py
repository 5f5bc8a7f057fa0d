"""The kernel's own counters tell an out-of-memory kill from a crash."""

from pathlib import Path

from slidepack.daemon.oom import OomKills, read_oom_kills


def _write(root: Path, machine: int, group: int) -> None:
    cgroup = root / "sys/fs/cgroup/user.slice/app.service"
    for folder in (root / "proc/self", cgroup):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "proc/vmstat").write_text(f"nr_free_pages 5\noom_kill {machine}\nswap_ra 1\n")
    (root / "proc/self/cgroup").write_text("0::/user.slice/app.service\n")
    (cgroup / "memory.events").write_text(f"low 0\nhigh 0\nmax 3\noom 1\noom_kill {group}\n")


def test_a_kill_by_the_groups_limit_is_named_with_its_counter(tmp_path: Path) -> None:
    _write(tmp_path, 4, 1)
    before = read_oom_kills(tmp_path)
    assert before == OomKills(machine=4, group=1)
    assert before.since(before) == ""
    _write(tmp_path, 5, 2)
    told = read_oom_kills(tmp_path).since(before)
    assert "memory.events" in told
    assert "rose from 1 to 2" in told


def test_a_kill_for_the_whole_machine_is_named_with_its_counter(tmp_path: Path) -> None:
    _write(tmp_path, 4, 1)
    before = read_oom_kills(tmp_path)
    _write(tmp_path, 6, 1)
    told = read_oom_kills(tmp_path).since(before)
    assert "/proc/vmstat: oom_kill rose from 4 to 6" in told


def test_a_kernel_that_says_nothing_is_no_evidence(tmp_path: Path) -> None:
    nothing = read_oom_kills(tmp_path)
    assert nothing == OomKills(machine=0, group=0)
    assert nothing.since(nothing) == ""
    assert read_oom_kills().machine >= 0, "this machine's own can be read"
