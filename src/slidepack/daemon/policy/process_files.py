"""One process as /proc tells it, read in as few calls as it takes."""

import os
import re
from typing import Final

import msgspec

_COMM_LIMIT: Final = 15
_READ_BYTES: Final = 64 << 10
_GAMEMODE: Final = b"libgamemodeauto"
_PRELOAD: Final = b"LD_PRELOAD="
_KERNEL_PARENT: Final = 2
_ENDED: Final = frozenset({"Z", "X", "x"})


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is. Its name changes once, when it goes from fork to exec."""

    pid: int
    parent: int
    session: int
    started: int
    """Clock ticks after the boot; with the pid it names the process for ever."""
    name: str
    """What to call it: as long as the kernel and its command line tell."""
    names: tuple[str, ...]
    """Every name it goes by: of the kernel, of its file, of its command."""
    paths: tuple[str, ...]
    command: tuple[str, ...]
    gamemode: bool
    """Whether GameMode's library is loaded into it."""


class Stat(msgspec.Struct, frozen=True):
    """The fields of /proc/PID/stat that matter here."""

    comm: str
    state: str
    parent: int
    session: int
    started: int

    @property
    def ended(self) -> bool:
        """Whether it has ended and only waits for its parent to notice."""
        return self.state in _ENDED


def read_process(folder: str, pid: int, *, environment: bool) -> ProcessInfo | None:
    """Return a process, or None where it has ended, is the kernel's, or cannot be seen.

    Args:
        folder: its folder in /proc.
        pid: its number.
        environment: whether to look for GameMode in its environment, where this user may.
    """
    stat = read_stat(folder)
    if stat is None or stat.ended or _KERNEL_PARENT in (pid, stat.parent):
        return None
    command = read_command(folder)
    path = _link(f"{folder}/exe")
    names = _names(stat.comm, command, path)
    return ProcessInfo(
        pid=pid,
        parent=stat.parent,
        session=stat.session,
        started=stat.started,
        name=names[0],
        names=names,
        paths=tuple(dict.fromkeys(p for p in (path, command[0] if command else "") if p)),
        command=command,
        gamemode=environment and _in_gamemode(folder),
    )


def read_stat(folder: str) -> Stat | None:
    """Return the process's state; None where it is gone."""
    text = _read(f"{folder}/stat").decode(errors="replace")
    # A name may hold blanks and brackets, so the last bracket ends it.
    head, bracket, tail = text.rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) < 20:
        return None
    return Stat(
        comm=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
    )


def read_command(folder: str) -> tuple[str, ...]:
    """Return the process's command line; empty where it has none or is gone."""
    text = _read(f"{folder}/cmdline").decode(errors="replace").rstrip("\0")
    return tuple(text.split("\0")) if text else ()


def refusing_owner(folder: str) -> int | None:
    """Return whose process it is, by user id, where this user may not look into it; else None."""
    try:
        os.readlink(f"{folder}/exe")
    except PermissionError:
        pass
    except OSError:
        # It has ended, or is the kernel's.
        return None
    else:
        return None
    try:
        return os.stat(folder).st_uid
    except OSError:
        return None


def file_name(path: str) -> str:
    """Return the last part of a path of Linux or, as Wine's are, of Windows."""
    return re.split(r"[/\\]", path)[-1]


def _names(comm: str, command: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Return every name, the one to show first."""
    called = [file_name(part) for part in command[:2]]
    # The kernel cuts its name at 15 bytes; a script's whole name is the interpreter's argument.
    cut = len(comm.encode()) >= _COMM_LIMIT
    whole = [name for name in called if cut and name.startswith(comm)]
    own = called[:1]
    return tuple(dict.fromkeys(n for n in (*whole, comm, *own, file_name(path)) if n)) or ("",)


def _in_gamemode(folder: str) -> bool:
    return any(
        entry.startswith(_PRELOAD) and _GAMEMODE in entry
        for entry in _read(f"{folder}/environ").split(b"\0")
    )


def _link(path: str) -> str:
    try:
        return os.readlink(path).removesuffix(" (deleted)")
    except OSError:
        # Another user's process, or one that just ended.
        return ""


def _read(path: str) -> bytes:
    """Return the file's first 64 KiB; empty where it is gone or not for this user."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(number, _READ_BYTES)
    except OSError:
        # The process ended between the two calls.
        return b""
    finally:
        os.close(number)
