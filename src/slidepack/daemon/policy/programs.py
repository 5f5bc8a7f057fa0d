"""The programs that run now, for a user who picks those beside which nothing trains."""

import glob
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.policy.patterns import NamePatterns, ProgramPatterns
from slidepack.daemon.policy.process_files import ProcessInfo, file_name
from slidepack.daemon.policy.process_table import PEOPLE, ProcessTable
from slidepack.daemon.policy.rules import COMMAND_PREFIX, Policy

__all__ = ["Program", "running_programs"]

_INTERPRETERS: Final = NamePatterns(
    ("python*", "java", "node", "nodejs", "perl", "ruby", "mono", "dotnet", "electron*", "gjs")
)
_SHELLS: Final = NamePatterns(
    (
        *("sh", "bash", "dash", "zsh", "fish", "sudo", "su", "login", "tmux*", "screen", "ssh*"),
        *("systemd", "(sd-pam)", "dbus-*", "at-spi*", "xdg-*", "gvfs*", "pipewire*", "wireplumber"),
        *("pulseaudio", "ps", "top", "htop", "sleep", "cat", "less", "tail", "gpg-agent"),
    )
)
"""What nobody would call a program that they use, and what carries others."""
_WINDOW_LIBRARIES: Final = (
    *(b"/libwayland-client", b"/libX11.so", b"/libxcb.so", b"/libSDL2", b"/libSDL3", b"/libglfw"),
)
_MAPS_BYTES: Final = 4 << 20


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program of a user's, be it one process or many."""

    name: str
    pattern: str
    """What names it in `exclusive_apps`."""
    gpu: bool
    """Whether it holds a card now."""
    window: bool
    """Whether it can open a window; not looked at where it holds a card or is a desktop's, and of
    other users' programs nobody knows."""
    desktop: bool
    """Whether it is one that a desktop runs all day, as a browser."""
    listed: bool
    """Whether the policy's exclusive applications name it already."""


def running_programs(
    policy: Policy,
    *,
    our_pids: Collection[int],
    gpu_pids: Collection[int],
    proc: Path = Path("/proc"),
    user: int | None = None,
) -> tuple[Program, ...]:
    """Return what users run now, once each: what uses a card first, then what has a window, and
    last what a desktop runs all day.

    It takes some milliseconds for each hundred processes.

    Args:
        policy: its patterns.
        our_pids: our workers; they, this daemon, and what they started are left out.
        gpu_pids: who holds a card.
        proc: the process file system.
        user: id of this daemon's user; None asks the system.

    Raises:
        OSError: the process file system cannot be listed.
    """
    own = os.geteuid() if user is None else user
    table = ProcessTable(proc, environment=False, user=own)
    table.scan(0.0)
    desktop = NamePatterns(policy.ignored_processes)
    listed = ProgramPatterns(policy.exclusive_apps)
    found: dict[str, Program] = {}
    for process in table.all():
        if table.is_ours(process.pid, os.getpid(), our_pids) or not _of_people(proc, process, own):
            continue
        told = _named(process)
        if told is None:
            continue
        name, pattern = told
        known = found.get(pattern)
        gpu = process.pid in gpu_pids
        everyday = any(desktop.match(each) for each in process.names)
        # To read what is loaded into a process takes longer than all else together.
        looked = known is not None or gpu or everyday
        program = Program(
            name=name,
            pattern=pattern,
            gpu=gpu,
            window=not looked and _has_window(proc / str(process.pid) / "maps"),
            desktop=everyday,
            listed=listed.match(process.names, process.paths, " ".join(process.command)),
        )
        found[pattern] = program if known is None else _both(known, program)
    return tuple(sorted(found.values(), key=_rank))


def _of_people(proc: Path, process: ProcessInfo, own: int) -> bool:
    try:
        owner = (proc / str(process.pid)).stat().st_uid
    except OSError:
        return False
    return owner == own or owner in PEOPLE


def _named(process: ProcessInfo) -> tuple[str, str] | None:
    """Return a program's name and the pattern that names it; None for what is no program."""
    name = process.name
    if not name or not name.isprintable() or _SHELLS.match(name):
        return None
    if _INTERPRETERS.match(name):
        script = _script(process.command[1:])
        if not script:
            return None
        # By its own name it would stand for every script there is.
        return script, f"{COMMAND_PREFIX}*{glob.escape(script)}*"
    return name, glob.escape(name)


def _script(arguments: Iterable[str]) -> str:
    for argument in arguments:
        if not argument.startswith("-"):
            return file_name(argument)
        if argument == "-c":
            # What follows is the program itself.
            break
    return ""


def _has_window(maps: Path) -> bool:
    try:
        with maps.open("rb") as file:
            text = file.read(_MAPS_BYTES)
    except OSError:
        # Another user's, or gone.
        return False
    return any(library in text for library in _WINDOW_LIBRARIES)


def _both(one: Program, other: Program) -> Program:
    return msgspec.structs.replace(
        one,
        gpu=one.gpu or other.gpu,
        window=one.window or other.window,
        listed=one.listed or other.listed,
    )


def _rank(program: Program) -> tuple[bool, bool, bool, str]:
    # A browser uses the card all day and is hardly ever what is looked for.
    busy = program.gpu and not program.desktop
    return not busy, program.desktop, not program.window, program.name.casefold()
