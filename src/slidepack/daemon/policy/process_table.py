"""The running processes, kept from scan to scan, so that a scan reads only what is new."""

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from slidepack.daemon.policy.process_files import (
    ProcessInfo,
    read_command,
    read_process,
    read_stat,
    refusing_owner,
)

_YOUNG_SECONDS: Final = 10.0
"""A process is read anew while it is younger: between fork and exec it bears another's name."""
_REREAD_EACH_SCAN: Final = 3
"""Older processes read anew in each scan, in turn, for those that exec late."""


Sight = Literal["all", "names", "own"]
"""Everything, names and command lines only, or only what this daemon's own user runs."""
PEOPLE: Final = range(1000, 60514)
"""User ids of those who log in; below are services, above are containers'."""


class ProcessTable:
    """What runs, by pid."""

    def __init__(self, proc: Path, *, environment: bool, user: int | None = None) -> None:
        """Name the process file system; nothing is read yet.

        Args:
            proc: the process file system.
            environment: whether to look for GameMode in new processes' environments.
            user: id of the user that this daemon runs as; None asks the system.
        """
        self._proc = str(proc)
        self._environment = environment
        self._user = os.geteuid() if user is None else user
        self._refused = False
        self._inodes: dict[str, int] = {}
        self._processes: dict[int, ProcessInfo] = {}
        self._young: dict[int, float] = {}
        self._turn: Iterator[int] = iter(())

    def scan(self, monotonic: float) -> tuple[set[int], set[int]]:
        """Bring the table up to date.

        Args:
            monotonic: seconds by a clock that only goes forward.

        Returns:
            The pids that were read, and those that are gone.
        """
        changed, gone = self._changes()
        for pid in gone:
            self._processes.pop(pid, None)
            self._young.pop(pid, None)
        self._young.update(dict.fromkeys(changed, monotonic))
        read = set(changed)
        for pid in sorted({*self._young, *self._next_in_turn()}):
            if pid in changed or self._other_program(pid):
                self._read(pid)
                read.add(pid)
        self._young = {
            pid: since for pid, since in self._young.items() if monotonic - since < _YOUNG_SECONDS
        }
        return read, gone

    @property
    def sight(self) -> Sight:
        """What of the programs of those who use this machine is seen."""
        # The first process is root's, and there always is one: it is hidden with all others.
        if "self" in self._inodes and "1" not in self._inodes and self._user not in PEOPLE:
            return "own"
        return "names" if self._refused else "all"

    def get(self, pid: int) -> ProcessInfo | None:
        """Return a process, or None where there is none or it is the kernel's."""
        return self._processes.get(pid)

    def all(self) -> Collection[ProcessInfo]:
        """Return every process."""
        return self._processes.values()

    def is_ours(self, pid: int, daemon_pid: int, worker_pids: Collection[int]) -> bool:
        """Return whether a process is the daemon, a worker, or started by one of them."""
        roots = {daemon_pid, *worker_pids}
        if pid in roots:
            return True
        process = self._processes.get(pid)
        if process is None:
            return False
        # Each worker leads a session, which its children keep even where their parent has ended.
        if process.session in worker_pids:
            return True
        return any(ancestor.pid in roots for ancestor in self.ancestors(process))

    def alive(self, process: ProcessInfo) -> bool:
        """Return whether this very process still runs, by a look at it."""
        stat = read_stat(f"{self._proc}/{process.pid}")
        return stat is not None and not stat.ended and stat.started == process.started

    def ancestors(self, process: ProcessInfo) -> Iterator[ProcessInfo]:
        """Yield its parent, its parent's parent and so on, as far as they still run."""
        seen = {process.pid}
        parent = self._processes.get(process.parent)
        while parent is not None and parent.pid not in seen:
            yield parent
            seen.add(parent.pid)
            parent = self._processes.get(parent.parent)

    def descendants(self, root: int) -> Iterator[ProcessInfo]:
        """Yield what a process started, the nearest first."""
        generation = {root}
        seen = {root}
        while generation:
            children = [
                p for p in self._processes.values() if p.parent in generation and p.pid not in seen
            ]
            yield from children
            generation = {child.pid for child in children}
            seen |= generation

    def _changes(self) -> tuple[set[int], set[int]]:
        """List the folder again; return the pids that are new or another process's, and gone."""
        with os.scandir(self._proc) as entries:
            # Names of what is no process too: to sort them out takes longer than to keep them.
            inodes = {entry.name: entry.inode() for entry in entries}
        before, self._inodes = self._inodes, inodes
        if inodes == before:
            return set(), set()
        # A pid that another process has by now lies under another inode.
        changed = {name for name, _ in inodes.items() - before.items()}
        return _pids(changed), _pids(before.keys() - inodes.keys())

    def _next_in_turn(self) -> set[int]:
        chosen = set()
        for _ in range(min(_REREAD_EACH_SCAN, len(self._processes))):
            pid = next(self._turn, None)
            if pid is None:
                self._turn = iter(tuple(self._processes))
                pid = next(self._turn)
            chosen.add(pid)
        return chosen

    def _other_program(self, pid: int) -> bool:
        known = self._processes.get(pid)
        return known is None or read_command(f"{self._proc}/{pid}") != known.command

    def _read(self, pid: int) -> None:
        process = read_process(f"{self._proc}/{pid}", pid, environment=self._environment)
        if process is None:
            self._processes.pop(pid, None)
        else:
            self._processes[pid] = process
        # This daemon's rights do not change, so one refusal is enough to know.
        if not self._refused:
            owner = refusing_owner(f"{self._proc}/{pid}")
            self._refused = owner in PEOPLE and owner != self._user


def _pids(names: Iterable[str]) -> set[int]:
    return {int(name) for name in names if name.isdecimal()}
